"""A picture of what an attack recovered: originals in the first row, attempts below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedtailor.report.figure import make_figure, save_figure

MOST = 8  # inputs that are shown


def draw_recovered(
    stem: Path,
    originals: Tensor,
    rows: Sequence[tuple[str, Tensor]],
    limits: tuple[float, float],
) -> list[Path]:
    """Write the picture: originals, then a row for every attempt, with its caption."""
    lines = [("original", originals), *rows]
    if len(originals) == 1:
        return draw_in_one_row(stem, lines, limits)
    count = min(MOST, len(originals))
    figure = make_figure(3.2 + 0.9 * count, 0.95 * len(lines))
    axes: Any = figure.subplots(len(lines), count, squeeze=False)
    for row, (caption, images) in zip(axes, lines, strict=True):
        for axis, image in zip(row, images[:count], strict=True):
            show_input(axis, image, limits)
        row[0].set_ylabel(caption, rotation=0, ha="right", va="center", fontsize=7)
    return save_figure(figure, stem)


def draw_in_one_row(
    stem: Path, lines: Sequence[tuple[str, Tensor]], limits: tuple[float, float]
) -> list[Path]:
    """One original and its attempts, side by side."""
    figure = make_figure(1.3 * len(lines), 2.1)
    axes: Any = figure.subplots(1, len(lines), squeeze=False)
    for axis, (caption, images) in zip(axes[0], lines, strict=True):
        show_input(axis, images[0], limits)
        axis.set_title(caption.replace(", ", "\n"), fontsize=7)
    return save_figure(figure, stem)


def show_input(axis: Any, values: Tensor, limits: tuple[float, float]) -> None:
    """An image, or a row of numbers as a curve."""
    axis.set_xticks([])
    axis.set_yticks([])
    low, high = limits
    array = values.detach().numpy()
    if array.ndim != 3:
        axis.plot(array.reshape(-1), linewidth=0.6)
        return
    unit = np.clip((array - low) / max(high - low, 1e-12), 0, 1)
    if unit.shape[0] == 3:
        axis.imshow(unit.transpose(1, 2, 0))
    else:
        axis.imshow(unit[0], cmap="gray", vmin=0, vmax=1)
