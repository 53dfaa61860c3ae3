"""Figures of a method's diagnostics (FedCP's PIR and s, say), as PNG, SVG and PDF."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.report.colours import BLUE, ORANGE
from fedtailor.report.figure import (
    SOFT,
    label_rounds,
    make_figure,
    save_figure,
    tidy_axes,
    write_title,
)
from fedtailor.report.story.diagnostic_words import find_words

COLUMNS = 3  # panels side by side
MANY_CLIENTS = 50  # above, lines cannot be told apart and take minutes to draw
PARTS = {
    "test": ("test examples", BLUE, "-"),
    "train": (
        "training examples",
        ORANGE,
        "--",
    ),  # on top: dashes let the other be seen
}
FLOOR = "_floor"  # NAME_floor is the value of NAME for a model that has learnt nothing

Series = dict[int, dict[str, Any]]  # by round, every client's value


def draw_diagnostics(
    folder: Path, records: Iterable[dict[str, Any]], title: str = ""
) -> list[Path]:
    """A panel for each diagnostic.

    Single numbers are drawn for every client over the rounds, distributions at the last round.
    """
    series = collect_series(records)
    names = dict.fromkeys(name.partition("/")[2] for name in series)
    shown = drop_twins(series, [name for name in names if not name.endswith(FLOOR)])
    if not shown:
        return []
    columns = min(len(shown), COLUMNS)
    rows = -(-len(shown) // COLUMNS)
    figure = make_figure(max(4.4 * columns, 5.6), 3.2 * rows + 0.5)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, name in zip_longest(panels, shown):
        if name is None:
            axes.set_visible(False)
        else:
            _draw_panel(figure, axes, series, name)
    _draw_legend(figure, panels)
    write_title(figure, title or "What the method reports about itself")
    return save_figure(figure, folder / "notes")


def _draw_legend(figure: Any, panels: Iterable[Any]) -> None:
    """One legend for all panels, of everything that any of them shows."""
    lines: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        lines |= dict(zip(labels, handles, strict=True))
    if lines:
        figure.legend(
            lines.values(),
            lines.keys(),
            loc="outside lower center",
            ncols=len(lines),
            frameon=False,
            fontsize=8,
        )


def collect_series(records: Iterable[dict[str, Any]]) -> dict[str, Series]:
    """By name ("train/PIR"), the clients' values in every evaluated round."""
    series: dict[str, Series] = {}
    for record in records:
        for name, by_client in record["evaluation"]["notes"].items():
            series.setdefault(name, {})[record["t"]] = by_client
    return series


def drop_twins(series: dict[str, Series], names: list[str]) -> list[str]:
    """Without diagnostics that are the same numbers as an earlier one."""
    kept: list[str] = []
    for name in sorted(names, key=lambda name: name == "acc_group"):
        mine = series.get(f"test/{name}")
        if not any(mine == series.get(f"test/{other}") for other in kept):
            kept.append(name)
    return [name for name in names if name in kept]


def _draw_panel(figure: Any, axes: Any, series: dict[str, Series], name: str) -> None:
    by_part = {}
    for part in PARTS:
        if f"{part}/{name}" in series:
            by_part[part] = series[f"{part}/{name}"]
    if any(_is_distribution(found) for found in by_part.values()):
        _draw_distributions(figure, axes, by_part["test"], name)
    else:
        floor = series.get(f"test/{name}{FLOOR}", {})
        _draw_numbers(axes, by_part, floor, name)


def _is_distribution(series: Series) -> bool:
    """Whether a client's value is several numbers: the shares of equal bins between 0 and 1."""
    values = [value for by_client in series.values() for value in by_client.values()]
    return any(isinstance(value, list) for value in values)


def _draw_numbers(
    axes: Any, by_part: dict[str, Series], floor: Series, name: str
) -> None:
    """The mean over clients as a strong line, single clients behind it."""
    words = find_words(name)
    scale = 100.0 if words.unit == "%" else 1.0
    for part, unscaled in by_part.items():
        label, colour, dashes = PARTS[part]
        series = _scale(unscaled, scale)
        _draw_clients(axes, series, colour)
        means = _means(series)
        axes.plot(
            list(series),
            means,
            color=colour,
            linestyle=dashes,
            linewidth=1.8,
            label=label,
            marker="." if len(means) == 1 else "",
        )
    if floor:
        axes.plot(
            list(floor),
            _means(_scale(floor, scale)),
            color=SOFT,
            linewidth=1.4,
            linestyle=":",
            label="having learnt nothing",
        )
    axes.set_title(words.title, fontsize=9)
    axes.set_ylabel(words.unit or name)
    axes.ticklabel_format(axis="y", useOffset=False)
    low, high = axes.get_ylim()
    if high - low < 1e-3 * scale:  # differences that nobody should see
        axes.set_ylim(low - 0.01 * scale, high + 0.01 * scale)
    label_rounds(axes)
    tidy_axes(axes)


def _scale(series: Series, scale: float) -> Series:
    """The same numbers in the unit that is shown."""
    return {
        t: {k: scale * value for k, value in by_client.items()}
        for t, by_client in series.items()
    }


def _draw_clients(axes: Any, series: Series, colour: str) -> None:
    """A faint line for every client, or, of many, a band without the lowest and highest tenth."""
    clients = dict.fromkeys(k for by_client in series.values() for k in by_client)
    if len(clients) > MANY_CLIENTS:
        values = [list(by_client.values()) for by_client in series.values()]
        low = [np.quantile(of_round, 0.1) for of_round in values]
        high = [np.quantile(of_round, 0.9) for of_round in values]
        axes.fill_between(list(series), low, high, color=colour, linewidth=0, alpha=0.2)
        return
    for k in clients:
        of_client = {
            t: by_client[k] for t, by_client in series.items() if k in by_client
        }
        rounds = list(of_client)
        axes.plot(
            rounds, list(of_client.values()), color=colour, linewidth=0.6, alpha=0.25
        )


def _means(series: Series) -> list[float]:
    """Over clients, by round."""
    return [sum(by_client.values()) / len(by_client) for by_client in series.values()]


def _draw_distributions(figure: Any, axes: Any, series: Series, name: str) -> None:
    """A row for every client, the darker the more of its values lie there."""
    t = max(series)
    clients = sorted(series[t], key=int)
    rows = [series[t][k] for k in clients]
    picture = axes.imshow(
        rows,
        aspect="auto",
        cmap="Blues",
        vmin=0,
        extent=(0, 1, len(rows) - 0.5, -0.5),
        interpolation="nearest",
    )
    step = max(1, len(clients) // 10)
    axes.set_yticks(range(0, len(clients), step), clients[::step])
    title = find_words(name).title
    axes.set_title(f"{title}, round {t}", fontsize=9)
    axes.set_xlabel(name)
    axes.set_ylabel("client")
    figure.colorbar(picture, ax=axes, label="share of values")
