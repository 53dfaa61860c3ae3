"""Figures of a method's diagnostics (FedCP's PIR and s, say), as PNG and SVG."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.report.figure import (
    COLOURS,
    label_rounds,
    make_figure,
    save_figure,
    tidy_axes,
)

COLUMNS = 3  # panels side by side
MANY_CLIENTS = 50  # above, lines cannot be told apart and take minutes to draw
PARTS = {
    "train": ("training samples", COLOURS[4]),
    "test": ("test samples", COLOURS[0]),
}
FLOOR = "_floor"  # NAME_floor is the value of NAME for a model that has learnt nothing

Series = dict[int, dict[str, Any]]  # by round, every client's value


def draw_diagnostics(folder: Path, records: Iterable[dict[str, Any]]) -> list[Path]:
    """A panel for each diagnostic.

    Single numbers are drawn for every client over the rounds, distributions at the last round.
    """
    series = collect_series(records)
    names = dict.fromkeys(name.partition("/")[2] for name in series)
    shown = [name for name in names if not name.endswith(FLOOR)]
    if not shown:
        return []
    columns = min(len(shown), COLUMNS)
    rows = -(-len(shown) // COLUMNS)
    figure = make_figure(3.6 * columns, 3.0 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, name in zip_longest(panels, shown):
        if name is None:
            axes.set_visible(False)
        else:
            _draw_panel(figure, axes, series, name)
    return save_figure(figure, folder / "notes")


def collect_series(records: Iterable[dict[str, Any]]) -> dict[str, Series]:
    """By name ("train/PIR"), the clients' values in every evaluated round."""
    series: dict[str, Series] = {}
    for record in records:
        for name, by_client in record["evaluation"]["notes"].items():
            series.setdefault(name, {})[record["t"]] = by_client
    return series


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
    for part, series in by_part.items():
        label, colour = PARTS[part]
        _draw_clients(axes, series, colour)
        means = _means(series)
        axes.plot(
            list(series),
            means,
            color=colour,
            linewidth=1.8,
            label=label,
            marker="." if len(means) == 1 else "",
        )
    if floor:
        axes.plot(
            list(floor),
            _means(floor),
            color="#666666",
            linewidth=1.0,
            linestyle=":",
            label="having learnt nothing",
        )
    axes.set_title(name, fontsize=10)
    label_rounds(axes)
    axes.legend(frameon=False, fontsize=8)
    tidy_axes(axes)


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
    axes.set_title(f"{name}, test samples, round {t}", fontsize=10)
    axes.set_xlabel(name)
    axes.set_ylabel("client")
    figure.colorbar(picture, ax=axes, label="share of values")
