"""``run``, ``compare``, ``tune``: experiments in one call; ``report``: their story as a page."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedtailor.data.federation import Dataset, Federation
from fedtailor.engine import compare as comparison
from fedtailor.engine.observer import ManyRuns, Observer
from fedtailor.engine.start import run_experiment
from fedtailor.engine.tune import tune as search
from fedtailor.executors.world import AnyMethod
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import OwnData, prepare
from fedtailor.experiment.run_folder import JOURNAL, RunFolder, read_journal
from fedtailor.experiment.search_space import Over
from fedtailor.experiment.variants import (
    OwnMethod,
    Variant,
    check_labels,
    make_variants,
)
from fedtailor.experiment.winners import Winners, add_tuned, read_winners, warn_of_seeds
from fedtailor.methods import name_of
from fedtailor.report.comparison import write_comparison
from fedtailor.report.console import make_console
from fedtailor.report.figures import Figures
from fedtailor.report.progress import make_total
from fedtailor.report.results import ComparisonResult, RunResult

Methods = Sequence[str | OwnMethod] | Mapping[str, str | OwnMethod]


def run(
    method: str | AnyMethod | type[AnyMethod] = "fedavg",
    data: str | Path | OwnData = "digits",
    model: str | nn.Module | None = None,
    *,
    last: str | None = None,
    external: Mapping[str, tuple[Any, Any]] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = True,
    observers: Sequence[Observer] = (),
    **options: Any,
) -> RunResult:
    """Run an experiment and give its result.

    Args:
        method: a name, a file, a class or an instance.
        data: a name, a path, a Dataset, a Federation, one ``(x, y)`` per client (or a torch
            Dataset of such pairs), ``{"name": (x, y)}``, or one tuple ``(x, y)`` to be divided by
            ``partition``; x may be a DataFrame.
        model: a name, a module with ``.base`` and ``.head``, or any module with ``last``.
        last: name of the module's last layer, where it has no ``.base`` and ``.head``.
        external: sets of samples that no client owns, ``{"name": (x, y)}``, for
            ``views="external"``.
        out: folder to write the run to; nothing is kept unless it is given.
        resume: continue the run in ``out``.
        overwrite: delete the run in ``out`` first; nothing but a run is deleted.
        quiet: show no progress.
        observers: further observers of the run, for example trackers.
        options: those of ``fedtailor run``, for example ``rounds=50, partition="dirichlet:0.1"``.

    Returns:
        What ``result.json`` holds, as a dictionary that notebooks show as a summary; its
        ``history`` has a record of every round.

    Examples:
        >>> result = fedtailor.run("fedper", "digits", rounds=20)
        >>> result["accuracy"]["best"]
    """
    own: dict[str, Any] = {"external": external}
    if not isinstance(method, str):
        own["method"] = method
        method = name_of(method if isinstance(method, type) else type(method))
    named, given = name_data_and_model(data, model, last)
    config = make_experiment({"method": method, **named, **options})
    setup = prepare(config, **own, **given)
    folder = RunFolder(Path(out) if out is not None else None)
    if overwrite:
        folder.empty(resume)
    try:
        watching = [make_console(quiet), Figures(folder), *observers]
        result = run_experiment(setup, folder, watching, resume=resume)
        history = read_journal(folder.path / JOURNAL)
        return RunResult(result, history, folder.path if folder.kept else None)
    finally:
        folder.close()


def report(*runs: str | Path, out: str | Path = "report.html", title: str = "") -> Path:
    """Write the page that tells the story of runs: one file that opens without a network.

    Args:
        runs: folders of finished runs and of comparisons.
        out: the file to write.
        title: a heading; else it says which methods on which data.

    Returns:
        The file.

    Example:
        >>> fedtailor.report("runs/compare", out="report.html")
    """
    # imported here: who trains need not wait for what only reports need
    from fedtailor.report.html_report import write_report

    return write_report(runs, out, title)


def compare(
    methods: Methods,
    data: str | Path | OwnData = "digits",
    model: str | nn.Module | None = None,
    *,
    last: str | None = None,
    seeds: int = 3,
    tuned: str | Path | Winners | None = None,
    out: str | Path | None = None,
    quiet: bool = True,
    **options: Any,
) -> ComparisonResult:
    """Run several methods on equal terms; gives the results of all seeds by label.

    Args:
        methods: names, files, classes or instances; names and files perhaps with options of
            their own, ``"fedcp[lam=1]"``. A mapping gives labels: ``{"weak": Ditto(lam=0.1)}``.
        data: as in ``run``, like ``model`` and ``last``.
        tuned: what ``tune`` found, or its file: each winner is compared, too.
        out: folder of runs, tables and figures; a comparison there goes on, and grows.
        quiet: show no progress.
        options: those of ``fedtailor run``, common to all.
    """
    variants = make_variants(methods)
    progress = make_total(quiet)
    first = int(options.get("seed", 0))
    if tuned is not None:
        variants = _add_winners(variants, tuned, first, seeds, progress)
    named, given = name_data_and_model(data, model, last)
    with _make_folder(out) as folder:
        settings = {**named, **options}
        diverged: dict[str, list[str]] = {}
        begin = partial(comparison.compare, progress=progress, own=given)
        run = partial(begin, diverged=diverged)
        results = run(variants, settings, seeds, folder, lambda one: [Figures(one)])
        _tell_divergence(diverged, progress)
        if out is not None:
            write_comparison(folder, results, diverged)
        return collect_results(results, variants, folder, out is not None)


def _tell_divergence(diverged: dict[str, list[str]], progress: ManyRuns) -> None:
    """Name the variants of which a run diverged."""
    for label, summaries in diverged.items():
        progress.message(f"warning: {label}: {'; '.join(summaries)}")


def _add_winners(
    variants: list[Variant],
    tuned: str | Path | Winners,
    first: int,
    seeds: int,
    progress: ManyRuns,
) -> list[Variant]:
    """The variants and what a search found, with a warning where seeds are the same."""
    winners = tuned if isinstance(tuned, Winners) else read_winners(Path(tuned))
    both = add_tuned(variants, winners)
    check_labels(both)
    for text in warn_of_seeds(winners, first, seeds):
        progress.message(text)
    return both


@contextmanager
def _make_folder(out: str | Path | None) -> Iterator[Path]:
    """The folder that was asked for, or one that is deleted afterwards."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="fedtailor-") as temporary:
        yield Path(temporary)


