"""Many methods on equal terms: the same data, partition, network and rounds, over several seeds."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.engine.loop import conduct, identity_of
from fedtailor.engine.progress import Watcher
from fedtailor.experiment.config import Experiment, make_experiment
from fedtailor.experiment.prepare import prepare
from fedtailor.experiment.run_folder import CONFIG, RunFolder


def plan(
    methods: Sequence[str], options: dict[str, Any], seeds: int
) -> list[tuple[str, Experiment]]:
    """The runs of a comparison by folder name, all checked before the first begins; ``set`` may be given per method."""
    given = options.get("set", {})
    shared = {k: v for k, v in options.items() if k != "set"}
    first = int(options.get("seed", 0))
    runs: list[tuple[str, Experiment]] = []
    for name in methods:
        own = {
            k.removeprefix(f"{name}."): v
            for k, v in given.items()
            if k.startswith(f"{name}.") or "." not in k
        }
        for seed in range(first, first + seeds):
            values = {**shared, "method": name, "seed": seed, "set": own}
            runs.append((f"{Path(name).stem}-s{seed}", make_experiment(values)))
    if len({name for name, _ in runs}) < len(runs):
        raise UserError("a method is named twice")
    strangers = {k.split(".")[0] for k in given if "." in k} - set(methods)
    if strangers:
        raise UserError(f"--set {min(strangers)}....: that method is not in the comparison")
    return runs


def compare(
    methods: Sequence[str], options: dict[str, Any], seeds: int, out: Path, watcher: Watcher
) -> dict[str, list[dict[str, Any]]]:
    """Run what is not there yet; gives the results by method. An interrupted comparison goes on where it stopped."""
    runs = plan(methods, options, seeds)
    for _, chosen in runs[:: max(seeds, 1)]:
        prepare(chosen)  # a mistake in any method shows before hours of work on the others
    results: dict[str, list[dict[str, Any]]] = {}
    for name, chosen in runs:
        folder = RunFolder(out / name)
        done = folder.read_result() if (out / name / CONFIG).exists() else None
        setup = prepare(chosen)
        if done is None or done["rounds"] != chosen.rounds:
            done = conduct(setup, folder, watcher, resume=(out / name / CONFIG).exists())
        else:
            folder.claim(identity_of(setup), resume=True)
        shutil.rmtree(out / name / "state", ignore_errors=True)
        results.setdefault(chosen.method, []).append(done)
    return results
