"""The models of a run's folder, or the one in an exported folder, asked for by client."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.input_spec import InputSpec
from fedtailor.experiment.finished_run import FinishedRun, load
from fedtailor.export import is_model_folder, load_model

SHARED = "shared"  # the name of the global model


class Model(Protocol):
    """What predictions are made with: a personal model, or an exported one."""

    @property
    def name(self) -> str:
        """The client whose model it is."""
        ...

    @property
    def inputs(self) -> InputSpec:
        """What the model takes."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes in the order of the outputs."""
        ...

    def predict_proba(self, x: Any) -> Tensor:
        """The probability of every class, for every input."""
        ...


class Models:
    """All models in one folder, opened when they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[str, Model] = {}
        self._run: FinishedRun | None = None
        if is_model_folder(path):
            model = load_model(path)
            self._open[model.name] = model
        else:
            self._run = load(path)

    def names(self) -> list[str]:
        """The clients whose models are there."""
        if self._run is None:
            return list(self._open)
        owners = self._run.names()
        numbers = self._run.clients()
        return [owners[k] if owners else str(k) for k in numbers]

    def find(self, client: str | None) -> Model:
        """The model of a client, by name or number; ``shared`` is the global one."""
        if client is None:
            client = self._only_client()
        if client not in self._open:
            self._open[client] = self._load(client)
        return self._open[client]

    def _only_client(self) -> str:
        names = self.names()
        if len(names) == 1:
            return names[0]
        raise UserError(
            f"{self.path} holds models of {len(names)} clients: say which, one of"
            f" {', '.join(names[:20])}"
        )

    def _load(self, client: str) -> Model:
        if self._run is None:
            raise UserError(
                f"no client '{client}'; {self.path} is the model of {self.names()[0]}"
            )
        if client == SHARED and client not in self._run.names():
            return self._run.shared()
        return self._run.client(client)
