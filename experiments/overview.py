"""All comparisons in one picture: how far every method is behind the best in each of them."""

from __future__ import annotations

import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from experiments.records import Record

FEWEST_METHODS = 8  # smaller comparisons were made to explain something
WORST = 25  # points behind the best, from which on all cells look alike

Tables = dict[str, dict[str, Record]]  # by comparison and method


def draw_overview(recorded: Tables, path: Path) -> bool:
    """Draw methods down and comparisons across; False if there is nothing to draw."""
    tables = {
        name: rows for name, rows in recorded.items() if len(rows) >= FEWEST_METHODS
    }
    if not tables:
        return False
    methods = sort_methods(tables)
    accuracy = collect_accuracies(tables, methods)
    behind = np.nanmax(accuracy, axis=0) - accuracy
    width = 1.5 + 0.85 * len(tables)
    height = 1.6 + 0.27 * len(methods)
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    image = axes.imshow(behind, cmap="YlGnBu_r", vmin=0, vmax=WORST, aspect="auto")
    write_cells(axes, accuracy, behind)
    titles = [name.replace("-", "\n", 1) for name in tables]
    axes.set_xticks(range(len(tables)), titles, fontsize=8)
    axes.set_yticks(range(len(methods)), methods, fontsize=9)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=0.5, extend="max")
    bar.set_label("points behind the best", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return True


def sort_methods(tables: Tables) -> list[str]:
    """The best first, by the mean share of a comparison's other methods that are better."""
    shares: dict[str, list[float]] = {}
    for rows in tables.values():
        accuracies = [record.best[0] for record in rows.values()]
        others = len(rows) - 1
        for method, record in rows.items():
            better = sum(accuracy > record.best[0] for accuracy in accuracies)
            shares.setdefault(method, [])
            shares[method].append(better / others)
    mean = {method: statistics.fmean(values) for method, values in shares.items()}
    return sorted(mean, key=lambda method: (mean[method], method))


def collect_accuracies(tables: Tables, methods: list[str]) -> np.ndarray:
    """Accuracies in percent, methods down and comparisons across; NaN where there is none."""
    accuracy = np.full((len(methods), len(tables)), np.nan)
    for column, rows in enumerate(tables.values()):
        for line, method in enumerate(methods):
            if method not in rows:
                continue
            best, _ = rows[method].best
            accuracy[line, column] = 100 * best
    return accuracy


def write_cells(axes: Axes, accuracy: np.ndarray, behind: np.ndarray) -> None:
    """Write every accuracy into its cell, the best of a comparison in bold."""
    for line, column in np.argwhere(~np.isnan(accuracy)):
        points = behind[line, column]
        dark = points < 0.45 * WORST
        best = points == 0
        axes.text(
            column,
            line,
            f"{accuracy[line, column]:.1f}",
            ha="center",
            va="center",
            fontsize=8,
            color="white" if dark else "black",
            weight="bold" if best else "normal",
        )
