"""An exported folder, opened again: a model that needs no method and no network of this package."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from fedtailor.core.errors import UserError
from fedtailor.data.input_spec import BYTES, InputSpec, parse_input_spec
from fedtailor.export.folder import CONFIG, FORMAT, GRAPH, TENSORS
from fedtailor.export.program_file import read_program

# of the traced inputs
DTYPES = {"uint8": torch.uint8, "int64": torch.int64}


class ExportedModel:
    """A model from a folder that ``fedtailor export`` wrote.

    Attributes:
        config: what ``config.json`` says.
        name: the client whose model it is.
        inputs: what the model takes.
        labels: the classes in the order of the outputs.
    """

    def __init__(self, config: dict[str, Any], module: nn.Module) -> None:
        self.config = config
        self.name: str = config["client"]
        self.inputs: InputSpec = parse_input_spec(config["inputs"])
        self.labels = tuple(config["labels"])
        self._module = module

    def logits(self, x: np.ndarray | Tensor) -> Tensor:
        """Logits of an input, or of a batch of inputs."""
        return self._run(x)[0]

    def predict_proba(self, x: np.ndarray | Tensor) -> Tensor:
        """The probability of every class, for every input."""
        return self._run(x)[1]

    def predict(self, x: np.ndarray | Tensor) -> Tensor:
        """The class of every input."""
        return self.logits(x).argmax(-1)

    def module(self) -> nn.Module:
        """The model as a plain module: ``module(x)`` gives logits and probabilities."""
        return self._module

    def _run(self, x: np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        inputs = self.inputs.check(x)
        if self.inputs.dtype == BYTES and inputs.dtype != torch.uint8:
            raise UserError(
                "an exported model that was trained on bytes takes bytes (uint8),"
                " which it scales itself"
            )
        wanted = DTYPES.get(self.inputs.dtype, torch.float32)
        if not len(inputs):
            nothing = torch.zeros(0, len(self.labels))
            return nothing, nothing
        with torch.no_grad():
            logits, probabilities = self._module(inputs.to(wanted))
        return logits, probabilities


def is_model_folder(path: Path) -> bool:
    """Whether a folder holds an exported model."""
    return (path / CONFIG).is_file() and (path / GRAPH).is_file()


def load_model(path: str | Path) -> ExportedModel:
    """Open a folder that ``fedtailor export`` wrote.

    Examples:
        >>> model = fedtailor.load_model("models/cleveland")
        >>> model.predict_proba(x)
    """
    folder = Path(path)
    if not is_model_folder(folder):
        raise UserError(f"{folder} holds no exported model")
    config = _read_config(folder / CONFIG)
    module = read_program(folder / GRAPH)
    data = (folder / TENSORS).read_bytes()
    if hashlib.sha256(data).hexdigest() != config["sha256"]:
        raise UserError(f"{folder / TENSORS} is not the file that was exported")
    try:
        module.load_state_dict(load_safetensors(data), strict=False)
    except (SafetensorError, RuntimeError) as error:
        raise UserError(f"{folder / TENSORS} is damaged: {error}") from None
    return ExportedModel(config, module)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise UserError(f"{path} does not say format {FORMAT}")
    return config
