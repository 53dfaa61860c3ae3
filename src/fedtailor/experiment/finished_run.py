"""A finished run, opened again: its result, and every client's personal model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor.client import Client
from fedtailor.core.errors import UserError, unknown
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params
from fedtailor.data.federation import Federation, features
from fedtailor.data.input_spec import InputSpec, make_input_spec
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.looks import pooled_client
from fedtailor.executors.world import AnyMethod
from fedtailor.experiment.config import Experiment, make_experiment
from fedtailor.experiment.data_outline import read_outline
from fedtailor.experiment.personal_module import PersonalModule, make_recipe
from fedtailor.experiment.prepare import OwnData, prepare, prepare_federation
from fedtailor.experiment.run_about import Session, read_sessions
from fedtailor.experiment.run_folder import (
    CONFIG,
    JOURNAL,
    MODELS,
    OUTLINE,
    SHARED,
    RunFolder,
    read_journal,
)
from fedtailor.experiment.shown import describe_rows, html_table
from fedtailor.export import check_target, export_model
from fedtailor.export.about import About
from fedtailor.export.traceable import Traceable
from fedtailor.models.constants import set_constants
from fedtailor.storage.files import read_flat_file
from fedtailor.storage.private_state import MemoryStore
from fedtailor.training.task import Decided

DECIDED = ("threshold",)  # measures that are choices

Part = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Origin:
    """What the run says of a model."""

    method: str
    network: str
    run_hash: str = ""
    hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PersonalModel:
    """The personal model of client ``k`` after round ``t``, or the global model of that round.

    Inputs are one example or a batch, NumPy or PyTorch. Where the model was trained on bytes, bytes
    are scaled as in training; other numbers are taken as they are.
    """

    k: int | None  # None: the global model
    parameters: Params
    runner: ClientRunner
    t: int
    origin: Origin
    # on validation data: a threshold
    decided: Decided = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The client's name, or its number where it has none."""
        if self.k is None:
            return "shared"
        owners = self.runner.world.federation.owners
        return owners[self.k] if owners else str(self.k)

    @property
    def inputs(self) -> InputSpec:
        """What the model takes."""
        return make_input_spec(self.runner.world.federation, self.k)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes; their numbers where they have none."""
        federation = self.runner.world.federation
        numbers = tuple(map(str, range(federation.classes)))
        return federation.labels or numbers

    def rows(self) -> list[tuple[str, str]]:
        """What it is, as names and texts."""
        world = self.runner.world
        count = sum(value.numel() for value in self.parameters.values())
        owner = "all clients" if self.k is None else f"client {self.k}"
        shape = " x ".join(map(str, world.federation.shape))
        return [
            ("model of", owner),
            ("method", type(world.method).__name__),
            ("after round", str(self.t)),
            ("values", f"{count:,}"),
            ("input", shape),
            ("classes", str(world.federation.classes)),
        ]

    def __repr__(self) -> str:
        return describe_rows("PersonalModel", self.rows())

    def _repr_html_(self) -> str:
        return html_table(self.rows())

    def module(self) -> PersonalModule:
        """The model as a plain module: its output is the method's prediction, as logits.

        The tensors of its ``state_dict`` are named as in the user's own network, if it is one.
        """
        owner = [] if self.k is None else [self.k]
        rng = self.runner.rng(Purpose.EVALUATE, self.t, *owner)
        recipe = make_recipe(self.runner.world, rng, self.t)
        module = PersonalModule(recipe, self.parameters, self._class_counts())
        return module.to(self.runner.device)

    def logits(self, x: np.ndarray | Tensor) -> Tensor:
        """Logits of a batch of inputs."""
        inputs = self._check_inputs(x)
        client = self._client()
        with torch_settings(self.runner.world.dtype), torch.no_grad():
            return self.runner.method.predict(client, self.parameters, features(inputs))

    def predict_proba(self, x: np.ndarray | Tensor) -> Tensor:
        """The probability of every class, for every input; of several labels, of each.

        Raises:
            UserError: the task has no classes.
        """
        task = self.runner.world.task
        if task.has_classes:
            return self.logits(x).softmax(-1)
        if task.name == "multilabel":
            return self.logits(x).sigmoid()
        raise UserError(
            f"{task.name} has no classes, and so no probabilities; take predict"
        )

    def predict(self, x: np.ndarray | Tensor) -> Tensor:
        """The class of every input, or its value; of survival, the logarithm of its risk."""
        return self.runner.world.task.answer(self.logits(x), self.decided)

    def features(self, x: np.ndarray | Tensor) -> Tensor:
        """The representation of every input before the head.

        Raises:
            UserError: the network has none.
        """
        inputs = self._check_inputs(x)
        with torch.no_grad():
            return self.module().features(inputs)

    def export(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model to a file or folder, as its name's ending says; gives the path.

        Args:
            path: ``model.onnx`` (ONNX, for onnxruntime and others), ``model.pt2`` (for
                ``torch.export.load``), or without ending: a folder of tensors, graph, config.json
                and a card, which ``fedtailor.load_model`` opens.
            overwrite: replace an earlier export.
        """
        target = Path(path)
        check_target(target, overwrite=overwrite)
        world = self.runner.world
        client = self._client()

        def predict(w: Params, x: Tensor) -> Tensor:
            return world.method.predict(client, w, features(x))

        model = Traceable(predict, self.parameters, self.module().own_name)
        about = self._describe()
        return export_model(model, about, target, world.dtype, overwrite=overwrite)

    def _describe(self) -> About:
        """What is said about the model where it is exported."""
        world = self.runner.world
        return About(
            client=self.name,
            inputs=self.inputs,
            labels=self.labels,
            method=self.origin.method,
            hyper_parameters=self.origin.hyper_parameters,
            network=self.origin.network,
            data=world.federation.name,
            round=self.t,
            examples=tuple(self._class_counts().tolist()),
            scores=self.origin.scores,
            run_hash=self.origin.run_hash,
        )

    def _client(self) -> Client:
        """Whose prediction it is; the global model's client has everybody's labels."""
        if self.k is None:
            return pooled_client(self.runner, self.t)
        return self.runner.client(self.k, self.t, Purpose.EVALUATE, self.t)

    def _class_counts(self) -> Tensor:
        """Number of training examples of every class."""
        federation = self.runner.world.federation
        if federation.target != "classes":
            return torch.zeros(federation.classes, dtype=torch.int64)
        owners = range(federation.clients) if self.k is None else [self.k]
        labels = [federation.y[federation.train[k]] for k in owners]
        return torch.bincount(torch.cat(labels), minlength=federation.classes)

    def _check_inputs(self, x: np.ndarray | Tensor) -> Tensor:
        """The inputs as a batch; refuses those that the network cannot take."""
        return self.inputs.check(x).to(self.runner.device)


