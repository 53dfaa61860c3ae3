"""External sets of a user: in files, in folders and from Python."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import refusal
from PIL import Image

import fedtailor
from fedtailor.data import load_dataset
from fedtailor.data.sets.digits import read_digits

PIXELS, LABELS = read_digits()
X = np.rint(PIXELS * 255 / 16).astype(np.uint8).reshape(-1, 8, 8)[:400]
Y = LABELS[:400]
OWNED = slice(0, 300)
OTHER = slice(300, 400)
QUICK: dict[str, Any] = {"rounds": 1, "views": "external", "lr": 0.1}


def write_npz(path: Path, **more: Any) -> Path:
    arrays = {"x": X[OWNED], "y": Y[OWNED], "client": np.arange(300) % 3, **more}
    np.savez(path, **arrays)
    return path


def check_result(result: dict[str, Any], *names: str) -> None:
    views = result["views"]["external"]
    assert list(views) == list(names)
    for name in names:
        assert 0 < views[name]["global"] <= 1


def test_an_npz_file_carries_sets_and_a_run_uses_them(tmp_path: Path) -> None:
    sets = {"ward.x": X[OTHER], "ward.y": Y[OTHER], "old.x": X[:50], "old.y": Y[:50]}
    path = write_npz(tmp_path / "clinics.npz", **sets)
    d = load_dataset(str(path))
    x, y = d.external["ward"]
    assert len(d) == 300 and torch.equal(x, torch.from_numpy(X[OTHER])[:, None])
    assert y.tolist() == Y[OTHER].tolist()
    result = fedtailor.run("fedavg", str(path), **QUICK)
    check_result(result, "ward", "old")


def test_from_python_with_clients_a_name_and_a_federation() -> None:
    clients = [(X[k:300:3], Y[k:300:3]) for k in range(3)]
    external = {"ward": (X[OTHER], torch.from_numpy(Y[OTHER]))}
    of_arrays = fedtailor.run("fedavg", clients, external=external, **QUICK)
    check_result(of_arrays, "ward")
    of_name = fedtailor.run(
        "fedavg", "digits", external=external, clients=3, limit=300, **QUICK
    )
    check_result(of_name, "ward")


def test_file_and_python_give_the_same_figures(tmp_path: Path) -> None:
    names = ["0", "1", "2"]
    clients = [(X[k:300:3], Y[k:300:3]) for k in range(3)]
    folder = tmp_path / "sites"
    folder.mkdir()
    for name, (x, y) in zip(names, clients, strict=True):
        np.savez(folder / f"{name}.npz", x=x, y=y)
    np.savez(folder / "external-ward.npz", x=X[OTHER], y=Y[OTHER])
    from_folder = fedtailor.run("fedavg", str(folder), **QUICK)
    from_python = fedtailor.run(
        "fedavg", clients, external={"ward": (X[OTHER], Y[OTHER])}, **QUICK
    )
    assert from_folder["views"]["external"] == from_python["views"]["external"]


def write_csv(path: Path, texts: bool = False) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "external", "label"])
        for i in range(40):
            label = ["no", "yes"][i % 2] if texts else i % 2
            writer.writerow([i, i % 2, "ward" if i >= 30 else "", label])


@pytest.mark.parametrize("texts", [False, True])
def test_a_column_of_a_csv_file(texts: bool, tmp_path: Path) -> None:
    write_csv(tmp_path / "table.csv", texts)
    d = load_dataset(str(tmp_path / "table.csv"))
    x, y = d.external["ward"]
    assert len(d) == 30 and d.x.shape == (30, 2)
    assert x[:, 0].tolist() == list(range(30, 40)) and y.tolist() == [0, 1] * 5
    folder = tmp_path / "tables"
    folder.mkdir()
    write_csv(folder / "a.csv")
    text = refusal(load_dataset, str(folder))
    assert "external-NAME.csv" in text


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for i in range(60):
        place = ["a", "b", "external-ward"][i % 3]
        path = folder / place / f"digit{Y[i] % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(X[i]).save(path)
    d = load_dataset(str(folder))
    assert d.owners == ("a", "b") and len(d) == 40
    x, y = d.external["ward"]
    assert x.shape == (20, 1, 8, 8) and len(y) == 20


def test_a_prepared_file_of_a_named_set(tmp_path: Path) -> None:
    x = np.zeros((6, 3, 32, 32), np.uint8)
    y = np.arange(6)
    path = tmp_path / "cifar10.npz"
    np.savez(path, x=x, y=y, **{"v2.x": x[:2], "v2.y": y[:2]})
    assert len(load_dataset("cifar10", tmp_path).external["v2"][1]) == 2
    np.savez(path, x=x, y=y, **{"v2.x": x[:2]})
    assert "external set 'v2' has 'v2.x' and no 'v2.y'" in refusal(
        load_dataset, "cifar10", tmp_path
    )
    np.savez(path, x=x, y=y, **{"v2.x": x[:2], "v2.y": y[:2] + 9})
    assert "has label 10" in refusal(load_dataset, "cifar10", tmp_path)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"w.x": X[:5]}, "external set 'w' has 'w.x' and no 'w.y'"),
        ({"w.y": Y[:5]}, "external set 'w' has 'w.y' and no 'w.x'"),
        ({"w.x": X[:5, 1:], "w.y": Y[:5]}, "samples of shape (1, 7, 8)"),
        ({"w.x": X[:5] / 255, "w.y": Y[:5]}, "all need the same"),
        ({"w.x": X[:5], "w.y": Y[:4]}, "does not fit 4 labels"),
        ({"w.x": X[:1], "w.y": np.array([12])}, "sample 0 has label 12"),
        ({"w.x": X[:1], "w.y": np.array(["seven"])}, "no client has the class 'seven'"),
    ],
)
def test_unsound_sets_are_refused(more: Any, text: str, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "clinics.npz", **more)
    assert text in refusal(load_dataset, str(path))


def test_data_that_learn_from_training_samples_take_none() -> None:
    x = np.arange(40.0).reshape(20, 2)
    x[0, 0] = np.nan
    d = fedtailor.data.build_dataset([(x, np.arange(20) % 2)], missing="median")
    external = {"w": (x[1:], np.arange(19) % 2)}
    text = refusal(fedtailor.run, "fedavg", d, external=external)
    assert "an external set cannot be added" in text
    assert "is no pair (x, y)" in refusal(
        fedtailor.run, "fedavg", "digits", external={"w": x}
    )
