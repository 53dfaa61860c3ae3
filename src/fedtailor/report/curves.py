"""Curves of a run and of a comparison, as PNG, SVG and PDF."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtailor.experiment.run_folder import JOURNAL, read_journal
from fedtailor.experiment.variants import folder_stem, name_of
from fedtailor.report.colours import AMBER, GREEN, Style, choose_styles
from fedtailor.report.figure import (
    SOFT,
    label_rounds,
    make_figure,
    mark_events,
    save_figure,
    style_line,
    tidy_axes,
    write_title,
)
from fedtailor.report.headline import chosen_value
from fedtailor.report.measures import Measure, deciding_measure, describe_measure
from fedtailor.report.story.curves import Event
from fedtailor.report.story.reported_runs import title_of_method

Record = dict[str, Any]  # a line of the journal
Result = dict[str, Any]  # what result.json holds

LOSS = describe_measure("loss", "", higher_is_better=False)
VALIDATION = Style(SOFT, "dashed", "circle")
AFTER = Style(AMBER, "solid", "triangle")
GLOBAL = Style("#8a5a2b", "solid", "square")
TRAINING = Style(GREEN, "dotted", "diamond")


# ---------------------------------------------------------------- one run


def draw_curves(
    folder: Path,
    records: Sequence[Record],
    best: int | None,
    result: Result | None = None,
    events: Sequence[Event] = (),
) -> list[Path]:
    """The deciding measure and the loss over the evaluated rounds, the chosen round marked."""
    if not records:
        return []
    about = result or {}
    measure = deciding_measure(about)
    method = name_of(str(about.get("method", "fedavg")))
    # Margins are set by hand: a layout engine takes as long as drawing, in every run.
    figure = make_figure(8.8, 3.7, layout=None)
    figure.subplots_adjust(left=0.075, right=0.985, bottom=0.14, top=0.86, wspace=0.2)
    panels = figure.subplots(1, 2)
    for axes, shown in zip(panels, (measure, LOSS), strict=True):
        _draw_measure(axes, records, shown, choose_styles([method])[method])
    losses = [record.get("training", {}).get("loss") for record in records]
    _draw_series(panels[1], records, losses, "training data", TRAINING, LOSS)
    _mark_chosen_round(panels[0], best)
    for axes in panels:
        axes.legend(frameon=False, fontsize=8)
        mark_events(axes, events)
    if result is not None:
        write_title(figure, _title_of_run(result), "personal models")
    return save_figure(figure, folder / "curves")


def _title_of_run(result: Result) -> str:
    method = title_of_method(name_of(str(result["method"])))
    clients = len(result["clients"])
    return f"{method} on {result['data']}: {clients} clients, seed {result['seed']}"


def _draw_measure(
    axes: Any, records: Sequence[Record], measure: Measure, style: Style
) -> None:
    """Test and validation data, and models after training and the global one where known."""
    name = measure.name
    for part, label, look in (
        ("test", "test data", style),
        ("val", "validation data", VALIDATION),
    ):
        values = [record["evaluation"][part].get(name) for record in records]
        _draw_series(axes, records, values, label, look, measure)
    for view, label, look in (
        ("after", "test data, right after training", AFTER),
        ("global_ptest", "test data, global model", GLOBAL),
    ):
        found = [record.get("views", {}).get(view, {}).get(name) for record in records]
        _draw_series(axes, records, found, label, look, measure)
    label_rounds(axes)
    _limit_rounds(axes, [record["t"] for record in records])
    axes.set_ylabel(measure.axis)
    tidy_axes(axes)


def _draw_series(
    axes: Any,
    records: Sequence[Record],
    values: Sequence[float | None],
    label: str,
    style: Style,
    measure: Measure,
) -> None:
    """One line over the rounds, with gaps where there is no value; none without any."""
    if all(value is None for value in values):
        return
    rounds = [record["t"] for record in records]
    numbers = [
        float("nan") if value is None else measure.scale * value for value in values
    ]
    axes.plot(rounds, numbers, label=label, **style_line(style, len(rounds)))


def _limit_rounds(axes: Any, rounds: Sequence[int]) -> None:
    """A single evaluation stands in the middle, between whole rounds."""
    if len(rounds) == 1:
        axes.set_xlim(rounds[0] - 1, rounds[0] + 1)
        axes.set_xticks(rounds)


def _mark_chosen_round(axes: Any, best: int | None) -> None:
    """A line at the round, its name on the side where there is room."""
    if best is None:
        return
    axes.axvline(best, color=SOFT, linewidth=0.9, linestyle=":")
    low, high = axes.get_xlim()
    is_left = best < (low + high) / 2
    axes.annotate(
        f"chosen: {best}",
        (best, axes.get_ylim()[0]),
        textcoords="offset points",
        xytext=(4 if is_left else -4, 5),
        fontsize=8,
        color=SOFT,
        ha="left" if is_left else "right",
    )


# ---------------------------------------------------------------- a comparison


def draw_comparison(folder: Path, results: dict[str, list[Result]]) -> list[Path]:
    """Every method's mean over seeds with its spread, and the results of single clients."""
    first = next(iter(results.values()))
    measure = deciding_measure(first[0])
    methods = sorted(
        results, key=lambda method: -measure.sign * _mean_result(results[method])
    )
    styles = choose_styles([name_of(method) for method in methods])
    figure = make_figure(10.4, 4.5)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for method in methods:
        style = styles[name_of(method)]
        _draw_method(left, style, method, folder, results[method], measure)
    label_rounds(left)
    left.set_ylabel(f"{measure.axis}, test data of personal models")
    left.legend(frameon=False, fontsize=8, ncol=2 if len(methods) > 6 else 1)
    tidy_axes(left)
    _draw_spread(right, methods, results, measure)
    seeds = len(first)
    data = first[0].get("data", "")
    band = "" if seeds == 1 else "bands: one standard deviation over seeds"
    told = "1 seed" if seeds == 1 else f"{seeds} seeds"
    write_title(figure, f"{len(methods)} methods on {data}, {told}", band)
    return save_figure(figure, folder / "comparison")


