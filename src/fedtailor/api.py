"""``fedtailor.run``: an experiment in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fedtailor.data.federation import Dataset, Federation
from fedtailor.engine.observer import Observer
from fedtailor.engine.start import run_experiment
from fedtailor.executors.world import AnyMethod
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import OwnData, prepare
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.methods import name_of
from fedtailor.report.console import make_console
from fedtailor.report.figures import Figures


def run(
    method: str | AnyMethod | type[AnyMethod] = "fedavg",
    data: str | Path | OwnData = "digits",
    model: str | nn.Module | None = None,
    *,
    last: str | None = None,
    external: Mapping[str, tuple[Any, Any]] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    quiet: bool = True,
    observers: Sequence[Observer] = (),
    **options: Any,
) -> dict[str, Any]:
    """Run an experiment and give its result.

    Args:
        method: a name, a file, a class or an instance.
        data: a name, a path, a Dataset, a Federation, or one ``(x, y)`` per client.
        model: a name, a module with ``.base`` and ``.head``, or any module with ``last``.
        last: name of the module's last layer, where it has no ``.base`` and ``.head``.
        external: sets of samples that no client owns, ``{"name": (x, y)}``, for
            ``views="external"``.
        out: folder to write the run to; nothing is kept unless it is given.
        resume: continue the run in ``out``.
        quiet: show no progress.
        observers: further observers of the run, for example trackers.
        options: those of ``fedtailor run``, for example ``rounds=50, partition="dirichlet:0.1"``.

    Returns:
        What ``result.json`` holds.

    Examples:
        >>> result = fedtailor.run("fedper", "digits", rounds=20)
        >>> result["accuracy"]["best"]
    """
    own: dict[str, Any] = {"last": last, "external": external}
    if not isinstance(method, str):
        own["method"] = method
        method = name_of(method if isinstance(method, type) else type(method))
    if not isinstance(data, str | Path):
        own["data"] = data
        data = data.name if isinstance(data, Dataset | Federation) else "own"
    if isinstance(model, nn.Module):
        own["model"] = model
        model = type(model).__name__
    config = make_experiment(
        {"method": method, "data": str(data), "model": model, **options}
    )
    setup = prepare(config, **own)
    folder = RunFolder(Path(out) if out is not None else None)
    try:
        watching = [make_console(quiet), Figures(folder), *observers]
        return run_experiment(setup, folder, watching, resume=resume)
    finally:
        folder.close()
