"""A finished run, opened again: its result, and every client's personal model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor import methods
from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params
from fedtailor.data.federation import features
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.world import AnyMethod
from fedtailor.experiment.config import experiment
from fedtailor.experiment.data_outline import read_outline
from fedtailor.experiment.prepare import Own, prepare
from fedtailor.experiment.run_folder import MODELS, OUTLINE, Folder
from fedtailor.storage.files import read_flat_file
from fedtailor.storage.private_state import MemoryStore


@dataclass(frozen=True)
class Personal:
    """The personal model of one client."""

    k: int
    parameters: Params
    site: ClientRunner
    t: int

    def logits(self, x: np.ndarray | Tensor) -> Tensor:
        """Logits of a batch of inputs: bytes are scaled as in training, other numbers are taken as they are."""
        wanted = self.site.world.federation.shape
        given = torch.as_tensor(np.asarray(x)) if not isinstance(x, Tensor) else x
        if tuple(given.shape) == wanted:
            given = given[None]
        if tuple(given.shape[1:]) != wanted:
            raise UserError(
                f"the model takes inputs of shape {wanted}, not {tuple(given.shape[1:])}"
            )
        vocabulary = self.site.world.federation.vocabulary
        if vocabulary and (
            given.is_floating_point() or not bool(((given >= 0) & (given < vocabulary)).all())
        ):
            raise UserError(
                f"the model takes words by number, whole numbers from 0 to {vocabulary - 1}"
            )
        if given.is_floating_point() and not bool(torch.isfinite(given).all()):
            raise UserError("the input holds NaN or infinity")
        c = self.site.client(self.k, self.t, Purpose.EVALUATE, self.t)
        with torch_settings(self.site.world.dtype), torch.no_grad():
            return self.site.method.predict(c, self.parameters, features(given))

    def predict(self, x: np.ndarray | Tensor) -> Tensor:
        """The class of every input."""
        return self.logits(x).argmax(-1)


class Loaded:
    """A run's folder, read. Own data, method or network that were given in code must be given again."""

    def __init__(
        self,
        path: Path,
        *,
        data: Own | None = None,
        method: AnyMethod | type[AnyMethod] | None = None,
        model: nn.Module | None = None,
        last: str | None = None,
    ) -> None:
        self.folder = Folder(path)
        if not (path / "config.toml").exists():
            raise UserError(f"{path} holds no run")
        self.config = self.folder.options()
        self._own: dict[str, Any] = {"data": data, "method": method, "model": model, "last": last}

    @property
    def result(self) -> dict[str, Any]:
        """What the run found."""
        found = self.folder.result()
        if found is None:
            raise UserError(f"the run in {self.folder.path} is not finished: go on with --resume")
        return found

    @cached_property
    def _site(self) -> ClientRunner:
        options = experiment(self.config, str(self.folder.path / "config.toml"))
        if self._own["method"] is not None and not isinstance(self._own["method"], type):
            options = options.model_copy(update={"set": {}})
        elif self._own["method"] is None and not options.method.endswith(".py"):
            methods.find(options.method)
        own = self._own
        if own["data"] is None:  # a model needs no data to be used, only their outline
            own = own | {"data": read_outline(self.folder.path / OUTLINE)}
        return ClientRunner(prepare(options, check_data=False, **own).world, MemoryStore())

    def client(self, k: int) -> Personal:
        """The personal model of client k, from the round that ``result["models"]`` names."""
        path = self.folder.path / MODELS / f"{k}.safetensors"
        about = self.folder.models()
        if about is None:
            raise UserError(
                f"{self.folder.path} keeps no models (it was run with save=none, or is not finished)"
            )
        if not path.exists():
            there = sorted(int(p.stem) for p in path.parent.glob("*.safetensors"))
            raise UserError(
                f"no client {k} in {self.folder.path}; there are {there[0]} to {there[-1]}"
            )
        return Personal(k, read_flat_file(path), self._site, int(about["round"]))


def load(path: str | Path, **own: Any) -> Loaded:
    """Open a finished run."""
    return Loaded(Path(path), **own)
