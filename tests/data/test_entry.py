"""Variants of a data set, and the names that follow from them."""

from __future__ import annotations

import pytest
from data_helpers import refusal

from fedtailor.data import Entry

COATS = Entry(
    name="coats",
    title="Coats",
    kind="image",
    shape=(3, 8, 8),
    classes=2,
    samples=10,
    source="nobody",
    homepage="http://localhost",
    licence="none",
    variants=("small", "large"),
    overrides={"large": {"shape": (3, 16, 16)}},
)


def test_a_variant_changes_what_it_overrides() -> None:
    assert COATS.with_variant("small").shape == (3, 8, 8)
    assert COATS.with_variant("large").shape == (3, 16, 16)


def test_the_first_variant_is_the_default() -> None:
    default = COATS.with_variant("")
    large = COATS.with_variant("large")
    assert (default.variant, default.short_name, default.full_name) == (
        "small",
        "coats",
        "coats:small",
    )
    assert (large.variant, large.short_name, large.full_name) == (
        "large",
        "coats:large",
        "coats:large",
    )


def test_an_unknown_variant() -> None:
    message = refusal(COATS.with_variant, "larg")
    assert message == "no variant of coats 'larg'; did you mean large?"


@pytest.mark.parametrize(
    ("separate", "variant", "stems"),
    [
        (False, "large", ("coats",)),
        (True, "large", ("coats_large",)),
        (True, "", ("coats_small", "coats")),
    ],
)
def test_names_of_prepared_files(
    separate: bool, variant: str, stems: tuple[str, ...]
) -> None:
    entry = Entry(**{**vars(COATS), "separate_files": separate})
    assert entry.with_variant(variant).stems == stems
