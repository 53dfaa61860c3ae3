"""A finished run, opened again: its result, and every client's personal model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params
from fedtailor.data.federation import features
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.world import AnyMethod
from fedtailor.experiment.config import Experiment, make_experiment
from fedtailor.experiment.data_outline import read_outline
from fedtailor.experiment.prepare import OwnData, prepare
from fedtailor.experiment.run_folder import CONFIG, MODELS, OUTLINE, RunFolder
from fedtailor.storage.files import read_flat_file
from fedtailor.storage.private_state import MemoryStore


@dataclass(frozen=True)
class PersonalModel:
    """The personal model of client ``k`` after round ``t``."""

    k: int
    parameters: Params
    runner: ClientRunner
    t: int

    def logits(self, x: np.ndarray | Tensor) -> Tensor:
        """Logits of a batch of inputs.

        Bytes are scaled as in training; other numbers are taken as they are.
        """
        inputs = self._check_inputs(x)
        client = self.runner.client(self.k, self.t, Purpose.EVALUATE, self.t)
        with torch_settings(self.runner.world.dtype), torch.no_grad():
            return self.runner.method.predict(client, self.parameters, features(inputs))

    def predict(self, x: np.ndarray | Tensor) -> Tensor:
        """The class of every input."""
        return self.logits(x).argmax(-1)

    def _check_inputs(self, x: np.ndarray | Tensor) -> Tensor:
        """The inputs as a batch; refuses those that the network cannot take."""
        inputs = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
        shape = self.runner.world.federation.shape
        if tuple(inputs.shape) == shape:
            inputs = inputs[None]
        if tuple(inputs.shape[1:]) != shape:
            raise UserError(
                f"the model takes inputs of shape {shape}, not {tuple(inputs.shape[1:])}"
            )
        vocabulary = self.runner.world.federation.vocabulary
        if vocabulary and not _are_words(inputs, vocabulary):
            raise UserError(
                f"the model takes words by number, whole numbers from 0 to {vocabulary - 1}"
            )
        if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
            raise UserError("the input holds NaN or infinity")
        return inputs


def _are_words(inputs: Tensor, vocabulary: int) -> bool:
    if inputs.is_floating_point():
        return False
    known = (inputs >= 0) & (inputs < vocabulary)
    return bool(known.all())


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

    @property
    def result(self) -> dict[str, Any]:
        """The run's result, as in ``result.json``."""
        found = self.folder.read_result()
        if found is None:
            raise UserError(
                f"the run in {self.folder.path} is not finished: go on with --resume"
            )
        return found

    def client(self, k: int) -> PersonalModel:
        """The personal model of client k, from the round that ``result["models"]`` names."""
        about = self.folder.kept_models()
        if about is None:
            raise UserError(
                f"{self.folder.path} keeps no models"
                " (it was run with save=none, or is not finished)"
            )
        path = self.folder.path / MODELS / f"{k}.safetensors"
        if not path.exists():
            there = sorted(int(p.stem) for p in path.parent.glob("*.safetensors"))
            raise UserError(
                f"no client {k} in {self.folder.path}; there are {there[0]} to {there[-1]}"
            )
        return PersonalModel(k, read_flat_file(path), self._runner, int(about["round"]))

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
        return ClientRunner(setup.world, MemoryStore())

    def _options(self) -> Experiment:
        self.folder.check_format()
        options = make_experiment(self.config, str(self.folder.path / CONFIG))
        is_instance = self._method is not None and not isinstance(self._method, type)
        if is_instance:  # it has its hyper-parameters already
            options = options.model_copy(update={"set": {}})
        return options


def load(path: str | Path, **own: Any) -> FinishedRun:
    """Open a finished run; ``own`` are data, method and model that were given in code."""
    return FinishedRun(Path(path), **own)
