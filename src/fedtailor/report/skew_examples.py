"""A picture of feature skew: the same classes as each client sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtailor.data.federation import Federation
from fedtailor.report.figure import make_figure, save_figure
from fedtailor.report.recovered_images import show_input

CLIENTS = 8  # that are shown, evenly chosen
IMAGES = 8  # of each


def draw_skew_examples(federation: Federation, stem: str | Path) -> list[Path]:
    """Write ``<stem>.png`` and ``<stem>.svg``: a row of training images for every client."""
    count = min(CLIENTS, federation.clients)
    clients = torch.linspace(0, federation.clients - 1, count).round().long().tolist()
    figure = make_figure(1.4 + 0.7 * IMAGES, 0.4 + 0.72 * count)
    axes: Any = figure.subplots(count, IMAGES, squeeze=False)
    limits = find_limits(federation.x)
    for row, k in zip(axes, clients, strict=True):
        for axis in row:
            axis.axis("off")
        for axis, i in zip(row, choose_examples(federation, k), strict=False):
            axis.axis("on")
            place = i if federation.row is None else int(federation.row[i])
            show_input(axis, federation.x[place], limits)
        name = federation.owners[k] if federation.owners else f"client {k}"
        row[0].axis("on")
        row[0].set_xticks([])
        row[0].set_yticks([])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    figure.suptitle(
        f"{federation.name}  {federation.settings.get('partition', '')}",
        fontsize=9,
        parse_math=False,
    )
    return save_figure(figure, Path(stem))


def choose_examples(federation: Federation, k: int) -> list[int]:
    """Training samples of a client, of one class after the other, so that rows can be compared."""
    index = federation.train[k]
    labels = federation.y[index]
    chosen: list[int] = []
    turn = 0
    by_class = [index[labels == label] for label in torch.unique(labels)]
    while len(chosen) < IMAGES and any(turn < len(own) for own in by_class):
        chosen += [int(own[turn]) for own in by_class if turn < len(own)]
        turn += 1
    return chosen[:IMAGES]


def find_limits(x: Tensor) -> tuple[float, float]:
    """Black and white."""
    if x.dtype == torch.uint8:
        return 0.0, 255.0
    return float(x.min()), float(x.max())
