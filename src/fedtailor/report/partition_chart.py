"""What a federation looks like: counts, a table, and the papers' bubble chart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation
from fedtailor.report.figure import make_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOUR = "#c0392b"
NAMED = 30  # up to so many clients or classes get a tick of their own
VECTORS = 4000  # bubbles; more of them are drawn as pixels within the SVG
POINTS = 72  # in an inch


class PartitionRow(NamedTuple):
    """One client's line in the table."""

    client: int
    owner: str  # its name, where it has one
    train: int
    val: int
    test: int
    classes: int  # how many it has any sample of
    labels: str  # the largest classes and their sizes


# ---------------------------------------------------------------- counts and table


def count_samples(
    federation: Federation, part: Literal["train", "val", "test", "all"] = "train"
) -> Tensor:
    """How many samples of each class every client has: (clients, classes)."""
    parts = ("train", "val", "test") if part == "all" else (part,)
    counts = torch.zeros(federation.clients, federation.classes, dtype=torch.int64)
    for name in parts:
        indices: list[Tensor] = getattr(federation, name)
        labels = federation.y[torch.cat(indices)]
        sizes = torch.tensor([len(of_client) for of_client in indices])
        clients = torch.repeat_interleave(torch.arange(len(indices)), sizes)
        cells = clients * federation.classes + labels
        counts.view(-1).add_(torch.bincount(cells, minlength=counts.numel()))
    return counts


def make_partition_rows(federation: Federation, shown: int = 4) -> list[PartitionRow]:
    """A row for every client, with the ``shown`` largest classes over all its samples."""
    rows = []
    for k, counts in enumerate(count_samples(federation, "all")):
        rows.append(
            PartitionRow(
                client=k,
                owner=federation.owners[k] if federation.owners else "",
                train=len(federation.train[k]),
                val=len(federation.val[k]),
                test=len(federation.test[k]),
                classes=int((counts > 0).sum()),
                labels=_describe_classes(federation, counts, shown),
            )
        )
    return rows


def _describe_classes(federation: Federation, counts: Tensor, shown: int) -> str:
    """``cat: 5, hen: 3 ...``: the largest classes of a client."""
    largest = torch.argsort(counts, descending=True, stable=True)[:shown].tolist()
    texts = [f"{name_class(federation, c)}: {counts[c]}" for c in largest if counts[c]]
    more = " ..." if int((counts > 0).sum()) > shown else ""
    return ", ".join(texts) + more


def name_class(federation: Federation, c: int) -> str:
    """The class's name, or its number."""
    return federation.labels[c] if c < len(federation.labels) else str(c)


# ---------------------------------------------------------------- bubble chart


def draw_partition(federation: Federation, stem: str | Path) -> list[Path]:
    """Draw clients x classes into ``<stem>.png``, ``.svg`` and ``.pdf``; area = samples."""
    counts = count_samples(federation, "all").numpy()
    width, height = _plot_size(federation)
    figure, axes = _make_axes(federation, width, height)
    largest = _largest_bubble(counts, width * POINTS, height * POINTS)
    _draw_bubbles(axes, counts, largest)
    _draw_ticks(axes, federation)
    _draw_legend(axes, int(counts.max()), largest)
    partition = federation.settings.get("partition", "")
    axes.set_title(
        f"{federation.name}  {partition}  ({counts.sum():,} samples)",
        fontsize=10,
        loc="left",
        parse_math=False,
    )
    return _save_chart(figure, stem)


def _plot_size(federation: Federation) -> tuple[float, float]:
    """Width and height within the axes, in inches."""
    width = min(max(0.34 * federation.clients, 4.5), 20.0)
    height = min(max(0.34 * federation.classes, 2.2), 16.0)
    return width, height


def _make_axes(
    federation: Federation, width: float, height: float
) -> tuple[Figure, Axes]:
    """A figure with room for the tick labels beside a plot of this size."""
    left = 0.5 + 0.08 * _longest_label(federation.labels, federation.classes)
    bottom = 0.7
    bottom += 0.06 * max(0, _longest_label(federation.owners, federation.clients) - 3)
    right = 1.4
    top = 0.5
    figure = make_figure(left + width + right, bottom + height + top, layout=None)
    total_width, total_height = figure.get_size_inches()
    axes = figure.add_axes(
        (
            left / total_width,
            bottom / total_height,
            width / total_width,
            height / total_height,
        )
    )
    return figure, axes


