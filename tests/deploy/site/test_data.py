"""A site's own data."""

import numpy as np
import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.deploy.server.data_agreement import agree_on
from fedtailor.deploy.site.data import Holdings, cut, export, load
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare_federation

OPTIONS = make_experiment({})


def parts(**changes):
    rng = np.random.default_rng(0)
    whole = {}
    for part, n in (("train", 6), ("val", 2), ("test", 3)):
        whole[f"x_{part}"] = rng.integers(0, 255, (n, 1, 4, 4), dtype=np.uint8)
        whole[f"y_{part}"] = np.arange(n) % 3
    return {k: v for k, v in {**whole, **changes}.items() if v is not None}


def saved(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_a_file_that_is_cut_already_is_taken_as_it_is(tmp_path):
    arrays = parts()
    holdings = cut(load(saved(tmp_path / "a.npz", **arrays)), OPTIONS, [])
    assert holdings.facts() == {
        "kind": "image",
        "shape": [1, 4, 4],
        "dtype": "uint8",
        "classes": 3,
        "exact": False,
        "labels": [],
        "vocabulary": 0,
        "n": [6, 2, 3],
    }
    f = holdings.federation(2, 5, [])
    assert f.classes == 5 and [len(i) for i in f.train] == [0, 0, 6]
    assert np.array_equal(f.x[f.test[2]].numpy(), arrays["x_test"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"y_val": None}, "no 'y_val'"),
        ({"y_test": np.arange(2)}, "x_test and y_test differ in length"),
        ({"y_train": np.full(6, 0.5)}, "labels are whole numbers"),
        ({"classes": np.array(2)}, "labels go from 0 to 2, but there are 2 classes"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(change, why, tmp_path):
    with pytest.raises(UserError, match=why):
        load(saved(tmp_path / "a.npz", **parts(**change)))


def test_any_other_data_are_cut_by_the_run(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 2
    source = load(saved(tmp_path / "a.npz", x=x, y=y))
    holdings = cut(source, make_experiment({"split": "merged:0.5", "validation": 0.25}), [])
    assert holdings.kind == "table" and holdings.facts()["n"] == [15, 5, 20]
    again = cut(source, make_experiment({"split": "merged:0.5", "validation": 0.25}), [])
    assert torch.equal(holdings.parts[0], again.parts[0])


def test_an_exported_partition_holds_what_its_clients_hold(tmp_path):
    federation, _ = prepare_federation(
        make_experiment({"clients": 3, "limit": 120, "partition": "dirichlet:1"})
    )
    for k, path in enumerate(export(federation, tmp_path)):
        mine = load(str(path))
        assert isinstance(mine, Holdings) and mine.exact and mine.classes == 10
        f = mine.federation(k, 10, list(mine.labels))
        for part in ("train", "val", "test"):
            here, there = getattr(f, part)[k], getattr(federation, part)[k]
            assert torch.equal(f.x[here], federation.x[there]) and torch.equal(
                f.y[here], federation.y[there]
            )


def test_texts_become_numbers_by_the_runs_vocabulary(tmp_path):
    (tmp_path / "a.csv").write_text(
        "label,text\n" + "".join(f'{w},"{w} the Cat, again"\n' for w in ["no", "yes"] * 10)
    )
    source = load(str(tmp_path / "a.csv"))
    with pytest.raises(UserError, match="brings no vocabulary"):
        cut(source, OPTIONS, [])
    holdings = cut(source, OPTIONS, ["cat", "yes", "the"])
    assert holdings.kind == "text" and holdings.vocabulary == 5 and holdings.labels == ("no", "yes")
    row = holdings.x[1].tolist()
    assert row[:7] == [3, 4, 2, 1, 1, 0, 0], "yes the cat , again"


def facts(**changes):
    base = {
        "kind": "image",
        "shape": [1, 4, 4],
        "dtype": "uint8",
        "classes": 3,
        "exact": False,
        "labels": [],
        "vocabulary": 0,
        "n": [6, 2, 3],
    }
    return base | changes


def test_sites_agree_on_what_they_have_in_common():
    assert agree_on({"a": facts(classes=3), "b": facts(classes=7)}, {})["classes"] == 7
    assert (
        agree_on({"a": facts(classes=3), "b": facts(classes=10, exact=True)}, {})["classes"] == 10
    )
    assert agree_on({"a": facts()}, {"classes": 10})["classes"] == 10
    named = {
        "a": facts(labels=["cat", "dog"], classes=2, exact=True),
        "b": facts(labels=["ape", "dog"], classes=2),
    }
    assert (
        agree_on(named, {})["labels"] == ["ape", "cat", "dog"]
        and agree_on(named, {})["classes"] == 3
    )


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (facts(shape=[1, 5, 5]), r"shape \(1, 5, 5\), the run's \(1, 4, 4\)"),
        (facts(dtype="float32"), "float32"),
        (facts(labels=["cat", "dog"]), "called"),
        (facts(vocabulary=9), "9 words"),
    ],
)
def test_a_site_that_differs_is_named(odd, why):
    with pytest.raises(UserError, match=f"site 'c' does not fit the run: .*{why}"):
        agree_on({"a": facts(), "b": facts(), "c": odd}, {})
    with pytest.raises(
        UserError, match="site 'a' does not fit the run: it has 7 classes, the run 3"
    ):
        agree_on({"a": facts(classes=7)}, {"classes": 3})


def test_names_of_classes_get_the_runs_numbers(tmp_path):
    arrays = parts(labels=np.array(["cat", "dog", "owl"]))
    mine = load(saved(tmp_path / "a.npz", **arrays))
    f = mine.federation(0, 4, ["ape", "cat", "dog", "owl"])
    assert torch.equal(f.y, mine.y + 1)
