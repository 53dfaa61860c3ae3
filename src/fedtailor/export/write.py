"""Writing a model to a file or a folder, and comparing what was written with the model."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from fedtailor.core.errors import UserError, describe_error, unknown
from fedtailor.core.torch_settings import torch_settings
from fedtailor.export.about import About
from fedtailor.export.exported_model import is_model_folder
from fedtailor.export.folder import GRAPH, write_folder
from fedtailor.export.onnx_file import check_onnx, run_onnx, write_onnx
from fedtailor.export.program_file import run_program, write_program
from fedtailor.export.traceable import Traceable, draw_inputs

ONNX = ".onnx"
PROGRAM = ".pt2"
# of probabilities, and of logits by the largest
TOLERANCE = 1e-5
TRACED_BATCH = 3  # any above 1, which torch would take for a constant


def check_target(path: Path, *, overwrite: bool = False) -> None:
    """Refuse a path that says no known format, or at which something is already."""
    if path.suffix not in (ONNX, PROGRAM, ""):
        there = [ONNX, PROGRAM, "no ending for a folder"]
        raise unknown("kind of model file ending in", path.suffix, there)
    if path.suffix == ONNX:
        check_onnx()
    if not path.exists():
        return
    if not overwrite:
        raise UserError(f"{path} is there already; choose another, or --overwrite")
    if path.is_dir() and not is_model_folder(path):
        raise UserError(f"{path} is a folder that holds no exported model")
    if path.is_dir() and path.suffix:
        raise UserError(f"{path} is a folder; {path.suffix} is written as a file")
    if path.is_file() and not path.suffix:
        raise UserError(f"{path} is a file; without an ending, a folder is written")


def export_model(
    model: Traceable,
    about: About,
    path: Path,
    dtype: torch.dtype = torch.float32,
    *,
    overwrite: bool = False,
) -> Path:
    """Write the model as the path's ending says, and check that it answers the same.

    ``.onnx``: ONNX; ``.pt2``: ``torch.export``; no ending: a folder. The number of inputs of a call
    is free in all of them.
    """
    check_target(path, overwrite=overwrite)
    what = f"{about.method} on {about.network}"
    with _quiet(), torch_settings(dtype):
        program = _trace(model, about, what)
        if path.suffix == ONNX:
            write_onnx(program, about, path, what)
            run: Callable[[Path, Tensor], list[Tensor]] = run_onnx
        elif path.suffix == PROGRAM:
            write_program(program, about, path)
            run = run_program
        else:
            write_folder(program, about, path)
            run = _run_folder
        _compare(model, about, path, run)
    return path


def _run_folder(path: Path, x: Tensor) -> list[Tensor]:
    return run_program(path / GRAPH, x)


def _trace(model: Traceable, about: About, what: str) -> ExportedProgram:
    """The model's computation as a graph, for any number of inputs."""
    x = _draw(about, TRACED_BATCH)
    try:
        with torch.no_grad():
            return torch.export.export(
                model, (x,), dynamic_shapes=({0: Dim("batch", min=1)},)
            )
    except Exception as error:
        raise UserError(
            f"{what} cannot be exported, its computation cannot be traced:"
            f" {shorten(error)}; .module() gives it as a module of PyTorch"
        ) from None


def _compare(
    model: Traceable,
    about: About,
    path: Path,
    run: Callable[[Path, Tensor], list[Tensor]],
) -> None:
    """Remove what was written, and say so, if it does not answer as the model does."""
    for batch in (1, 5):
        x = _draw(about, batch)
        with torch.no_grad():
            expected = model(x)
        try:
            found = run(path, x)
            gap = max(map(measure_gap, found, expected))
        except Exception as error:
            _remove(path)
            raise UserError(
                f"{path} was written but does not run: {shorten(error)}"
            ) from None
        if not gap <= TOLERANCE:
            _remove(path)
            raise UserError(
                f"{path} would answer otherwise than the model, by {gap:.1e}:"
                " it is not kept"
            )


def measure_gap(found: Tensor, expected: Tensor) -> float:
    """The largest difference, by the largest value where that is above 1."""
    if found.shape != expected.shape:
        return float("inf")
    finite = expected.isfinite()
    if not torch.equal(found[~finite], expected[~finite]):
        return float("inf")
    if not finite.any():
        return 0.0
    largest = expected[finite].abs().max().clamp(min=1)
    gap = (found[finite] - expected[finite]).abs().max()
    return float(gap / largest)


def _draw(about: About, batch: int) -> Tensor:
    spec = about.inputs
    return draw_inputs(spec.shape, spec.dtype, spec.vocabulary, batch)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def shorten(error: Exception) -> str:
    """The first sentence of an error of torch, which tells much."""
    return describe_error(error)[:200]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' warnings, which speak of their own insides."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