def _draw_method(
    axes: Any,
    style: Style,
    method: str,
    folder: Path,
    runs: list[Result],
    measure: Measure,
) -> None:
    """The mean over a method's runs, at the rounds that were evaluated in all of them."""
    name = name_of(method)
    stem = folder_stem(name)
    journals = [folder / f"{stem}-s{run['seed']}" / JOURNAL for run in runs]
    curves = [_test_results(journal, measure) for journal in journals]
    rounds = sorted(set.intersection(*(set(by_round) for by_round in curves)))
    values = [[by_round[t] for by_round in curves] for t in rounds]
    means = [statistics.fmean(of_round) for of_round in values]
    line = style_line(style, len(rounds))
    axes.plot(rounds, means, label=title_of_method(name), **line)
    if len(runs) > 1:
        reach = [statistics.stdev(of_round) for of_round in values]
        low = [mean - spread for mean, spread in zip(means, reach, strict=True)]
        high = [mean + spread for mean, spread in zip(means, reach, strict=True)]
        axes.fill_between(
            rounds, low, high, color=style.colour, alpha=0.15, linewidth=0
        )
    _limit_rounds(axes, rounds)


def _test_results(journal: Path, measure: Measure) -> dict[int, float]:
    """By evaluated round, in the unit of the measure."""
    return {
        record["t"]: measure.scale * record["evaluation"]["test"][measure.name]
        for record in read_journal(journal)
        if record.get("evaluation")
    }


def _draw_spread(
    axes: Any,
    methods: Sequence[str],
    results: dict[str, list[Result]],
    measure: Measure,
) -> None:
    """A box for every method: the results of single clients, of all seeds together."""
    spread = [_client_results(results[method], measure) for method in methods]
    boxes = axes.boxplot(
        spread,
        orientation="horizontal",
        widths=0.6,
        showfliers=False,
        patch_artist=True,
    )
    names = [name_of(method) for method in methods]
    styles = choose_styles(names)
    for name, box in zip(names, boxes["boxes"], strict=True):
        box.set(facecolor=styles[name].colour, alpha=0.6, linewidth=0.8)
    for median in boxes["medians"]:
        median.set(color="black")
    titles = [title_of_method(name) for name in names]
    axes.set_yticks(range(1, len(names) + 1), titles, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel(f"{measure.axis} of single clients, all seeds together")
    tidy_axes(axes)


def _client_results(runs: Sequence[Result], measure: Measure) -> list[float]:
    found = [client.get(measure.name) for run in runs for client in run["clients"]]
    return [measure.scale * value for value in found if value is not None]


def _mean_result(runs: Sequence[Result]) -> float:
    """The mean at the chosen round, or at the last where none could be chosen."""
    return statistics.fmean(chosen_value(run) for run in runs)
