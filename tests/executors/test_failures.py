"""A bug in a method or a network ends a simulation, and says where it is."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import fedtailor
from fedtailor.core.errors import ClientError
from fedtailor.data import build_dataset
from fedtailor.executors.failures import describe_failure
from fedtailor.executors.visit import Look
from fedtailor.methods.fedavg import FedAvg, Up

OPTIONS = {"clients": 4, "limit": 200, "rounds": 2, "partition": "iid"}
EXECUTORS = ("sequential", "vmap", "processes")
THIS_FILE = str(Path(__file__))


def line_with(text: str) -> int:
    """The number of the first line of this file with that text."""
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


@dataclass(frozen=True)
class Typo(FedAvg):
    def local(self, c, down, keep):
        return Up(c.trian(c.loss, down.w)), keep


@dataclass(frozen=True)
class HalfTheClients(FedAvg):
    def local(self, c, down, keep):
        if c.n % 2:
            raise IndexError("only some clients")
        return super().local(c, down, keep)


@dataclass(frozen=True)
class WrongReturn(FedAvg):
    def local(self, c, down, keep):
        return Up(down.w)


@dataclass(frozen=True)
class WrongShape(FedAvg):
    def local(self, c, down, keep):
        return Up({name: x.flatten() for name, x in down.w.items()}), keep


@dataclass(frozen=True)
class NotScalar(FedAvg):
    def local(self, c, down, keep):
        return Up(c.train(self.no_scalar, down.w)), keep

    def no_scalar(self, w, batch):
        return w["head.bias"]


@dataclass(frozen=True)
class CannotPredict(FedAvg):
    def personal(self, c, down, keep):
        return {}["nothing"]


def fail(method, **options) -> ClientError:
    with pytest.raises(ClientError) as caught:
        fedtailor.run(method, **{**OPTIONS, **options})
    return caught.value


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_bug_names_client_function_file_and_line(executor):
    error = fail(Typo, executor=executor, workers=2)
    place = f"'local' failed in local, {THIS_FILE}, line {line_with('c.trian(c.loss')}"
    assert error.line.startswith("client ")
    assert place in error.line
    assert error.line.endswith("AttributeError: a client has no 'trian'")
    assert "return Up(c.trian(c.loss, down.w)), keep" in error.traceback
    assert "During handling" not in error.traceback


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (WrongReturn, "'local' failed in local, "),
        (WrongShape, "its upload's w/"),
        (NotScalar, "RuntimeError: grad can be implicitly created only for scalar"),
        (CannotPredict, "KeyError: 'nothing'"),
    ],
)
def test_other_bugs(method, says):
    error = fail(method, executor="sequential")
    assert says in error.line
    assert THIS_FILE in error.line


def test_a_network_with_a_bug_is_named():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(64, 10)

        def forward(self, x):
            if self.training:
                raise ValueError("only when it trains")
            return self.fc(x.flatten(1))

    error = fail(FedAvg, model=Broken(), last="fc")
    assert (
        f"forward, {THIS_FILE}, line {line_with('only when it trains')}" in error.line
    )


def test_tolerance_goes_on_and_the_result_names_who_was_lost(tmp_path):
    data = [(torch.randn(n, 3), torch.arange(n) % 2) for n in (40, 40, 42)]
    dataset = build_dataset(data, names=["oslo", "bergen", "tromsø"])
    options = {"rounds": 2, "validation": 0, "split": "merged:0.5", "tolerate": True}
    result = fedtailor.run(HalfTheClients, dataset, out=tmp_path / "run", **options)
    sizes = {client["name"]: client["n_train"] for client in result["clients"]}
    unlucky = [name for name, n in sizes.items() if n % 2]
    assert 0 < len(unlucky) < 3
    assert [entry["name"] for entry in result["lost"]] == unlucky
    assert all(entry["rounds"] == [1, 2] for entry in result["lost"])
    assert result["lost"][0]["why"] == "IndexError: only some clients"
    kept = json.loads((tmp_path / "run" / "result.json").read_text())
    assert kept["lost"] == result["lost"]
    model = fedtailor.load(tmp_path / "run", method=HalfTheClients).client("tromsø")
    assert model.k == 2
    with pytest.raises(fedtailor.UserError, match="did you mean bergen"):
        fedtailor.load(tmp_path / "run", method=HalfTheClients).client("bergn")


def test_a_training_that_diverges_is_no_bug(capsys):
    with pytest.raises(fedtailor.UserError, match="NaN or infinity"):
        fedtailor.run("fedavg", **OPTIONS, lr=1e30, max_silent_rounds=2)


def test_a_look_is_told_by_what_it_calls():
    reply = describe_failure(ValueError("x"), FedAvg(), Look.SCORE)
    assert reply.error == "ValueError: x"
    assert reply.place.startswith("'personal' failed in personal, ")
    assert "fedavg.py" in reply.place
