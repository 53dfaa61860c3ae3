"""Whether the data of all sites fit together."""

import dataclasses

import pytest

from fedtailor.core.errors import UserError
from fedtailor.deploy.data_facts import SiteFacts
from fedtailor.deploy.server.data_agreement import agree_on_data

FACTS = SiteFacts(
    kind="image",
    shape=(1, 4, 4),
    dtype="uint8",
    classes=3,
    exact=False,
    labels=(),
    vocabulary=0,
    n=(6, 2, 3),
)


def facts(**changes) -> SiteFacts:
    return dataclasses.replace(FACTS, **changes)


def test_sites_agree_on_what_they_have_in_common():
    assert (
        agree_on_data({"a": facts(classes=3), "b": facts(classes=7)}, {}).classes == 7
    )
    known = {"a": facts(classes=3), "b": facts(classes=10, exact=True)}
    assert agree_on_data(known, {}).classes == 10
    assert agree_on_data({"a": facts()}, {"classes": 10}).classes == 10


def test_names_of_classes_are_united():
    named = {
        "a": facts(labels=("cat", "dog"), classes=2, exact=True),
        "b": facts(labels=("ape", "dog"), classes=2),
    }
    spec = agree_on_data(named, {})
    assert spec.labels == ("ape", "cat", "dog") and spec.classes == 3
    alike = {name: facts(labels=("owl", "cat"), classes=2) for name in "ab"}
    assert agree_on_data(alike, {}).labels == ("owl", "cat"), "their own order"


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (facts(kind="table"), "it has table data, the run image data"),
        (facts(shape=(1, 5, 5)), r"shape \(1, 5, 5\), the run's \(1, 4, 4\)"),
        (facts(dtype="float32"), "float32"),
        (facts(labels=("cat", "dog")), r"called \['cat', 'dog'\], the run's by number"),
        (facts(vocabulary=9), "9 words"),
    ],
)
def test_a_site_that_differs_is_named(odd, why):
    with pytest.raises(UserError, match=f"site 'c' does not fit the run: .*{why}"):
        agree_on_data({"a": facts(), "b": facts(), "c": odd}, {})


def test_what_is_given_wins_over_what_sites_say():
    with pytest.raises(
        UserError, match="site 'a' does not fit the run: it has 7 classes, the run 3"
    ):
        agree_on_data({"a": facts(classes=7)}, {"classes": 3})
    with pytest.raises(UserError, match=r"shape \(1, 4, 4\), the run's \(1, 8, 8\)"):
        agree_on_data({"a": facts()}, {"shape": [1, 8, 8]})


@pytest.mark.parametrize("n", [[], [1, 2], [0, 1, 1], [3, -1, 1]])
def test_facts_without_training_samples_are_refused(n):
    with pytest.raises(ValueError, match="samples to train"):
        SiteFacts.parse({**dataclasses.asdict(FACTS), "n": n})
    assert SiteFacts.parse(dataclasses.asdict(FACTS)) == FACTS
