"""Figures of a comparison beside its curves: what clients gain, and what results cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtailor.report.figure import (
    make_figure,
    save_figure,
    style_line,
    tidy_axes,
    write_title,
)
from fedtailor.report.story.clients import list_cost
from fedtailor.report.story.gains import GroupGain, find_references, measure_gains
from fedtailor.report.story.reported_runs import Reported, read_runs

AGAINST = {"local": "training alone", "fedavg": "one model for all"}


def draw_comparison_figures(folder: Path, runs: Sequence[Path]) -> list[Path]:
    """``gains`` where there is something to compare with, and ``cost``."""
    reported = read_runs(runs)
    return [*draw_gains(folder, reported), *draw_costs(folder, reported)]


# ---------------------------------------------------------------- gains


def draw_gains(folder: Path, reported: Reported) -> list[Path]:
    """A panel for each reference: a dot for every client, the mean with its interval."""
    panels = {
        method: measure_gains(reported, reference)
        for method, reference in find_references(reported).items()
    }
    shown = {method: gains for method, gains in panels.items() if gains}
    if not shown:
        return []
    rows = max(len(gains) for gains in shown.values())
    figure = make_figure(5.2 * len(shown), 1.5 + 0.5 * rows)
    axes = figure.subplots(1, len(shown), squeeze=False)[0]
    for panel, (method, gains) in zip(axes, shown.items(), strict=True):
        _draw_panel(panel, reported, gains, AGAINST[method])
    beside = "dots: clients; diamonds: means with 95 % intervals"
    write_title(figure, "What each client gains", beside)
    return save_figure(figure, folder / "gains")


def _draw_panel(
    axes: Any, reported: Reported, gains: Sequence[GroupGain], name: str
) -> None:
    scale = reported.measure.scale
    titles = {group.label: group.title for group in reported.groups}
    extent = [0.0]
    for row, gain in enumerate(gains):
        colour = reported.styles[gain.label].colour
        values = [scale * one.gain for one in gain.clients]
        # clients of the same gain stand beside one another
        heights = [row + 0.28 * ((0.618 * i) % 1 - 0.5) for i in range(len(values))]
        axes.plot(values, heights, ".", color=colour, alpha=0.45, markersize=6)
        low, high = gain.difference.interval()
        axes.plot([scale * low, scale * high], [row, row], color="black", linewidth=1.4)
        middle = [scale * gain.difference.mean]
        axes.plot(middle, [row], "D", color=colour, markeredgecolor="black")
        extent += [*values, *middle]
    axes.axvline(0, color="black", linewidth=0.8)
    room = 0.06 * (max(extent) - min(extent) or 1)
    axes.set_xlim(min(extent) - room, max(extent) + room)
    axes.set_yticks(range(len(gains)), [titles[gain.label] for gain in gains])
    axes.invert_yaxis()
    axes.set_xlabel(f"{reported.measure.points} better than {name}".lstrip())
    tidy_axes(axes)


# ---------------------------------------------------------------- cost


def draw_costs(folder: Path, reported: Reported) -> list[Path]:
    """The result against what was sent and against the time of training, a line a run."""
    measure = reported.measure
    figure = make_figure(9.6, 3.8)
    panels = figure.subplots(1, 2, sharey=True)
    for group in reported.groups:
        style = reported.styles[group.label]
        for i, run in enumerate(group.runs):
            points = list_cost(run, measure.name)
            values = [measure.scale * point[3] for point in points]
            line = style_line(style, len(points)) | {
                "linewidth": 1.2,
                "markersize": 2.5,
            }
            for axes, column in zip(panels, (1, 2), strict=True):
                cost = [point[column] for point in points]
                axes.plot(cost, values, label=None if i else group.title, **line)
    panels[0].set_ylabel(f"{measure.axis}, test data of personal models")
    panels[0].set_xlabel("megabytes sent, all clients, up and down")
    panels[1].set_xlabel("seconds of training")
    panels[1].legend(frameon=False, fontsize=8)
    for axes in panels:
        tidy_axes(axes)
    write_title(figure, "What results cost", "a line for every seed")
    return save_figure(figure, folder / "cost")
