"""Curves of a run and of a comparison, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtailor.experiment.run_folder import JOURNAL, read_journal
from fedtailor.experiment.variants import folder_stem, name_of
from fedtailor.report.figure import (
    COLOURS,
    DASHES,
    label_rounds,
    make_figure,
    save_figure,
    tidy_axes,
)

Record = dict[str, Any]  # a line of the journal
Result = dict[str, Any]  # what result.json holds

CURVES = {"test": ("test", COLOURS[0]), "val": ("validation", COLOURS[4])}


# ---------------------------------------------------------------- one run


def draw_curves(
    folder: Path, records: Sequence[Record], best: int | None
) -> list[Path]:
    """Accuracy and loss over the evaluated rounds, with the chosen round marked."""
    if not records:
        return []
    # Margins are set by hand: a layout engine takes as long as drawing, in every run.
    figure = make_figure(8.4, 3.4, layout=None)
    figure.subplots_adjust(left=0.075, right=0.985, bottom=0.15, top=0.96, wspace=0.22)
    left, right = figure.subplots(1, 2)
    _draw_measure(left, records, "accuracy", "accuracy")
    _draw_measure(right, records, "loss", "cross entropy")
    _draw_series(right, records, _training_losses(records), "training", COLOURS[2])
    _mark_chosen_round(left, best)
    left.legend(frameon=False, fontsize=9)
    right.legend(frameon=False, fontsize=9)
    return save_figure(figure, folder / "curves")


def _draw_measure(
    axes: Any, records: Sequence[Record], measure: str, title: str
) -> None:
    for part, (label, colour) in CURVES.items():
        values = [record["evaluation"][part][measure] for record in records]
        _draw_series(axes, records, values, label, colour)
    after = [
        record.get("views", {}).get("after", {}).get(measure) for record in records
    ]
    _draw_series(axes, records, after, "test, right after training", COLOURS[1])
    label_rounds(axes)
    axes.set_ylabel(title)
    tidy_axes(axes)


def _draw_series(
    axes: Any,
    records: Sequence[Record],
    values: Sequence[float | None],
    label: str,
    colour: str,
) -> None:
    """One line over the rounds, with gaps where there is no value; none without any."""
    if all(value is None for value in values):
        return
    rounds = [record["t"] for record in records]
    numbers = [float("nan") if value is None else value for value in values]
    axes.plot(rounds, numbers, color=colour, label=label)


def _training_losses(records: Sequence[Record]) -> list[float | None]:
    """The mean loss of each round's optimiser steps."""
    return [record.get("training", {}).get("loss") for record in records]


def _mark_chosen_round(axes: Any, best: int | None) -> None:
    if best is None:
        return
    axes.axvline(best, color="#999999", linewidth=0.8, linestyle=":")
    axes.annotate(
        f"chosen: {best}",
        (best, axes.get_ylim()[0]),
        textcoords="offset points",
        xytext=(-3, 4),
        fontsize=8,
        color="#666666",
        ha="right",
    )


# ---------------------------------------------------------------- a comparison


def draw_comparison(folder: Path, results: dict[str, list[Result]]) -> list[Path]:
    """Every method's mean test accuracy over rounds, and its spread over clients."""
    methods = sorted(results, key=lambda method: -_mean_accuracy(results[method]))
    figure = make_figure(10.0, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for i, method in enumerate(methods):
        _draw_method(left, i, method, folder, results[method])
    label_rounds(left)
    left.set_ylabel("test accuracy of personal models")
    left.legend(frameon=False, fontsize=8, ncol=2 if len(methods) > 6 else 1)
    tidy_axes(left)
    _draw_spread(right, methods, results)
    return save_figure(figure, folder / "comparison")


def _draw_method(
    axes: Any, i: int, method: str, folder: Path, runs: list[Result]
) -> None:
    """The mean over a method's runs, at the rounds that were evaluated in all of them."""
    name = name_of(method)
    stem = folder_stem(name)
    journals = [folder / f"{stem}-s{run['seed']}" / JOURNAL for run in runs]
    accuracies = [_test_accuracies(journal) for journal in journals]
    rounds = sorted(set.intersection(*(set(by_round) for by_round in accuracies)))
    means = [_mean([by_round[t] for by_round in accuracies]) for t in rounds]
    axes.plot(
        rounds,
        means,
        color=COLOURS[i % len(COLOURS)],
        linestyle=DASHES[i // len(COLOURS) % len(DASHES)],
        label=name,
    )


def _test_accuracies(journal: Path) -> dict[int, float]:
    """By evaluated round."""
    return {
        record["t"]: record["evaluation"]["test"]["accuracy"]
        for record in read_journal(journal)
        if record.get("evaluation")
    }


def _draw_spread(
    axes: Any, methods: Sequence[str], results: dict[str, list[Result]]
) -> None:
    """A box for every method: the accuracies of single clients."""
    spread = [_client_accuracies(results[method]) for method in methods]
    boxes = axes.boxplot(
        spread,
        orientation="horizontal",
        widths=0.6,
        showfliers=False,
        patch_artist=True,
    )
    for i, box in enumerate(boxes["boxes"]):
        box.set(facecolor=COLOURS[i % len(COLOURS)], alpha=0.55, linewidth=0.8)
    for median in boxes["medians"]:
        median.set(color="black")
    names = [name_of(method) for method in methods]
    axes.set_yticks(range(1, len(names) + 1), names, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel("accuracy of single clients")
    tidy_axes(axes)


def _client_accuracies(runs: Sequence[Result]) -> list[float]:
    found = [client["accuracy"] for run in runs for client in run["clients"]]
    return [accuracy for accuracy in found if accuracy is not None]


def _mean_accuracy(runs: Sequence[Result]) -> float:
    """The mean accuracy at the chosen round, or at the last where none could be chosen."""
    accuracies = [run["accuracy"] for run in runs]
    return _mean([a["last"] if a["best"] is None else a["best"] for a in accuracies])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
