"""What every evaluated round is measured by, under every executor, without changing the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedtailor
from fedtailor.core.errors import UserError
from fedtailor.experiment.run_folder import JOURNAL, read_journal
from fedtailor.methods import names
from fedtailor.testing.small_world import digits

SMALL: dict[str, Any] = {"rounds": 3, "lr": 0.1, "save": "none"}


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    return read_journal(folder / JOURNAL)


def options_for(method: str) -> dict[str, Any]:
    return {**SMALL, "model": "linear"} if method == "mocha" else SMALL


# ---------------------------------------------------------------- training loss
def test_the_training_loss_by_hand(tmp_path: Path) -> None:
    """One client, one batch: the loss of the first model, before it is trained."""
    federation = digits((40,), skew=False)
    fedtailor.run(
        "fedavg", federation, **{**SMALL, "rounds": 2, "batch": 40}, out=tmp_path / "a"
    )
    first, second = read_rounds(tmp_path / "a")
    fedtailor.run(
        "fedavg",
        federation,
        **{**SMALL, "rounds": 1, "batch": 40, "save": "last"},
        out=tmp_path / "b",
    )
    model = fedtailor.load(tmp_path / "b", data=federation).client(0)
    train = federation.train[0]
    logits = model.logits(federation.x[train])
    loss = torch.nn.functional.cross_entropy(logits, federation.y[train])
    # the batch of 40 is filled up from its own beginning
    assert second["training"]["loss"] == pytest.approx(float(loss), rel=0.1)
    assert second["training"]["loss"] < first["training"]["loss"]


def test_several_trainings_are_told_apart(tmp_path: Path) -> None:
    """Ditto trains its personal model, and then the common one."""
    fedtailor.run("ditto", digits(), **SMALL, out=tmp_path / "a")
    for record in read_rounds(tmp_path / "a"):
        assert record["training"].keys() == {"loss", "local 1", "local 2"}
        assert record["trainings"] == 1


@pytest.mark.parametrize("method", names())
def test_every_method_has_its_training_loss_and_the_score_after(
    method: str, tmp_path: Path
) -> None:
    options = {**options_for(method), "rounds": 2, "executor": "sequential"}
    out = tmp_path / "a"
    federation = digits((20, 12, 12))
    result = fedtailor.run(method, federation, **options, views="after", out=out)
    for record in read_rounds(out):
        # MOCHA solves a dual problem, without optimiser steps
        assert ("loss" in record["training"]) == (method != "mocha")
        assert record["views"]["after"]["n"] == 3 * 8
    assert record["views"]["after"] == result["views"]["after"]
    bare = fedtailor.run(method, federation, **options)
    assert bare["hash"] == result["hash"]
    assert bare["accuracy"] == result["accuracy"]


@pytest.mark.parametrize(
    ("method", "executor"),
    [
        ("ditto", "vmap"),
        ("perfedavg", "vmap"),
        ("fed3p2p", "vmap"),
        ("fed3p2p", "processes"),
    ],
)
def test_all_executors_measure_the_same(
    method: str, executor: str, tmp_path: Path
) -> None:
    options = {**SMALL, "views": "after,global,new", "workers": 2}
    journals = []
    for name in ("sequential", executor):
        out = tmp_path / name
        fedtailor.run(method, digits(), **options, executor=name, out=out)
        journals.append(read_rounds(out))
    for a, b in zip(*journals, strict=True):
        assert b["training"] == pytest.approx(a["training"], rel=1e-4)
        assert b["trainings"] == a["trainings"]
        assert a["views"].keys() == b["views"].keys() >= {"after", "new"}
        for name, view in a["views"].items():
            assert b["views"][name] == pytest.approx(view, rel=1e-3, nan_ok=True), name
        test = a["evaluation"]["test"]
        assert b["evaluation"]["test"] == pytest.approx(test, rel=1e-3)


def test_only_who_trained_is_scored_after_training(tmp_path: Path) -> None:
    options = {**SMALL, "participation": "0.5", "views": "after", "evaluate_every": 2}
    fedtailor.run("fedper", digits(), **options, out=tmp_path / "a")
    rounds = read_rounds(tmp_path / "a")
    assert [bool(record["views"]) for record in rounds] == [False, True, True]
    assert rounds[1]["views"]["after"]["n"] == 3 * 8


def test_an_interrupted_run_measures_the_same(tmp_path: Path) -> None:
    options = {**SMALL, "views": "after,global", "checkpoint_every": 1}
    whole = fedtailor.run("ditto", digits(), **options, out=tmp_path / "a")
    first = {**options, "rounds": 2}
    fedtailor.run("ditto", digits(), **first, out=tmp_path / "b")
    result = fedtailor.run(
        "ditto", digits(), **options, out=tmp_path / "b", resume=True
    )
    assert result["views"] == whole["views"]
    for a, b in zip(
        read_rounds(tmp_path / "a"), read_rounds(tmp_path / "b"), strict=True
    ):
        assert a["views"] == b["views"]
        assert a["training"] == b["training"]


# ---------------------------------------------------------------- pace and cost
def test_trainings_one_after_another() -> None:
    """Fed3+2p: a chain of two clients in phase 1; label counts are no training."""
    assert fedtailor.run("fed3p2p", digits(), **SMALL)["trainings"] > 3
    assert fedtailor.run("fedavg", digits(), **SMALL)["trainings"] == 3
    assert fedtailor.run("fedclust", digits(), **SMALL)["trainings"] == 3


def test_seconds_of_a_round_leave_out_the_first() -> None:
    seconds = fedtailor.run("fedavg", digits(), **SMALL, target=0.01)["seconds"]
    assert 0 < seconds["training_per_round"] <= seconds["per_round"] * 1.5
    assert seconds["to_target"] == pytest.approx(seconds["training_per_round"])


def test_a_target_below_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="target"):
        fedtailor.run("fedavg", digits(), **SMALL, target=-1.0)


# ---------------------------------------------------------------- newcomers
@pytest.mark.parametrize("method", names())
def test_newcomers_train_before_they_are_scored(method: str) -> None:
    """In every method: enough epochs make any of them better than what it is given."""
    federation = digits((40, 40, 40), classes=3)
    scores = {}
    for epochs in (0, 20):
        options = {**options_for(method), "rounds": 1, "executor": "sequential"}
        more = {"new_clients": 1, "newcomer_epochs": epochs}
        views = fedtailor.run(method, federation, **options, **more)["views"]
        assert views["newcomers"]["epochs"] == epochs
        scores[epochs] = views["newcomers"]["loss"]
    assert scores[20] < scores[0]


def test_newcomers_without_training_are_told_as_what_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = {**SMALL, "new_clients": 1, "newcomer_epochs": 0, "quiet": False}
    fedtailor.run("fed3p2p", digits(), **options)
    assert "they have trained nothing (newcomer_epochs=0)" in capsys.readouterr().out
