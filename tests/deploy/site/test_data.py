"""A site's own data."""

import numpy as np
import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.deploy.data_facts import SiteFacts
from fedtailor.deploy.site.data import SiteData, export_clients, load_source, split_data
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare_federation

OPTIONS = make_experiment({})


def make_arrays(**changes):
    """The arrays of a file that is split already; a change to None leaves one out."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", 6), ("val", 2), ("test", 3)):
        arrays[f"x_{split}"] = rng.integers(0, 255, (n, 1, 4, 4), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(n) % 3
    return {k: v for k, v in {**arrays, **changes}.items() if v is not None}


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_a_file_that_is_split_already_is_taken_as_it_is(tmp_path):
    arrays = make_arrays()
    data = split_data(load_source(write_npz(tmp_path / "a.npz", **arrays)), OPTIONS, [])
    assert data.facts() == SiteFacts(
        kind="image",
        shape=(1, 4, 4),
        dtype="uint8",
        classes=3,
        exact=False,
        labels=(),
        vocabulary=0,
        n=(6, 2, 3),
    )
    federation = data.to_federation(2, 5, ())
    assert federation.classes == 5
    assert [len(index) for index in federation.train] == [0, 0, 6]
    assert np.array_equal(federation.x[federation.test[2]].numpy(), arrays["x_test"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"y_val": None}, "no 'y_val'"),
        ({"y_test": np.arange(2)}, "x_test and y_test differ in length"),
        ({"y_train": np.full(6, 0.5)}, "labels are whole numbers"),
        ({"classes": np.array(2)}, "labels go from 0 to 2, but there are 2 classes"),
        (
            {
                f"x_{split}": np.zeros(n)
                for split, n in (("train", 6), ("val", 2), ("test", 3))
            },
            "x has 1 dimensions",
        ),
    ],
)
def test_a_wrong_file_is_told_in_one_line(change, why, tmp_path):
    with pytest.raises(UserError, match=why):
        load_source(write_npz(tmp_path / "a.npz", **make_arrays(**change)))


def test_any_other_data_are_split_by_the_run(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 5))
    source = load_source(write_npz(tmp_path / "a.npz", x=x, y=np.arange(40) % 2))
    options = make_experiment({"split": "merged:0.5", "validation": 0.25})
    data = split_data(source, options, [])
    assert data.kind == "table" and data.facts().n == (15, 5, 20)
    again = split_data(source, options, [])
    assert torch.equal(data.splits[0], again.splits[0])


def test_an_exported_partition_holds_what_its_clients_hold(tmp_path):
    federation, _ = prepare_federation(
        make_experiment({"clients": 3, "limit": 120, "partition": "dirichlet:1"})
    )
    for k, path in enumerate(export_clients(federation, tmp_path)):
        data = load_source(str(path))
        assert isinstance(data, SiteData) and data.exact and data.classes == 10
        mine = data.to_federation(k, 10, data.labels)
        for split in ("train", "val", "test"):
            here = getattr(mine, split)[k]
            there = getattr(federation, split)[k]
            assert torch.equal(mine.x[here], federation.x[there])
            assert torch.equal(mine.y[here], federation.y[there])


def test_texts_become_numbers_by_the_runs_vocabulary(tmp_path):
    rows = [f'{word},"{word} the Cat, again"\n' for word in ["no", "yes"] * 10]
    (tmp_path / "a.csv").write_text("label,text\n" + "".join(rows))
    source = load_source(str(tmp_path / "a.csv"))
    with pytest.raises(UserError, match="brings no vocabulary"):
        split_data(source, OPTIONS, [])
    data = split_data(source, OPTIONS, ["cat", "yes", "the"])
    assert data.kind == "text" and data.vocabulary == 5 and data.labels == ("no", "yes")
    assert data.x[1].tolist()[:7] == [3, 4, 2, 1, 1, 0, 0], "yes the cat , again"


def test_names_of_classes_get_the_runs_numbers(tmp_path):
    arrays = make_arrays(labels=np.array(["cat", "dog", "owl"]))
    data = load_source(write_npz(tmp_path / "a.npz", **arrays))
    federation = data.to_federation(0, 4, ("ape", "cat", "dog", "owl"))
    assert torch.equal(federation.y, data.y + 1)
