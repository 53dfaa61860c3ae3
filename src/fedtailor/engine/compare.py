"""Many methods on equal terms: the same data, partition, network and rounds, over several seeds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedtailor.core.errors import Diverged, UserError
from fedtailor.engine.observer import Observer
from fedtailor.engine.run import identity_of
from fedtailor.engine.start import run_experiment
from fedtailor.experiment.config import Experiment, make_experiment
from fedtailor.experiment.prepare import prepare
from fedtailor.experiment.run_folder import CONFIG, RunFolder

Results = dict[str, list[dict[str, Any]]]  # method -> results, one a seed


def plan_runs(
    methods: Sequence[str], options: dict[str, Any], seeds: int
) -> list[tuple[str, Experiment]]:
    """The runs of a comparison by folder name, all checked before the first begins.

    ``set`` may name hyper-parameters of one method: ``{"ditto.lam": 0.5}``.
    """
    given = options.get("set", {})
    shared = {key: value for key, value in options.items() if key != "set"}
    first = int(options.get("seed", 0))
    runs: list[tuple[str, Experiment]] = []
    for name in methods:
        own = {
            key.removeprefix(f"{name}."): value
            for key, value in given.items()
            if key.startswith(f"{name}.") or "." not in key
        }
        for seed in range(first, first + seeds):
            values = {**shared, "method": name, "seed": seed, "set": own}
            runs.append((f"{Path(name).stem}-s{seed}", make_experiment(values)))
    if len({name for name, _ in runs}) < len(runs):
        raise UserError("a method is named twice")
    strangers = {key.split(".")[0] for key in given if "." in key} - set(methods)
    if strangers:
        raise UserError(
            f"--set {min(strangers)}....: that method is not in the comparison"
        )
    return runs


def compare(
    methods: Sequence[str],
    options: dict[str, Any],
    seeds: int,
    out: Path,
    observers: Callable[[RunFolder], Sequence[Observer]] = lambda folder: (),
    diverged: dict[str, list[str]] | None = None,
) -> Results:
    """Run what is not there yet; an interrupted comparison continues where it stopped.

    Args:
        methods: names or files.
        options: common to all runs, as in ``fedtailor run``.
        seeds: runs of every method.
        out: folder of the comparison, with one folder a run.
        observers: gives the observers of a run.
        diverged: is told when the runs diverged that did, by method. Methods of which a run
            diverged have no results: a mean over the seeds that went well would flatter them.
    """
    diverged = {} if diverged is None else diverged
    runs = plan_runs(methods, options, seeds)
    for _, config in runs[:: max(seeds, 1)]:
        # a mistake in any method shows before hours of work on the others
        prepare(config)
    results: Results = {}
    for name, config in runs:
        folder = RunFolder(out / name)
        try:
            result = find_or_run(folder, config, observers)
            results.setdefault(config.method, []).append(result)
        except Diverged as error:
            text = f"{error.summary} (seed {config.seed})"
            diverged.setdefault(config.method, []).append(text)
        shutil.rmtree(out / name / "state", ignore_errors=True)
    return {name: runs for name, runs in results.items() if name not in diverged}


def find_or_run(
    folder: RunFolder,
    config: Experiment,
    observers: Callable[[RunFolder], Sequence[Observer]],
) -> dict[str, Any]:
    """The result in a run's folder, or that of the run; raises Diverged again for one that did."""
    has_begun = (folder.path / CONFIG).exists()
    result = folder.read_result() if has_begun else None
    summary = folder.read_divergence() if has_begun else ""
    setup = prepare(config)
    is_over = bool(summary) or (result and result["rounds"] == config.rounds)
    if not is_over:
        return run_experiment(setup, folder, observers(folder), resume=has_begun)
    folder.claim(identity_of(setup), resume=True)
    if result is None:
        raise Diverged("the run is not repeated", summary)
    return result
