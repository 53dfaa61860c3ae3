"""Files of ``torch.export`` (.pt2): a graph with its tensors, for torch alone."""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from fedtailor.core.errors import UserError, describe_error
from fedtailor.export.about import About
from fedtailor.storage.files import write_bytes

ABOUT = "fedtailor.json"  # in the file


def write_program(program: ExportedProgram, about: About, path: Path) -> None:
    """Write a traced model; ``torch.export.load`` reads it."""
    buffer = io.BytesIO()
    extra = {ABOUT: json.dumps(about.to_dict())}
    torch.export.save(program, buffer, extra_files=extra)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, buffer.getvalue())


def read_program(path: Path) -> nn.Module:
    """The model in a file, as a module."""
    try:
        return torch.export.load(path).module()
    except Exception as error:
        raise UserError(
            f"{path} cannot be read as a model: {describe_error(error)[:200]}"
        ) from None


def run_program(path: Path, x: Tensor) -> list[Tensor]:
    """The outputs of the model in a file."""
    with torch.no_grad():
        return list(read_program(path)(x))