def _longest_label(names: tuple[str, ...], n: int) -> int:
    """Letters in the longest tick label of n clients or classes."""
    if names and n <= NAMED:
        return max(map(len, names))
    return len(str(n))


def _largest_bubble(
    counts: npt.NDArray[np.int64], width: float, height: float
) -> float:
    """Diameter for the largest count, in points like the plot's size.

    It fills its cell. Where cells are tiny and most of them nearly empty it may reach over its
    neighbours, as long as all bubbles together cover no more than a fifth of the plot.
    """
    clients, classes = counts.shape
    cell: float = min(width / clients, height / classes, 36.0)
    # as many of the largest have the same area
    bubbles = float(counts.sum() / counts.max())
    cover = math.sqrt(0.2 * width * height / (math.pi / 4 * bubbles))
    smallest = 4.0  # or it could not be seen
    return max(0.92 * cell, min(3 * cell, cover, 18.0), smallest)


def _draw_bubbles(axes: Axes, counts: npt.NDArray[np.int64], largest: float) -> None:
    clients, classes = counts.shape
    k, c = np.nonzero(counts)
    area = largest**2 * counts[k, c] / counts.max()
    axes.scatter(
        k,
        c,
        s=area,
        c=COLOUR,
        alpha=0.85,
        linewidths=0,
        rasterized=len(k) > VECTORS,
    )
    axes.set(
        xlim=(-0.6, clients - 0.4),
        ylim=(-0.6, classes - 0.4),
        xlabel="client",
        ylabel="class",
    )
    axes.set_axisbelow(True)


def _draw_ticks(axes: Axes, federation: Federation) -> None:
    clients = federation.clients
    classes = federation.classes
    client_ticks = _choose_ticks(clients)
    class_ticks = _choose_ticks(classes)
    client_names = [str(k) for k in client_ticks]
    class_names = [str(c) for c in class_ticks]
    if federation.owners and clients <= NAMED:
        client_names = [federation.owners[k] for k in client_ticks]
    if classes <= NAMED:
        class_names = [name_class(federation, c) for c in class_ticks]
    slanted = clients <= NAMED and any(len(name) > 3 for name in federation.owners)
    axes.set_xticks(
        client_ticks,
        client_names,
        rotation=45 if slanted else 0,
        ha="right" if slanted else "center",
        parse_math=False,  # a dollar in a name is a dollar
    )
    axes.set_yticks(class_ticks, class_names, parse_math=False)
    axes.tick_params(labelsize=8, length=0)
    axes.grid(color="#eeeeee", linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_color("#cccccc")


def _choose_ticks(n: int) -> list[int]:
    """At most about thirty numbers below n, at a round distance."""
    distance = next(step for step in _round_numbers(9) if n <= NAMED * step)
    return list(range(0, n, distance))


def _draw_legend(axes: Axes, most: int, largest: float) -> None:
    """The largest bubble of all, and two of round sizes."""
    sizes = {most, *(_round_down(most * share) for share in (0.3, 0.1))}
    for size in sorted(sizes - {0}):
        axes.scatter(
            [],
            [],
            s=largest**2 * size / most,
            c=COLOUR,
            alpha=0.85,
            linewidths=0,
            label=f"{size:,}",
        )
    axes.legend(
        title="samples",
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        fontsize=8,
        title_fontsize=9,
        labelspacing=max(
            0.5, largest / 8 - 0.6
        ),  # in units of the font size, as the next
        handlelength=max(1.0, largest / 8),
        handletextpad=0.6,
    )


def _round_down(x: float) -> int:
    """The largest of 1, 2, 5, 10, 20, 50 ... that is at most x, 0 below 1."""
    return max((number for number in _round_numbers(12) if number <= x), default=0)


def _round_numbers(digits: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ..., of at most so many digits."""
    return [factor * 10**power for power in range(digits) for factor in (1, 2, 5)]


def _save_chart(figure: Figure, stem: str | Path) -> list[Path]:
    """Write PNG, SVG and PDF, of the same bytes for the same federation."""
    try:
        Path(f"{stem}.png").parent.mkdir(parents=True, exist_ok=True)
        return save_figure(figure, Path(stem))
    except OSError as error:
        raise UserError(
            f"cannot write the chart '{stem}.png': {error.strerror}"
        ) from error
