"""Pictures of features: t-SNE of all clients together, and of each client beside the others.

GPFL's Fig. 2 and Fed3+2p's Fig. 3. There is one map; the second picture shows every client's
examples in it, with those of the others in grey.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.experiment.feature_table import FeatureTable
from fedtailor.report.figure import COLOURS, make_figure, save_figure

MARKERS = "os^DvPX*<>"
FEWEST = 5  # examples of which a map can be made
COLUMNS = 5  # of the clients' panels
MOST_PANELS = 40
GREY = "#DDDDDD"


def place_features(table: FeatureTable, seed: int, perplexity: float) -> np.ndarray:
    """Two coordinates for every example, by t-SNE."""
    if len(table) < FEWEST:
        raise UserError(f"{len(table)} examples are too few for a map of features")
    from sklearn.manifold import TSNE

    largest = (len(table) - 1) / 3
    found: np.ndarray = TSNE(
        perplexity=min(perplexity, largest),
        init="pca" if table.features.shape[1] > 1 else "random",
        random_state=seed,
    ).fit_transform(table.features)
    return found


def draw_features(
    stem: Path, table: FeatureTable, places: np.ndarray, title: str
) -> list[Path]:
    """``<stem>``: all clients, coloured by class; ``<stem>_clients``: one by one."""
    figure = make_figure(7.2, 5.4)
    axes = figure.subplots()
    _draw_classes(axes, table, places, np.ones(len(table), bool), 16)
    _name_clients(axes, table, places)
    axes.set_title(title, fontsize=11)
    _hide_ticks(axes)
    axes.legend(
        title="class",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=9,
        markerscale=1.6,
    )
    files = save_figure(figure, stem)
    if len(np.unique(table.clients)) > 1:
        stem = stem.with_name(f"{stem.name}_clients")
        files += draw_clients(stem, table, places, title)
    return files


def draw_clients(
    stem: Path, table: FeatureTable, places: np.ndarray, title: str
) -> list[Path]:
    """A panel for every client, with the others' examples in grey."""
    clients = np.unique(table.clients)[:MOST_PANELS]
    columns = min(COLUMNS, len(clients))
    rows = math.ceil(len(clients) / columns)
    figure = make_figure(2.0 * columns + 1.2, 2.0 * rows + 0.5)
    panels: Any = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[len(clients) :]:
        axes.set_visible(False)
    for axes, k in zip(panels.flat, clients, strict=False):
        axes.scatter(*places.T, s=4, color=GREY, linewidths=0)
        _draw_classes(axes, table, places, table.clients == k, 12)
        axes.set_title(f"client {k}", fontsize=9)
        _hide_ticks(axes)
    figure.suptitle(title, fontsize=11)
    figure.legend(
        handles=_make_legend(table),
        title="class",
        loc="outside right center",
        frameon=False,
        fontsize=8,
    )
    return save_figure(figure, stem)


def _draw_classes(
    axes: Any, table: FeatureTable, places: np.ndarray, mask: np.ndarray, size: float
) -> None:
    """The examples of every class, in its colour and with its mark."""
    for c in np.unique(table.labels):
        chosen = mask & (table.labels == c)
        if not chosen.any():
            continue
        axes.scatter(
            *places[chosen].T,
            s=size,
            color=COLOURS[c % len(COLOURS)],
            marker=_marker_of(c),
            linewidths=0,
            alpha=0.85,
            label=table.name_class(c),
        )


def _marker_of(c: int) -> str:
    """Classes that share a colour differ in their mark."""
    return MARKERS[(c // len(COLOURS)) % len(MARKERS)]


def _make_legend(table: FeatureTable) -> list[Any]:
    """A mark for every class that there is."""
    from matplotlib.lines import Line2D

    handles = []
    for c in np.unique(table.labels):
        handle = Line2D(
            [],
            [],
            linestyle="",
            marker=_marker_of(c),
            color=COLOURS[c % len(COLOURS)],
            label=table.name_class(c),
        )
        handles.append(handle)
    return handles


def _name_clients(axes: Any, table: FeatureTable, places: np.ndarray) -> None:
    """The number of every client where most of its examples of its largest class are."""
    clients = np.unique(table.clients)
    if not 1 < len(clients) <= 20:
        return
    for k in clients:
        own = table.clients == k
        largest = np.bincount(table.labels[own]).argmax()
        x, y = np.median(places[own & (table.labels == largest)], axis=0)
        axes.annotate(
            str(k),
            (x, y),
            fontsize=8,
            ha="center",
            va="center",
            bbox={
                "boxstyle": "circle,pad=0.15",
                "fc": "white",
                "alpha": 0.8,
                "lw": 0.6,
            },
        )


def _hide_ticks(axes: Any) -> None:
    """Distances in a map by t-SNE have no unit."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color("#BBBBBB")
