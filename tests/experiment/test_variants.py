"""Variants of a comparison: how they are written, called and kept apart."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedtailor
from fedtailor.experiment.variants import (
    folder_stem,
    make_variants,
    parse_variant,
)
from fedtailor.methods.ditto import Ditto

MINE = """
from dataclasses import dataclass
from fedtailor.methods.fedcp import FedCP

@dataclass(frozen=True)
class Mine(FedCP):
    pass
"""


def test_brackets_hold_hyper_parameters_and_options(tmp_path: Path) -> None:
    variant = parse_variant("fedcp[lam=1, lr=0.05,without=cpn,gfm]")
    assert variant.label == "fedcp[lam=1,lr=0.05,without=cpn,gfm]"
    assert variant.hyper == {"lam": "1", "without": "cpn,gfm"}
    assert variant.options == {"lr": "0.05"}
    # what is both is the method's
    assert parse_variant("fedcp[norm=batch]").hyper == {"norm": "batch"}
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    own = parse_variant(f"{path}[depth=2]")
    assert (own.label, own.method) == ("mine[depth=2]", str(path))
    assert own.written == f"{path}[depth=2]"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("fedcp[lamb=1]", "no hyper-parameter or option of fedcp 'lamb'; did you mean"),
        ("fedcp[lam=1", "the bracket is not closed; .* in quotes"),
        ("fedcp[]", "write options as name=value"),
        ("fedcp[lam]", "write options as name=value"),
        ("fedcp[lam=1,lam=2]", "lam is given twice"),
        ("fedcp[partition=iid]", "same data and seeds; give partition for all"),
        ("fedcp[seed=3]", "same data and seeds"),
        ("fedpc[lam=1]", "did you mean .*fedcp"),
    ],
)
def test_mistakes_in_brackets(text: str, complaint: str) -> None:
    with pytest.raises(fedtailor.UserError, match=complaint):
        parse_variant(text)


def test_folders_of_different_variants_differ() -> None:
    assert folder_stem("fedcp") == "fedcp"
    assert folder_stem("fedcp[lam=1,without=cs]") == "fedcp-lam=1,without=cs"
    labels = ["a/b", "a:b", "a b", "x" * 90 + "1", "x" * 90 + "2"]
    stems = {folder_stem(label) for label in labels}
    assert len(stems) == len(labels)
    assert all("/" not in stem and len(stem) < 100 for stem in stems)


def test_a_label_stands_once(tmp_path: Path) -> None:
    with pytest.raises(fedtailor.UserError, match=r"fedcp\[lam=1\] is named twice"):
        make_variants(["fedcp[lam=1]", "fedcp[lam=1]"])
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(MINE)
    paths = [str(tmp_path / folder / "mine.py") for folder in ("a", "b")]
    with pytest.raises(fedtailor.UserError, match="both called mine: rename one"):
        make_variants(paths)
    with pytest.raises(fedtailor.UserError, match="at least one method"):
        make_variants([])


def test_methods_in_code_have_labels() -> None:
    variants = make_variants({"pulled less": Ditto(lam=0.1), "usual": "ditto"})
    assert [one.label for one in variants] == ["pulled less", "usual"]
    assert variants[0].own == Ditto(lam=0.1) and variants[0].method == "ditto"
    assert make_variants([Ditto])[0].label == "ditto"
