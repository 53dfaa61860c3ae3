"""A client's model as a plain module, of every method, and the global model of a run."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fedtailor
from fedtailor import methods
from fedtailor.experiment.finished_run import FinishedRun
from fedtailor.storage.files import read_flat_file

SMALL = {"clients": 3, "limit": 200, "rounds": 1, "executor": "sequential"}
NO_FEATURES = {"fedem", "mocha"}
WITH_GLOBAL_MODEL = {
    "cd2pfed",
    "ditto",
    "fed3p2p",
    "fedavg",
    "feddyn",
    "fedma",
    "fedphp",
    "fedprox",
    "fedrod",
    "perfedavg",
    "pfedma",
    "pfedme",
}


def run_small(method: str, out: Path, **options: object) -> FinishedRun:
    model = "linear" if method == "mocha" else None
    fedtailor.run(method, "digits", model, **SMALL | options, out=out)
    return fedtailor.load(out)


# those whose prediction, network or model is not simply the backbone's
SPECIAL = {
    "cd2pfed",
    "fed3p2p",
    "fedcp",
    "fedem",
    "fedma",
    "fedproto",
    "fedrod",
    "gpfl",
    "mocha",
    "pfedc",
}


def mark_usual(method: str) -> object:
    marks = [] if method in SPECIAL else [pytest.mark.slow]
    return pytest.param(method, marks=marks)


@pytest.mark.parametrize("method", [mark_usual(name) for name in methods.names()])
def test_a_module_predicts_what_the_method_predicts(
    method: str, tmp_path: Path
) -> None:
    run = run_small(method, tmp_path / "a")
    x, _ = run.test_data(1)
    model = run.client(1)
    module = model.module()
    assert isinstance(module, nn.Module) and not module.training
    expected = model.logits(x)
    assert torch.equal(module(x), expected)
    assert torch.equal(model.predict_proba(x), expected.softmax(-1))
    assert set(module.state_dict()) == set(model.parameters)
    for name, value in module.state_dict().items():
        assert type(value) is torch.Tensor
        assert torch.equal(value, model.parameters[name])

    # copied, pickled, and filled from a state_dict
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for other in (copy.deepcopy(module), torch.load(file, weights_only=False)):
        assert torch.equal(other(x), expected)
    other = run.client(0).module()
    other_clients = other(x)
    other.load_state_dict(module.state_dict())
    if method != "pfedc":  # whose answers depend on which classes a client has
        assert torch.equal(other(x), expected)
    assert other_clients.shape == expected.shape

    if method in NO_FEATURES:
        name = methods.find(method).__name__
        with pytest.raises(fedtailor.UserError, match=f"{name} .*no representation"):
            model.features(x)
    else:
        assert model.features(x).shape[0] == len(x)
        assert model.features(x).dim() == 2

    if method in WITH_GLOBAL_MODEL:
        shared = run.shared()
        assert torch.equal(shared.module()(x), shared.logits(x))
    else:
        with pytest.raises(fedtailor.UserError, match=f"{method} has no global model"):
            run.shared()


def test_features_stand_before_the_head(tmp_path: Path) -> None:
    for method in ("fedper", "fed3p2p", "fedma"):
        model = run_small(method, tmp_path / method).client(2)
        x = torch.rand(5, 1, 8, 8)
        head = model.module().head
        assert torch.allclose(head(model.features(x)), model.logits(x), atol=1e-6)


def test_a_module_can_be_trained_further(tmp_path: Path) -> None:
    run = run_small("fedem", tmp_path / "a")
    x, y = run.test_data(0)
    module = run.client(0).module().train()
    before = nn.functional.cross_entropy(module(x), y)
    optimiser = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(5):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimiser.step()
    assert nn.functional.cross_entropy(module(x), y) < before
    trained = copy.deepcopy(module)
    assert trained.training and torch.equal(trained(x), module(x))


def test_a_module_holds_no_data(tmp_path: Path) -> None:
    federation = run_small("pfedc", tmp_path / "a").federation
    secret = torch.full_like(federation.x, 77)
    run = fedtailor.load(tmp_path / "a", data=replace(federation, x=secret))
    file = io.BytesIO()
    torch.save(run.client(0).module(), file)
    assert bytes([77] * 64) not in file.getvalue()


def test_the_global_model_is_of_the_round_that_was_chosen(tmp_path: Path) -> None:
    out = tmp_path / "a"
    run = run_small("fedavg", out, rounds=6, lr=0.5, save="best")
    best = run.result["models"]["round"]
    assert best == run.result["accuracy"]["best_round"]
    assert best < 6, "the last round is the best: this shows nothing"
    # FedAvg's personal models are the global one
    personal = read_flat_file(out / "models/1.safetensors")
    for name, value in run.shared().parameters.items():
        assert torch.equal(value, personal[name])


def test_data_of_another_run_are_refused(tmp_path: Path) -> None:
    run = run_small("fedavg", tmp_path / "a")
    other = run_small("fedavg", tmp_path / "b", seed=1).federation
    with pytest.raises(fedtailor.UserError, match="not the data of the run"):
        fedtailor.load(tmp_path / "a", data=other).test_data(0)
    with pytest.raises(fedtailor.UserError, match=r"no client 9 .*there are 0 to 2"):
        run.client(9)
    with pytest.raises(fedtailor.UserError, match=r"no client 9 .*there are 0 to 2"):
        run.test_data(9)
