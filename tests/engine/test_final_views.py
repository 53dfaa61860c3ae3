"""Ways to look at the models at the end of a run, against sums done by hand from the models that were kept."""

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
from fedtailor.evaluation.ensemble import combine
from fedtailor.experiment.finished_run import FinishedRun
from fedtailor.report.leaderboard import print_summary
from fedtailor.testing.small_world import digits

FAST = {"rounds": 2, "save": "last", "executor": "sequential", "lr": 0.1}


def outside() -> Federation:
    """Six clients, and every other of their test samples, mirrored, as a set nobody owns."""
    f = digits()
    at = torch.cat(f.test)[::2]
    return replace(f, external={"elsewhere": (f.x[at].flip(-1), f.y[at])})


def test_three_ways_to_combine_by_hand() -> None:
    """Sample 0: two models lean to class 1, one is sure of 0; samples 1 and 2: two lean to 0, one is sure of 1."""
    first, other = [[0.2, 0.8], [0.2, 0.8], [0.999, 0.001]], [[0.01, 0.99], [0.6, 0.4], [0.6, 0.4]]
    models = [torch.tensor([first[i], other[i], other[i]]).log() for i in range(3)]
    got = combine(models, torch.zeros(3, dtype=torch.int64))
    assert got == {
        "accuracy": pytest.approx(1 / 3),
        "logmean": pytest.approx(1 / 3),
        "probmean": 0.0,
        "vote": pytest.approx(2 / 3),
        "n": 3,
    }
    assert combine([], torch.zeros(3))["accuracy"] is None


@pytest.mark.parametrize("method", ["local", "cd2pfed", "fedcp"])
def test_new_and_external_by_hand(method: str, tmp_path: Path) -> None:
    f = outside()
    result = fedtailor.run(method, f, out=tmp_path / "run", views="new,external", **FAST)
    loaded = FinishedRun(tmp_path / "run", data=f)
    models = [loaded.client(k) for k in range(f.clients)]
    common = torch.cat(f.test)
    for view, x, y in (
        (result["views"]["new"], f.x[common], f.y[common]),
        (result["views"]["external"]["elsewhere"], *f.external["elsewhere"]),
    ):
        logs = torch.stack([m.logits(x).log_softmax(-1) for m in models]).double()

        def right(scores: Tensor, y: Tensor = y) -> float:
            return pytest.approx(float((scores.argmax(-1) == y).double().mean()))

        votes = torch.nn.functional.one_hot(logs.argmax(-1), f.classes).sum(0)
        assert view["n"] == len(y) and view["accuracy"] == view["logmean"] == right(logs.sum(0))
        assert view["probmean"] == right(logs.exp().sum(0)) and view["vote"] == right(votes)
        mean = average([m.parameters for m in models], [1.0] * len(models))
        assert view["paramavg"] == right(replace(models[0], parameters=mean).logits(x))


def test_external_data_also_meet_the_global_model() -> None:
    f = outside()
    view = fedtailor.run("fedavg", f, views="external", **FAST)["views"]["external"]["elsewhere"]
    assert view["global"] == view["paramavg"] == view["logmean"], (
        "FedAvg's personal models are the global one"
    )
    assert (
        fedtailor.run("local", f, views="external", **FAST)["views"]["external"]["elsewhere"][
            "global"
        ]
        is None
    )


def test_the_mean_model_of_disjoint_tasks_may_answer_with_any_class() -> None:
    """Whose owner is unknown may be of any class, also of one that client 0 does not have."""
    f = digits((60, 60), classes=4, skew=False)
    parts = {
        name: [
            torch.cat(getattr(f, name))[
                torch.isin(f.y[torch.cat(getattr(f, name))], torch.tensor(two))
            ]
            for two in ((0, 1), (2, 3))
        ]
        for name in ("train", "val", "test")
    }
    f = replace(f, **parts)
    assert all(len(x) for xs in parts.values() for x in xs)
    view = fedtailor.run("pfedc", f, views="new", **FAST | {"rounds": 30, "evaluate_every": 30})[
        "views"
    ]["new"]
    first = float((f.y[torch.cat(f.test)] < 2).double().mean())
    assert view["paramavg"] > first + 0.05, "more than client 0's two classes"


def test_what_the_screen_says(tmp_path: Path) -> None:
    def told(method: str, **more: object) -> str:
        console = Console(width=200, file=io.StringIO(), record=True)
        print_summary(console, fedtailor.run(method, outside(), **FAST | more), tmp_path)
        return console.export_text()

    seen = told("pfedc", views="external")
    assert "external: elsewhere" in seen
    line = next(x for x in seen.splitlines() if x.startswith("acc_task_all "))
    assert line.rstrip().endswith("(having learnt nothing: 0.9000)")
    assert "PIR" in told("fedcp") and "test/s" not in told("fedcp")


def test_remarks_are_in_the_result() -> None:
    """Also of a quiet run, which says nothing on the screen."""
    result = fedtailor.run("cfl", digits(), **FAST)
    assert any("split" in remark for remark in result["remarks"])
    assert fedtailor.run("fedavg", digits(), **FAST)["remarks"] == []


def test_exchanges_one_after_another_are_counted() -> None:
    """Fed3+2p: label counts, a chain of two clients in phase 1, everybody at once in phase 2."""
    assert fedtailor.run("fed3p2p", digits(), **FAST)["calls"] == 1 + 2 + 1
    assert fedtailor.run("fedavg", digits(), **FAST)["calls"] == 2
