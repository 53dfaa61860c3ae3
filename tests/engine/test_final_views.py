"""Final evaluations, compared with sums by hand over the models that were kept."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

import fedtailor
from fedtailor.core.tree import average
from fedtailor.data.federation import Federation
from fedtailor.experiment.finished_run import FinishedRun
from fedtailor.report import leaderboard
from fedtailor.testing.small_world import digits

FAST = {"rounds": 2, "save": "last", "executor": "sequential", "lr": 0.1}


def with_external_data() -> Federation:
    """Six clients; every other of their test samples, mirrored, is a set that belongs to none."""
    federation = digits()
    index = torch.cat(federation.test)[::2]
    mirrored = federation.x[index].flip(-1)
    return replace(federation, external={"elsewhere": (mirrored, federation.y[index])})


def accuracy(scores: Tensor, y: Tensor) -> float:
    return pytest.approx(float((scores.argmax(-1) == y).double().mean()))


@pytest.mark.parametrize("method", ["local", "cd2pfed", "fedcp"])
def test_new_and_external_by_hand(method: str, tmp_path: Path) -> None:
    federation = with_external_data()
    result = fedtailor.run(
        method, federation, out=tmp_path / "run", views="new,external", **FAST
    )
    finished = FinishedRun(tmp_path / "run", data=federation)
    models = [finished.client(k) for k in range(federation.clients)]
    mean = average([model.parameters for model in models], [1.0] * len(models))
    common = torch.cat(federation.test)
    views = [
        (result["views"]["new"], federation.x[common], federation.y[common]),
        (result["views"]["external"]["elsewhere"], *federation.external["elsewhere"]),
    ]
    for view, x, y in views:
        logs = torch.stack(
            [model.logits(x).log_softmax(-1) for model in models]
        ).double()
        votes = torch.nn.functional.one_hot(logs.argmax(-1), federation.classes).sum(0)
        assert view["n"] == len(y)
        assert view["accuracy"] == view["logmean"] == accuracy(logs.sum(0), y)
        assert view["probmean"] == accuracy(logs.exp().sum(0), y)
        assert view["vote"] == accuracy(votes, y)
        mean_model = replace(models[0], parameters=mean)
        assert view["paramavg"] == accuracy(mean_model.logits(x), y)


def test_external_data_also_meet_the_global_model() -> None:
    """FedAvg's personal models are the global one; Local has none."""
    federation = with_external_data()
    views = fedtailor.run("fedavg", federation, views="external", **FAST)["views"]
    view = views["external"]["elsewhere"]
    assert view["global"] == view["paramavg"] == view["logmean"]
    views = fedtailor.run("local", federation, views="external", **FAST)["views"]
    assert views["external"]["elsewhere"]["global"] is None


def test_the_global_model_on_the_clients_test_data(tmp_path: Path) -> None:
    federation = digits()
    result = fedtailor.run("fedavg", federation, out=tmp_path / "run", **FAST)
    model = FinishedRun(tmp_path / "run", data=federation).client(0)
    hits = 0.0
    for index in federation.test:
        predicted = model.logits(federation.x[index]).argmax(-1)
        hits += float((predicted == federation.y[index]).sum())
    view = result["views"]["global_ptest"]
    assert view["n"] == sum(len(index) for index in federation.test)
    assert view["accuracy"] == pytest.approx(hits / view["n"])


def test_after_training_is_the_model_before_it_is_averaged() -> None:
    """FedAvg's models fit their clients better right after training than when averaged."""
    skewed = {**FAST, "rounds": 6}
    views = fedtailor.run("fedavg", digits(), views="after", **skewed)["views"]
    assert views["after"]["n"] == views["personal"]["n"]
    assert views["after"]["accuracy"] > views["personal"]["accuracy"]


def test_newcomers_are_evaluated_and_not_trained() -> None:
    views = fedtailor.run("fedper", digits(), new_clients=2, **FAST)["views"]
    assert views["newcomers"]["n"] == 2 * 8
    assert views["personal"]["n"] == 4 * 8


def with_two_tasks() -> Federation:
    """Two clients; one has classes 0 and 1, the other 2 and 3."""
    federation = digits((60, 60), classes=4, skew=False)
    parts: dict[str, list[Tensor]] = {}
    for name in ("train", "val", "test"):
        everything = torch.cat(getattr(federation, name))
        is_first = federation.y[everything] < 2
        parts[name] = [everything[is_first], everything[~is_first]]
        assert all(len(index) for index in parts[name])
    return replace(federation, **parts)


def test_the_mean_model_of_disjoint_tasks_may_answer_with_any_class() -> None:
    """A sample whose owner is unknown may be of a class that client 0 does not have."""
    federation = with_two_tasks()
    options = {**FAST, "rounds": 30, "evaluate_every": 30}
    view = fedtailor.run("pfedc", federation, views="new", **options)["views"]["new"]
    y = federation.y[torch.cat(federation.test)]
    of_client_0 = float((y < 2).double().mean())
    assert view["paramavg"] > of_client_0 + 0.05
    # each class as its owners see it: both clients' classes are found
    assert view["logmean"] > of_client_0 + 0.05
    assert view["probmean"] > of_client_0 + 0.05


def print_run(method: str, folder: Path, **more: object) -> str:
    """What the screen shows of a finished run."""
    console = Console(width=200, file=io.StringIO(), record=True)
    result = fedtailor.run(method, with_external_data(), **{**FAST, **more})
    leaderboard.print_summary(console, result, folder)
    return console.export_text()


def test_what_the_screen_says(tmp_path: Path) -> None:
    shown = print_run("pfedc", tmp_path, views="external")
    assert "external: elsewhere" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("acc_task_all ")]
    # one of the clients has a single class: yes to all is right there
    assert line.rstrip().endswith("(having learnt nothing: 0.9083)")
    shown = print_run("fedcp", tmp_path)
    assert "PIR" in shown
    assert "test/s" not in shown


def test_remarks_are_in_the_result() -> None:
    """Also of a quiet run, which shows nothing."""
    remarks = fedtailor.run("cfl", digits(), **FAST)["remarks"]
    assert any("split" in remark for remark in remarks)
    assert fedtailor.run("fedavg", digits(), **FAST)["remarks"] == []


def test_exchanges_one_after_another_are_counted() -> None:
    """Fed3+2p: label counts, a chain of two clients in phase 1, all clients at once in phase 2."""
    assert fedtailor.run("fed3p2p", digits(), **FAST)["calls"] == 1 + 2 + 1
    assert fedtailor.run("fedavg", digits(), **FAST)["calls"] == 2
