"""Exported models answer as the models do: every method, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedtailor
from fedtailor import methods
from fedtailor.data.federation import Federation
from fedtailor.experiment.finished_run import FinishedRun, PersonalModel
from fedtailor.storage.files import read_flat_file
from helpers import words

SMALL = {"clients": 3, "limit": 200, "rounds": 1, "executor": "sequential"}


def run_small(method: str, out: Path, data: object = "digits") -> FinishedRun:
    model = "linear" if method == "mocha" else None
    fedtailor.run(method, data, model, **SMALL, out=out)
    return fedtailor.load(out)


def draw_bytes(batch: int) -> Tensor:
    rng = torch.Generator().manual_seed(3)
    size = (batch, 1, 8, 8)
    return torch.randint(0, 256, size, generator=rng, dtype=torch.uint8)


def answer_onnx(path: Path, x: Tensor) -> list[Tensor]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path))
    assert [output.name for output in session.get_outputs()] == [
        "logits",
        "probabilities",
    ]
    found = session.run(None, {"input": x.numpy()})
    return [torch.from_numpy(output) for output in found]


def check_answers(model: PersonalModel, found: list[Tensor], x: Tensor) -> None:
    logits, probabilities = found
    assert torch.allclose(logits, model.logits(x), rtol=1e-5, atol=1e-5)
    assert torch.allclose(probabilities, model.predict_proba(x), atol=1e-5)


# those whose prediction, network or model is not simply the backbone's
SPECIAL = {"cd2pfed", "fedcp", "fedem", "fedproto", "fedrod", "gpfl", "pfedc"}


def mark_usual(fast: set[str]) -> list[object]:
    found = []
    for name in methods.names():
        marks = [] if name in fast else [pytest.mark.slow]
        found.append(pytest.param(name, marks=marks))
    return found


@pytest.mark.parametrize("method", mark_usual(SPECIAL))
def test_every_method_as_a_program(method: str, tmp_path: Path) -> None:
    model = run_small(method, tmp_path / "a").client(1)
    path = model.export(tmp_path / "out" / "model.pt2")
    module = torch.export.load(path).module()
    for batch in (1, 7):
        x = draw_bytes(batch)
        check_answers(model, list(module(x)), x)


@pytest.mark.parametrize("method", mark_usual({"fedcp"}))
def test_every_method_as_onnx(method: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = run_small(method, tmp_path / "a").client(1)
    path = model.export(tmp_path / "model.onnx")
    for batch in (1, 7):
        x = draw_bytes(batch)
        check_answers(model, answer_onnx(path, x), x)
    assert [file.name for file in tmp_path.glob("*.onnx*")] == ["model.onnx"]


def test_a_folder_is_a_model_with_a_card(tmp_path: Path) -> None:
    run = run_small("gpfl", tmp_path / "a")
    model = run.client(2)
    path = model.export(tmp_path / "mine")
    assert sorted(file.name for file in path.iterdir()) == [
        "README.md",
        "config.json",
        "graph.pt2",
        "model.safetensors",
    ]
    opened = fedtailor.load_model(path)
    x = draw_bytes(5)
    assert torch.equal(opened.predict_proba(x), model.predict_proba(x))
    assert torch.equal(opened.predict(x), model.predict(x))
    assert opened.predict_proba(x[:0]).shape == (0, 10)
    assert opened.labels == model.labels and opened.inputs == model.inputs

    config = json.loads((path / "config.json").read_text())
    assert config["method"] == "gpfl" and config["client"] == "2"
    assert config["run_hash"] == run.result["hash"]
    (client,) = [c for c in run.result["clients"] if c["id"] == 2]
    assert config["scores"]["accuracy"] == client["accuracy"]
    assert sum(config["examples"]) == client["n_train"]
    card = (path / "README.md").read_text()
    for said in ("# gpfl", "uint8 (batch, 1, 8, 8)", run.result["hash"], "accuracy"):
        assert said in card, said


def test_a_folder_without_the_packages_training_parts(tmp_path: Path) -> None:
    """Only torch is needed; and ``load_model`` imports no method."""
    import subprocess
    import sys

    model = run_small("fedrod", tmp_path / "a").client(0)
    path = model.export(tmp_path / "mine")
    x = draw_bytes(3)
    np.save(tmp_path / "x.npy", x.numpy())
    code = (
        "import sys, torch, numpy as np;"
        f"x = torch.from_numpy(np.load({str(tmp_path / 'x.npy')!r}));"
        f"m = torch.export.load({str(path / 'graph.pt2')!r}).module();"
        "print(m(x)[1].argmax(-1).tolist());"
        "assert 'fedtailor' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert done.stdout.strip() == str(model.predict(x).tolist()), done.stderr


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    path = run_small("fedavg", tmp_path / "a").client(0).export(tmp_path / "mine")
    with pytest.raises(fedtailor.UserError, match="holds no exported model"):
        fedtailor.load_model(tmp_path)
    tensors = path / "model.safetensors"
    kept = tensors.read_bytes()
    tensors.write_bytes(kept[:-1])
    with pytest.raises(fedtailor.UserError, match="not the file that was exported"):
        fedtailor.load_model(path)
    tensors.write_bytes(kept)
    (path / "config.json").write_text("[1")
    with pytest.raises(fedtailor.UserError, match=r"config\.json is no JSON"):
        fedtailor.load_model(path)


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    model = run_small("fedavg", tmp_path / "a").client(0)
    with pytest.raises(fedtailor.UserError, match=r"did you mean \.onnx\?"):
        model.export(tmp_path / "model.onxn")
    with pytest.raises(fedtailor.UserError, match=r"kind of model file .*'\.h5'"):
        model.export(tmp_path / "model.h5")
    with pytest.raises(fedtailor.UserError, match="is there already"):
        model.export(tmp_path / "a")
    with pytest.raises(fedtailor.UserError, match="holds no exported model"):
        model.export(tmp_path / "a", overwrite=True)
    assert (tmp_path / "a" / "result.json").exists()
    first = model.export(tmp_path / "mine")
    model.export(first, overwrite=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(fedtailor.UserError, match="is a file"):
        model.export(tmp_path / "file", overwrite=True)


class Untraceable(nn.Module):
    """A network whose computation depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Decider()
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))


