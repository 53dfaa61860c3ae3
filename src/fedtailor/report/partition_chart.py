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

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOUR = "#c0392b"
NAMED = 30  # so many clients or classes get a tick of their own
VECTORS = 4000  # bubbles; more of them are drawn as pixels within the SVG


class Row(NamedTuple):
    """One client's line in the table."""

    client: int
    owner: str  # its name, where it has one
    train: int
    val: int
    test: int
    classes: int  # how many it has any sample of
    labels: str  # the largest classes and their sizes


def counts(
    federation: Federation, part: Literal["train", "val", "test", "all"] = "train"
) -> Tensor:
    """How many samples of each class every client has: (clients, classes)."""
    parts = ("train", "val", "test") if part == "all" else (part,)
    out = torch.zeros(federation.clients, federation.classes, dtype=torch.int64)
    for name in parts:
        vectors: list[Tensor] = getattr(federation, name)
        y = federation.y[torch.cat(vectors)]
        k = torch.repeat_interleave(
            torch.arange(len(vectors)), torch.tensor([len(v) for v in vectors])
        )
        out.view(-1).add_(torch.bincount(k * federation.classes + y, minlength=out.numel()))
    return out


def table(federation: Federation, shown: int = 4) -> list[Row]:
    """A row a client: sizes, and the ``shown`` largest classes over all its samples."""
    rows = []
    for k, held in enumerate(counts(federation, "all")):
        order = torch.argsort(held, descending=True, stable=True)[:shown].tolist()
        labels = [f"{name_class(federation, c)}: {held[c]}" for c in order if held[c]]
        classes = int((held > 0).sum())
        owner = federation.owners[k] if federation.owners else ""
        sizes = len(federation.train[k]), len(federation.val[k]), len(federation.test[k])
        rows.append(
            Row(k, owner, *sizes, classes, ", ".join(labels) + (" ..." if classes > shown else ""))
        )
    return rows


def name_class(federation: Federation, c: int) -> str:
    """The class's name, or its number."""
    return federation.labels[c] if c < len(federation.labels) else str(c)


def bubbles(federation: Federation, stem: str | Path) -> list[Path]:
    """Draw clients x classes, area = samples over all parts, into ``<stem>.png`` and ``<stem>.svg``."""
    import matplotlib  # slow to import, and only needed when something is drawn
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    held = counts(federation, "all").numpy()
    clients, classes = held.shape
    wide, high = min(max(0.34 * clients, 4.5), 20.0), min(max(0.34 * classes, 2.2), 16.0)
    left, bottom, right, top = (
        0.5 + 0.08 * _widest(federation.labels, classes),
        0.7,
        1.4,
        0.5,
    )  # margins, in inches
    bottom += 0.06 * max(0, _widest(federation.owners, clients) - 3)
    figure = Figure(figsize=(left + wide + right, bottom + high + top))
    FigureCanvasAgg(figure)
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, bottom / height, wide / width, high / height))
    largest = _largest_bubble(held, wide * 72, high * 72)
    k, c = np.nonzero(held)
    area = largest**2 * held[k, c] / held.max()
    axes.scatter(k, c, s=area, c=COLOUR, alpha=0.85, linewidths=0, rasterized=len(k) > VECTORS)
    axes.set(
        xlim=(-0.6, clients - 0.4), ylim=(-0.6, classes - 0.4), xlabel="client", ylabel="class"
    )
    axes.set_axisbelow(True)
    _mark_ticks(axes, federation)
    _mark_areas(axes, int(held.max()), largest)
    partition = federation.settings.get("partition", "")
    axes.set_title(
        f"{federation.name}  {partition}  ({held.sum():,} samples)",
        fontsize=10,
        loc="left",
        parse_math=False,
    )
    paths = [Path(f"{stem}.png"), Path(f"{stem}.svg")]
    try:
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(paths[0], dpi=150, metadata={"Software": None})
        with matplotlib.rc_context({"svg.hashsalt": "fedtailor", "svg.fonttype": "none"}):
            figure.savefig(paths[1], dpi=150, metadata={"Date": None})
    except OSError as error:
        raise UserError(f"cannot write the chart '{stem}.png': {error.strerror}") from error
    return paths


def _largest_bubble(held: npt.NDArray[np.int64], wide: float, high: float) -> float:
    """Diameter for the largest count, in points like the plot's size.

    It fills its cell. Where cells are tiny and most of them nearly empty it may reach over its neighbours, as long as
    all bubbles together cover no more than a fifth of the plot.
    """
    clients, classes = held.shape
    cell: float = min(wide / clients, high / classes, 36.0)
    cover = math.sqrt(0.2 * wide * high / (math.pi / 4 * float(held.sum() / held.max())))
    return max(0.92 * cell, min(3 * cell, cover, 18.0), 4.0)  # smaller ones could not be seen


def _widest(names: tuple[str, ...], n: int) -> int:
    """Letters in the longest tick label."""
    return max(map(len, names)) if names and n <= NAMED else len(str(n))


def _mark_ticks(axes: Axes, federation: Federation) -> None:
    clients, classes = federation.clients, federation.classes
    names = federation.owners if clients <= NAMED else ()
    long = any(len(name) > 3 for name in names)
    axes.set_xticks(
        _step(clients),
        [names[k] if names else str(k) for k in _step(clients)],
        rotation=45 if long else 0,
        ha="right" if long else "center",
        parse_math=False,  # a dollar in a name is a dollar
    )
    shown = [name_class(federation, c) if classes <= NAMED else str(c) for c in _step(classes)]
    axes.set_yticks(_step(classes), shown, parse_math=False)
    axes.tick_params(labelsize=8, length=0)
    axes.grid(color="#eeeeee", linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_color("#cccccc")


def _step(n: int) -> list[int]:
    """At most about thirty numbers below n, at a round distance."""
    distance = next(d * 10**e for e in range(9) for d in (1, 2, 5) if n <= NAMED * d * 10**e)
    return list(range(0, n, distance))


def _mark_areas(axes: Axes, most: int, largest: float) -> None:
    """A legend with three round sizes."""
    for size in sorted({_round_down(most * f) for f in (1.0, 0.3, 0.1)} - {0}):
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
        labelspacing=max(0.5, largest / 8 - 0.6),  # in units of the font size, as the next
        handlelength=max(1.0, largest / 8),
        handletextpad=0.6,
    )


def _round_down(x: float) -> int:
    """The largest of 1, 2, 5, 10, 20, 50 ... that is at most x, 0 below 1."""
    return max((d * 10**e for e in range(12) for d in (1, 2, 5) if d * 10**e <= x), default=0)
