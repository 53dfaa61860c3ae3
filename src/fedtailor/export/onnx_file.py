"""ONNX files, written by torch and run by onnxruntime; the door to these packages."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from fedtailor.core.errors import UserError, describe_error
from fedtailor.export.about import About, describe_inputs
from fedtailor.storage.files import write_bytes

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INPUT = "input"
OUTPUTS = ["logits", "probabilities"]
LARGEST = 2_000_000_000  # bytes that one file may have


def check_onnx() -> None:
    """Refuse where the packages are not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"writing .onnx needs {' and '.join(missing)}:"
            " pip install 'fedtailor[export]'"
        )


def write_onnx(program: ExportedProgram, about: About, path: Path, what: str) -> None:
    """Write a traced model with its tensors in the one file."""
    try:
        with redirect_stdout(io.StringIO()):  # the exporter reports its steps
            made = torch.onnx.export(
                program,
                dynamo=True,
                external_data=False,
                input_names=[INPUT],
                output_names=OUTPUTS,
                verbose=False,
            )
        assert made is not None
        model: Any = made.model_proto
    except Exception as error:
        raise UserError(
            f"{what} cannot be written as ONNX: {describe_error(error)[:200]};"
            " .pt2 or a folder may do"
        ) from None
    if model.ByteSize() > LARGEST:
        raise UserError(f"{what} is too large for one .onnx file; write a .pt2")
    _add_about(model, about)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, model.SerializeToString())


def _add_about(model: Any, about: About) -> None:
    inputs = describe_inputs(about.inputs)
    model.doc_string = f"{about.method} for client {about.client}. Input: {inputs}."
    for key, value in about.to_dict().items():
        entry = model.metadata_props.add()
        entry.key = key
        entry.value = value if isinstance(value, str) else json.dumps(value)


def run_onnx(path: Path, x: Tensor) -> list[Tensor]:
    """The outputs of the model in a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )
    found = session.run(OUTPUTS, {INPUT: x.numpy()})
    return [torch.from_numpy(output) for output in found]