class Decider(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        features = self.fc(x.flatten(1))
        if features.detach().sum() > 0:
            return features.relu()
        return features.tanh()


def test_what_cannot_be_traced_is_refused_by_name(tmp_path: Path) -> None:
    network = Untraceable()
    fedtailor.run("fedavg", "digits", network, **SMALL, out=tmp_path / "a")
    run = fedtailor.load(tmp_path / "a", model=network)
    with pytest.raises(fedtailor.UserError) as error:
        run.client(0).export(tmp_path / "model.pt2")
    assert "fedavg on Untraceable cannot be exported" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "model.pt2").exists()


def test_texts_and_doubles(tmp_path: Path) -> None:
    texts: Federation = words()["federation"]
    texts = Federation(**(vars(texts) | {"vocabulary": 17}))
    fedtailor.run(
        "fedper", texts, "fasttext", rounds=1, dtype="float64", out=tmp_path / "a"
    )
    model = fedtailor.load(tmp_path / "a").client(0)
    opened = fedtailor.load_model(model.export(tmp_path / "mine"))
    x = texts.x[:4]
    assert torch.allclose(opened.predict_proba(x), model.predict_proba(x), atol=1e-5)
    with pytest.raises(fedtailor.UserError, match="whole numbers from 0 to 16"):
        opened.predict(x + 17)


# ---------------------------------------------------------------- users' networks
class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.fc1 = nn.Linear(6 * 36, 16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv1(x)).relu().flatten(1)
        return self.fc(self.fc1(x).relu())


def make_chain() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 20),
        nn.ReLU(),
        nn.Linear(20, 12),
        nn.ReLU(),
        nn.Linear(12, 10),
    )


@pytest.mark.parametrize(
    ("method", "network", "last"),
    [
        ("ditto", Net(), "fc"),
        ("fedper", Net(), "fc"),
        ("fed3p2p", make_chain(), "5"),
    ],
)
def test_a_users_network_takes_the_personal_values(
    method: str, network: nn.Module, last: str, tmp_path: Path
) -> None:
    fedtailor.run(method, "digits", network, last=last, **SMALL, out=tmp_path / "a")
    model = fedtailor.load(tmp_path / "a", model=network, last=last).client(1)
    module = model.module()
    network.load_state_dict(module.state_dict(), strict=False)
    own = {name for name, _ in network.named_parameters()}
    assert set(module.state_dict()) >= own
    network.eval()
    x = torch.rand(5, 1, 8, 8)
    assert torch.allclose(network(x), module(x), atol=1e-6)

    # and back, also as a part of something else
    state = {name: value + 1 for name, value in module.state_dict().items()}
    module.load_state_dict(state)
    again = module.state_dict()
    assert all(torch.equal(again[name], value) for name, value in state.items())
    whole = nn.ModuleDict({"first": nn.Linear(2, 2), "model": module})
    assert {f"model.{name}" for name in state} < set(whole.state_dict())
    whole.load_state_dict(whole.state_dict())

    path = model.export(tmp_path / "mine")
    names = {name for name in read_names(path / "model.safetensors")}
    assert names >= own


def read_names(path: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def test_network_is_loaded_exactly_where_it_has_no_counters(tmp_path: Path) -> None:
    network = make_chain()
    fedtailor.run("fedavg", "digits", network, last="5", **SMALL, out=tmp_path / "a")
    run = fedtailor.load(tmp_path / "a", model=network, last="5")
    make_chain().load_state_dict(run.client(0).module().state_dict())
    kept = read_flat_file(tmp_path / "a/models/0.safetensors")
    assert set(kept) == set(run.client(0).parameters)


# ---------------------------------------------------------------- names
def test_clients_have_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["age,size,label,client"]
    for i in range(60):
        age, size = rng.normal(size=2)
        lines.append(f"{age},{size},{i % 2},{['north', 'south'][i // 30]}")
    (tmp_path / "two.csv").write_text("\n".join(lines))
    fedtailor.run("fedavg", str(tmp_path / "two.csv"), rounds=1, out=tmp_path / "a")
    run = fedtailor.load(tmp_path / "a")
    assert run.names() == ("north", "south")
    assert run.client("south").k == 1 and run.client("1").name == "south"
    assert run.client(0).inputs.columns == ("age", "size")
    with pytest.raises(fedtailor.UserError, match="did you mean south"):
        run.client("sout")
