"""Data frames, torch data sets, named clients and one pair are all data."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fedtailor
from fedtailor.core.errors import UserError
from fedtailor.data import build_own_data, load_dataset
from fedtailor.data.readers.csv_table import Columns

X = np.arange(24.0).reshape(8, 3)
Y = np.arange(8) % 2


def test_clients_have_names():
    found = build_own_data({"oslo": (X, Y), "bergen": (X + 1, Y)})
    assert found.owners == ("oslo", "bergen")
    assert torch.equal(found.x[8:], torch.tensor(X + 1, dtype=torch.float32))


def test_one_pair_is_divided_by_a_partition():
    found = build_own_data((X, Y))
    assert found.owner is None
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3))
    result = fedtailor.run(
        "fedavg", (x, np.arange(90) % 2), partition="iid", clients=3, rounds=1
    )
    assert [client["name"] for client in result["clients"]] == ["0", "1", "2"]
    two = build_own_data(((X, Y), (X, Y)))
    assert two.owners == ("0", "1")


def test_torch_datasets_are_read_item_by_item():
    data = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(Y))
    found = build_own_data([data, data])
    assert torch.equal(found.x[:8], data.tensors[0])
    assert torch.equal(found.y[8:], data.tensors[1])
    with pytest.raises(UserError, match="client '0': item 0 is no pair"):
        build_own_data([TensorDataset(torch.tensor(X))])


def test_labels_may_be_true_and_false():
    assert build_own_data([(X, Y == 1), (X, Y == 1)]).y.tolist() == [*Y, *Y]


class Column:
    """A column of a table as pandas and polars have them."""

    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return np.array(self.values, dtype=object)


class Frame(dict):
    """A table as pandas and polars have them."""

    @property
    def columns(self):
        return list(self)

    def to_numpy(self):
        raise AssertionError("columns of several kinds together are objects")


def test_a_frame_is_read_column_by_column():
    frame = Frame(age=Column([1, 2, None]), smokes=Column([True, False, True]))
    found = build_own_data([(frame, [0, 1, 0])], missing="median")
    assert found.x[:, 1].tolist() == [1, 0, 1]
    assert bool(torch.isnan(found.x[2, 0]))
    with pytest.raises(UserError, match="column 'city' holds what is no number"):
        build_own_data([(Frame(city=Column(["a", "b", "c"])), [0, 1, 0])])


@pytest.mark.slow
@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_frames_of_the_packages(package):
    library = pytest.importorskip(package)
    frame = library.DataFrame({"age": [1.5, 2.5, 3.5], "smokes": [True, False, True]})
    y = library.Series(["no", "yes", "no"])
    found = build_own_data({"oslo": (frame, y)})
    assert found.x.tolist() == [[1.5, 1], [2.5, 0], [3.5, 1]]
    assert found.labels == ("no", "yes")


def test_csv_files_name_their_label_and_what_is_left_out(tmp_path):
    path = tmp_path / "heart.csv"
    path.write_text("id,age,city,target\na1,50,x,1\na2,60,y,0\n")
    columns = Columns.parse("target", "id, city")
    found = load_dataset(str(path), columns=columns)
    assert found.x.tolist() == [[50], [60]]
    assert found.y.tolist() == [1, 0]
    with pytest.raises(
        UserError, match=r"named 'label' \(there are id, age, city, target"
    ):
        load_dataset(str(path))
    with pytest.raises(UserError, match="no column is named 'town'"):
        load_dataset(str(path), columns=Columns.parse("target", "town"))
