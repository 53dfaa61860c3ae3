"""Many methods on equal terms: the same data, partition, network and rounds, over several seeds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.errors import Diverged, UserError
from fedtailor.engine.observer import ManyRuns, Observer
from fedtailor.engine.run import identity_of
from fedtailor.engine.start import run_experiment
from fedtailor.experiment.config import Experiment, make_experiment
from fedtailor.experiment.prepare import Setup, prepare
from fedtailor.experiment.run_folder import CONFIG, RunFolder
from fedtailor.experiment.variants import (
    Variant,
    folder_stem,
    make_variants,
    name_of,
)

Results = dict[str, list[dict[str, Any]]]  # label of a variant -> results, one a seed


class PlannedRun(NamedTuple):
    """A run of a comparison."""

    folder: str  # its name in the comparison's folder
    config: Experiment
    variant: Variant

    def prepare(self, own: Mapping[str, Any]) -> Setup:
        """The run, ready to begin; ``own`` are data and network that were given in code."""
        return prepare(self.config, method=self.variant.own, **own)


def plan_runs(
    variants: Sequence[Variant], options: dict[str, Any], seeds: int
) -> list[PlannedRun]:
    """The runs of a comparison, whose options are all checked before the first begins.

    ``set`` may name hyper-parameters of one method: ``{"ditto.lam": 0.5}``.
    """
    given = options.get("set", {})
    shared = {key: value for key, value in options.items() if key != "set"}
    first = int(options.get("seed", 0))
    runs: list[PlannedRun] = []
    for variant in variants:
        values = {**shared, **variant.options, "method": variant.method}
        values["set"] = {**choose_hyper(given, variant), **variant.hyper}
        if variant.label != name_of(variant.method):
            values["name"] = variant.label
        for seed in range(first, first + seeds):
            folder = name_folder(variant, seed)
            config = make_experiment({**values, "seed": seed})
            runs.append(PlannedRun(folder, config, variant))
    refuse_strangers(given, variants)
    return runs


def name_folder(variant: Variant, seed: int) -> str:
    """The name of a run's folder in the comparison's."""
    return f"{folder_stem(variant.label)}-s{seed}"


def choose_hyper(given: Mapping[str, Any], variant: Variant) -> dict[str, Any]:
    """Those of the hyper-parameters that are this method's, or everybody's."""
    prefix = f"{name_of(variant.method)}."
    chosen = {}
    for key, value in given.items():
        if key.startswith(prefix) or "." not in key:
            chosen[key.removeprefix(prefix)] = value
    return chosen


def refuse_strangers(given: Mapping[str, Any], variants: Sequence[Variant]) -> None:
    """Refuse hyper-parameters of methods that do not take part."""
    there = {name_of(variant.method) for variant in variants}
    strangers = {key.split(".")[0] for key in given if "." in key} - there
    if strangers:
        raise UserError(
            f"--set {min(strangers)}....: that method is not in the comparison"
        )


def compare(
    methods: Sequence[str] | Sequence[Variant],
    options: dict[str, Any],
    seeds: int,
    out: Path,
    observers: Callable[[RunFolder], Sequence[Observer]] = lambda folder: (),
    *,
    progress: ManyRuns | None = None,
    own: Mapping[str, Any] | None = None,
    diverged: dict[str, list[str]] | None = None,
) -> Results:
    """Run what is not there yet; an interrupted comparison continues where it stopped.

    Args:
        methods: names or files, perhaps with options in brackets; or variants.
        options: common to all runs, as in ``fedtailor run``.
        seeds: runs of every variant.
        out: folder of the comparison, with one folder a run.
        observers: gives the observers of a run.
        progress: is told how the whole goes.
        own: data and network that were given in code, as ``prepare`` takes them.
        diverged: is told when runs diverged, by variant; such variants have no results.
    """
    diverged = {} if diverged is None else diverged
    watching = progress or ManyRuns()
    runs = plan_runs(read_variants(methods), options, seeds)
    own = own or {}
    check_runs(runs[:: max(seeds, 1)], own, watching)
    begin_progress(watching, runs, out)
    results: Results = {}
    try:
        for run in runs:
            with noting_divergence(run, diverged):
                result = run_or_read(run, out, observers, watching, own)
                results.setdefault(run.variant.label, []).append(result)
    finally:
        watching.end()
    # a mean over the seeds that went well would flatter
    return {label: runs for label, runs in results.items() if label not in diverged}


def check_runs(
    runs: Sequence[PlannedRun], own: Mapping[str, Any], watching: ManyRuns
) -> None:
    """Let a mistake in any method show before hours of work on the others."""
    firsts = [(run, run.prepare(own)) for run in runs]
    for text in describe_twins(firsts):
        watching.message(text)


def begin_progress(watching: ManyRuns, runs: Sequence[PlannedRun], out: Path) -> None:
    """Tell which runs there are, and which of them are done."""
    finished = [run.folder for run in runs if _is_finished(out, run)]
    watching.begin([run.folder for run in runs], finished)


@contextmanager
def noting_divergence(
    run: PlannedRun, diverged: dict[str, list[str]]
) -> Iterator[None]:
    """Note when a run diverges, and let the others go on."""
    try:
        yield
    except Diverged as error:
        text = f"{error.summary} (seed {run.config.seed})"
        diverged.setdefault(run.variant.label, []).append(text)


def read_variants(methods: Sequence[str] | Sequence[Variant]) -> list[Variant]:
    """Variants, from names where they are not made yet."""
    variants = [one for one in methods if isinstance(one, Variant)]
    if variants:
        return variants
    return make_variants([one for one in methods if isinstance(one, str)])


def run_or_read(
    run: PlannedRun,
    out: Path,
    observers: Callable[[RunFolder], Sequence[Observer]],
    progress: ManyRuns,
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """The result of one run, which is begun, continued, or there already."""
    path = out / run.folder
    folder = RunFolder(path)
    has_begun = (path / CONFIG).exists()
    result = folder.read_result() if has_begun else None
    setup = run.prepare(own)
    summary = folder.read_divergence() if has_begun else ""
    if summary:
        folder.claim(identity_of(setup), resume=True)
        raise Diverged("the run is not repeated", summary)
    if result is None or result["rounds"] != run.config.rounds:
        watching = [*progress.watch(run.folder), *observers(folder)]
        result = run_experiment(setup, folder, watching, resume=has_begun)
        progress.done(run.folder)
    else:
        folder.claim(identity_of(setup), resume=True)
    shutil.rmtree(path / "state", ignore_errors=True)
    return result


def _is_finished(out: Path, run: PlannedRun) -> bool:
    """Whether there is nothing left to do."""
    if not (out / run.folder / CONFIG).exists():
        return False
    result = RunFolder(out / run.folder).read_result()
    return result is not None and result["rounds"] == run.config.rounds


def describe_twins(firsts: Sequence[tuple[PlannedRun, Setup]]) -> list[str]:
    """Variants that are the same experiment under two labels."""
    seen: dict[str, str] = {}
    found = []
    for run, setup in firsts:
        options = setup.options.model_dump_json(exclude={"name"})
        label = run.variant.label
        other = seen.setdefault(options, label)
        if other != label and run.variant.own is None:
            found.append(f"warning: {label} and {other} are the same experiment")
    return found