class FinishedRun:
    """The folder of a run, opened.

    Data, method or network that were given to the run in code must be given again.
    """

    def __init__(
        self,
        path: Path,
        *,
        data: OwnData | None = None,
        method: AnyMethod | type[AnyMethod] | None = None,
        model: nn.Module | None = None,
        last: str | None = None,
    ) -> None:
        self.folder = RunFolder(path)
        if not (path / CONFIG).exists():
            raise UserError(f"{path} holds no run")
        self.config = self.folder.read_config()
        self._data = data
        self._method = method
        self._model = model
        self._last = last

    def rows(self) -> list[tuple[str, str]]:
        """What it is, as names and texts."""
        options = make_experiment(self.config)
        rows = [
            ("run", f"{options.title} on {options.data}, seed {options.seed}"),
            ("folder", str(self.folder.path)),
        ]
        result = self.folder.read_result()
        if result is None:
            return [*rows, ("state", "not finished: go on with --resume")]
        measure = result["measure"]["name"]
        quoted = result[measure]
        when = "last round"
        value = quoted["last"]
        if quoted["best"] is not None:
            when = f"round {quoted['best_round']}, chosen by validation data"
            value = quoted["best"]
        if value is not None:
            rows.append((measure, f"{value:.4f} ({when})"))
        rows.append(("rounds", str(result["rounds"])))
        about = self.folder.kept_models()
        kept = "none" if about is None else f"of round {about['round']}"
        rows.append(("models", kept))
        for session in self.about[-1:]:
            rows.append(("version", session["version"]))
            rows.append(("command", session["command"]))
            machine = session["machine"]
            rows.append(("machine", f"{machine['host']}, {machine['processor']}"))
            rows.append(("time", f"{session['started']} to {session['ended']}"))
        return rows

    def __repr__(self) -> str:
        return describe_rows("FinishedRun", self.rows())

    def _repr_html_(self) -> str:
        return html_table(self.rows())

    @property
    def about(self) -> list[Session]:
        """Version, command, machine and times of every start of the run."""
        return read_sessions(self.folder.path)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The records of all rounds."""
        path = self.folder.path / JOURNAL
        return read_journal(path) if path.exists() else []

    @property
    def result(self) -> dict[str, Any]:
        """The run's result, as in ``result.json``."""
        found = self.folder.read_result()
        if found is None:
            raise UserError(
                f"the run in {self.folder.path} is not finished: go on with --resume"
            )
        return found

    def client(self, which: int | str) -> PersonalModel:
        """A client's personal model, from the round that ``result["models"]`` names.

        Args:
            which: the client's number, or its name (``"cleveland"``).
        """
        t = self._kept_round()
        k = self._find_client(which)
        path = self.folder.path / MODELS / f"{k}.safetensors"
        if not path.exists():
            raise UserError(
                f"no client {k} in {self.folder.path}; {self._list_clients()}"
            )
        origin = self._describe_origin(k)
        return PersonalModel(
            k, read_flat_file(path), self._runner, t, origin, self._decided
        )

    def shared(self) -> PersonalModel:
        """The global model of the same round."""
        t = self._kept_round()
        path = self.folder.path / MODELS / SHARED
        if not path.exists():
            name = self.config["method"]
            raise UserError(f"{name} has no global model; take .client(k)")
        origin = self._describe_origin(None)
        return PersonalModel(
            None, read_flat_file(path), self._runner, t, origin, self._decided
        )

    def clients(self) -> list[int]:
        """The clients whose personal models are kept."""
        paths = (self.folder.path / MODELS).glob("*.safetensors")
        return sorted(int(path.stem) for path in paths if path.name != SHARED)

    @cached_property
    def federation(self) -> Federation:
        """The run's data, divided among its clients as they were."""
        federation, _ = prepare_federation(self._options(), self._data)
        kept = self.result["partition"]
        if federation.hash != kept:
            raise UserError(
                f"these are not the data of the run in {self.folder.path}"
                f" (partition {federation.hash}, not {kept})"
            )
        return federation

    def test_data(self, k: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of client k's test data."""
        return self.data(k, "test")

    def data(self, k: int, part: Part = "test") -> tuple[Tensor, Tensor]:
        """Inputs and labels of client k's data: train, val or test."""
        federation = self.federation
        if not 0 <= k < federation.clients:
            last = federation.clients - 1
            raise UserError(
                f"no client {k} in {self.folder.path}; there are 0 to {last}"
            )
        parts = {
            "train": federation.train,
            "val": federation.val,
            "test": federation.test,
        }
        index = parts[part][k]
        rows = index if federation.row is None else federation.row[index]
        return federation.x[rows], federation.y[index]

    def names(self) -> tuple[str, ...]:
        """The names of all clients, by number; empty where they have none."""
        return self._runner.world.federation.owners

    def _find_client(self, which: int | str) -> int:
        """The number of a client that is given by name or number."""
        if isinstance(which, int):
            return which
        names = self.names()
        if which in names:
            return names.index(which)
        if which.isdecimal():
            return int(which)
        there = names or [str(k) for k in self.clients()]
        raise unknown(f"client in {self.folder.path} named", which, there)

    def _kept_round(self) -> int:
        """The round of the kept models."""
        about = self.folder.kept_models()
        if about is None:
            raise UserError(
                f"{self.folder.path} keeps no models"
                " (it was run with save=none, or is not finished)"
            )
        return int(about["round"])

    @property
    def _decided(self) -> Decided:
        """What validation data decided in the chosen round."""
        result = self.folder.read_result() or {}
        measures = result.get("measures", {})
        return {name: measures[name] for name in DECIDED if name in measures}

    def _describe_origin(self, k: int | None) -> Origin:
        """What this run says of a model."""
        result = self.folder.read_result() or {}
        return Origin(
            method=str(self.config["method"]),
            network=str(self.config.get("model") or "own network"),
            run_hash=str(result.get("hash", "")),
            hyper_parameters=self.config.get("set", {}),
            scores=_find_scores(result, k),
        )

    def _list_clients(self) -> str:
        there = self.clients()
        if not there:
            return "the personal models of a deployed run are at its sites"
        return f"there are {there[0]} to {there[-1]}"

    @cached_property
    def _runner(self) -> ClientRunner:
        data = self._data
        # a model can be used without data, but not without their shape
        if data is None:
            data = read_outline(self.folder.path / OUTLINE)
        setup = prepare(
            self._options(),
            method=self._method,
            data=data,
            model=self._model,
            last=self._last,
            check_data=False,
        )
        set_constants(setup.world.backbone, self.folder.read_constants())
        return ClientRunner(setup.world, MemoryStore())

    def _options(self) -> Experiment:
        self.folder.check_format()
        options = make_experiment(self.config, str(self.folder.path / CONFIG))
        is_instance = self._method is not None and not isinstance(self._method, type)
        if is_instance:  # it has its hyper-parameters already
            options = options.model_copy(update={"set": {}})
        return options


def _find_scores(result: dict[str, Any], k: int | None) -> dict[str, float]:
    """A client's measures on its test data in the round whose models are kept."""
    if result.get("models", {}).get("which") != "best":
        return {}
    for client in result.get("clients", []):
        if client.get("id") == k:
            numbers = {name: v for name, v in client.items() if isinstance(v, float)}
            return {**numbers, "test examples": float(client["n_test"])}
    return {}


def load(path: str | Path, **own: Any) -> FinishedRun:
    """Open a finished run; ``own`` are data, method and model that were given in code."""
    return FinishedRun(Path(path), **own)