def tune(
    methods: Methods,
    over: Over,
    data: str | Path | OwnData = "digits",
    model: str | nn.Module | None = None,
    *,
    last: str | None = None,
    trials: int = 20,
    seeds: int = 1,
    out: str | Path | None = None,
    quiet: bool = True,
    **options: Any,
) -> Winners:
    """Search hyper-parameters on validation data; gives what ``compare`` takes as ``tuned``.

    Args:
        methods: as in ``compare``.
        over: what is varied, ``"lr=0.01:1:log,lam=0.1|1|10"``, or by name
            ``{"lr": "0.01:1:log", "lam": [0.1, 1, 10]}``.
        data: as in ``run``, like ``model`` and ``last``.
        trials: of every method.
        seeds: runs of every trial, from ``seed=1000`` on.
        out: folder of the search; a search there goes on where it stopped.
        quiet: show no progress.
        options: those of ``fedtailor run``, common to all.
    """
    named, given = name_data_and_model(data, model, last)
    with _make_folder(out) as folder:
        winners, _ = search(
            make_variants(methods),
            {**named, **options},
            over,
            trials=trials,
            seeds=seeds,
            out=folder,
            progress=make_total(quiet, "trials"),
            own=given,
        )
        return winners


def collect_results(
    results: comparison.Results,
    variants: Sequence[Variant],
    folder: Path,
    is_kept: bool,
) -> ComparisonResult:
    """The results of a comparison with the records of their rounds."""
    found = {}
    for variant in variants:
        runs = []
        for result in results[variant.label]:
            path = folder / comparison.name_folder(variant, result["seed"])
            history = read_journal(path / JOURNAL)
            runs.append(RunResult(result, history, path if is_kept else None))
        found[variant.label] = runs
    return ComparisonResult(found, folder if is_kept else None)


def name_data_and_model(
    data: str | Path | OwnData, model: str | nn.Module | None, last: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options ``data`` and ``model``, and what was given in code."""
    given: dict[str, Any] = {"last": last}
    if not isinstance(data, str | Path):
        given["data"] = data
        data = data.name if isinstance(data, Dataset | Federation) else "own"
    if isinstance(model, nn.Module):
        given["model"] = model
        model = type(model).__name__
    return {"data": str(data), "model": model}, given
