"""A finished run, opened again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedtailor
from fedtailor.data.federation import Federation
from fedtailor.experiment.data_outline import read_outline, write_outline
from fedtailor.experiment.finished_run import FinishedRun, PersonalModel
from fedtailor.methods.ditto import Ditto
from fedtailor.testing.small_world import digits
from helpers import words

FAST = {"rounds": 1, "save": "last", "executor": "sequential"}


def test_a_personal_model_takes_one_input_or_many(tmp_path: Path) -> None:
    fedtailor.run("fedavg", "digits", clients=3, limit=200, **FAST, out=tmp_path / "a")
    run = fedtailor.load(str(tmp_path / "a"))
    model = run.client(1)
    assert isinstance(run, FinishedRun) and isinstance(model, PersonalModel)
    assert (model.k, model.t) == (1, 1)
    x = np.arange(2 * 64, dtype=np.uint8).reshape(2, 1, 8, 8)
    logits = model.logits(x)
    assert logits.shape == (2, 10)
    assert torch.equal(model.logits(torch.from_numpy(x)), logits)
    assert torch.equal(model.predict(x[1]), logits[1:].argmax(-1))
    scaled = x / np.float32(127.5) - 1  # as bytes are in training
    assert torch.allclose(model.logits(scaled), logits, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "complaint"),
    [
        (
            np.zeros((2, 3, 8, 8), np.float32),
            "inputs of shape (1, 8, 8), not (3, 8, 8)",
        ),
        (np.full((1, 8, 8), np.nan, np.float32), "holds NaN or infinity"),
    ],
)
def test_inputs_that_the_network_cannot_take(
    tmp_path: Path, x: np.ndarray, complaint: str
) -> None:
    fedtailor.run("fedavg", "digits", clients=3, limit=200, **FAST, out=tmp_path / "a")
    with pytest.raises(fedtailor.UserError) as error:
        fedtailor.load(tmp_path / "a").client(0).predict(x)
    assert complaint in str(error.value)


def test_texts_are_words_by_number(tmp_path: Path) -> None:
    texts: Federation = words()["federation"]
    texts = Federation(**(vars(texts) | {"vocabulary": 17}))
    fedtailor.run("fedavg", texts, "fasttext", **FAST, out=tmp_path / "a")
    model = fedtailor.load(tmp_path / "a").client(0)
    assert model.predict(texts.x[:3]).shape == (3,)
    for wrong in (texts.x[:3] + 17, texts.x[:3] - 17, texts.x[:3].float()):
        with pytest.raises(fedtailor.UserError, match="whole numbers from 0 to 16"):
            model.predict(wrong)


def test_what_was_given_in_code_is_given_again(tmp_path: Path) -> None:
    federation = digits()
    fedtailor.run(Ditto(lam=0.5), federation, **FAST, out=tmp_path / "a")
    x = federation.x[federation.test[0]]
    found = [
        fedtailor.load(tmp_path / "a", **own).client(0).predict(x)
        for own in (
            {},
            {"method": Ditto(lam=0.5)},
            {"method": Ditto, "data": federation},
        )
    ]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_what_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(fedtailor.UserError, match="holds no run"):
        fedtailor.load(tmp_path)
    out = tmp_path / "a"
    fedtailor.run(
        "fedavg", "digits", clients=3, limit=200, **FAST | {"save": "none"}, out=out
    )
    with pytest.raises(fedtailor.UserError, match="keeps no models"):
        fedtailor.load(out).client(0)
    (out / "result.json").unlink()
    with pytest.raises(fedtailor.UserError, match="is not finished"):
        _ = fedtailor.load(out).result


def test_an_outline_has_shapes_and_labels_but_no_inputs(tmp_path: Path) -> None:
    federation = digits()
    write_outline(federation, tmp_path / "outline.npz")
    outline = read_outline(tmp_path / "outline.npz")
    for name in ("name", "kind", "classes", "shape", "vocabulary", "clients"):
        assert getattr(outline, name) == getattr(federation, name)
    for ours, theirs in zip(outline.train, federation.train, strict=True):
        assert torch.equal(outline.y[ours], federation.y[theirs])
    assert outline.x.numel() == 0 and outline.x.dtype == federation.x.dtype
    assert not any(len(indices) for indices in [*outline.val, *outline.test])
    (tmp_path / "outline.npz").write_bytes(b"no archive")
    with pytest.raises(fedtailor.UserError, match=r"outline\.npz cannot be read"):
        read_outline(tmp_path / "outline.npz")


def test_bytes_are_refused_by_a_model_that_was_trained_on_floats(tmp_path):
    x = torch.randn(60, 3)
    data = [(x, torch.arange(60) % 2), (x + 1, torch.arange(60) % 2)]
    fedtailor.run("fedavg", data, rounds=1, out=tmp_path / "run")
    model = fedtailor.load(tmp_path / "run").client(0)
    assert model.predict(x[:4]).shape == (4,)
    with pytest.raises(
        fedtailor.UserError, match="trained on numbers, and the input holds bytes"
    ):
        model.predict(torch.zeros(4, 3, dtype=torch.uint8))
