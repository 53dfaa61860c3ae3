"""All comparisons in one picture: methods down, data across, and how far each is behind the best there."""

from __future__ import annotations

import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from records import Record

LEAST = 8  # methods; smaller comparisons were made to explain something
WORST = 25  # points behind the best, from which on all cells look alike


def draw(known: dict[str, dict[str, Record]], path: Path) -> bool:
    """Write the picture of what is recorded, by comparison and method; whether there is anything to draw."""
    tables = {name: rows for name, rows in known.items() if len(rows) >= LEAST}
    if not tables:
        return False
    methods = sort_methods(tables)
    cells = np.full((len(methods), len(tables)), np.nan)
    for j, rows in enumerate(tables.values()):
        for i, method in enumerate(methods):
            if method in rows:
                cells[i, j] = 100 * rows[method].best[0]
    behind = np.nanmax(cells, axis=0) - cells
    figure, axes = plt.subplots(
        figsize=(1.5 + 0.85 * len(tables), 1.6 + 0.27 * len(methods)), layout="constrained"
    )
    picture = axes.imshow(behind, cmap="YlGnBu_r", vmin=0, vmax=WORST, aspect="auto")
    for i, j in np.argwhere(~np.isnan(cells)):
        shade = "white" if behind[i, j] < 0.45 * WORST else "black"
        weight = "bold" if behind[i, j] == 0 else "normal"
        axes.text(
            j,
            i,
            f"{cells[i, j]:.1f}",
            ha="center",
            va="center",
            fontsize=8,
            color=shade,
            weight=weight,
        )
    axes.set_yticks(range(len(methods)), methods, fontsize=9)
    axes.set_xticks(range(len(tables)), [name.replace("-", "\n", 1) for name in tables], fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(picture, ax=axes, shrink=0.5, extend="max")
    bar.set_label("points behind the best", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return True


def sort_methods(tables: dict[str, dict[str, Record]]) -> list[str]:
    """The best first, by the mean share of a comparison's other methods that stand before them."""
    shares: dict[str, list[float]] = {}
    for rows in tables.values():
        for method, r in rows.items():
            before = sum(other.best[0] > r.best[0] for other in rows.values())
            shares.setdefault(method, []).append(before / (len(rows) - 1))
    return sorted(shares, key=lambda m: (statistics.fmean(shares[m]), m))
