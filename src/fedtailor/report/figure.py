"""What all figures share: an empty figure, lines, plain axes, titles, and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedtailor.report.colours import Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedtailor.report.story.curves import Event

# of classes, and of other series than methods, which have their own in colours.py
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8C564B",
    "#7F7F7F",
    "#BCBD22",
)
DASHES = ("-", "--", "-.", ":")
SOFT = "#5a636e"  # what is beside the matter
FAULT = "#a63a12"  # what went wrong
LINES = {"solid": "-", "dashed": "--", "dotted": ":", "dashdot": "-."}
MARKS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "star": "*",
    "cross": "P",
}
MANY_POINTS = 30  # above, a line needs no marks


def make_figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """An empty figure of a size in inches."""
    # imported here, because it takes a second
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def tidy_axes(axes: Any) -> None:
    """No frame, a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def label_rounds(axes: Any) -> None:
    """Rounds on the x axis, as whole numbers."""
    axes.set_xlabel("round")
    from matplotlib.ticker import MaxNLocator

    locator = axes.xaxis.get_major_locator()
    if isinstance(locator, MaxNLocator):  # and not ticks that are set already
        locator.set_params(integer=True)


def style_line(style: Style, points: int) -> dict[str, Any]:
    """A method's line for matplotlib, with its marks where points are few."""
    return {
        "color": style.colour,
        "linestyle": LINES[style.line],
        "marker": MARKS[style.mark] if points <= MANY_POINTS else "",
        "markersize": 4,
        "linewidth": 1.6,
    }


def write_title(figure: Figure, title: str, beside: str = "") -> None:
    """What the figure shows, and of what, above all panels."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    if beside:
        figure.text(0.99, 0.985, beside, ha="right", va="top", fontsize=8, color=SOFT)


def mark_events(axes: Any, events: Sequence[Event]) -> None:
    """Upright lines where clients came or left, ticks where a round was skipped."""
    top = axes.get_xaxis_transform()
    for event in events:
        if event.kind == "skipped":
            axes.plot([event.t], [0.015], "|", color=FAULT, transform=top, markersize=9)
            continue
        axes.axvline(event.t, color=SOFT, linewidth=0.8, linestyle="--")
        axes.text(event.t, 1.01, event.text, transform=top, fontsize=7, color=SOFT)


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write ``<stem>.png``, ``<stem>.svg`` and ``<stem>.pdf``; the same run, the same files."""
    import matplotlib  # here, because it takes a second

    metadata: dict[str, dict[str, Any]] = {
        ".png": {"Software": None},
        ".svg": {"Date": None},
        ".pdf": {"CreationDate": None},
    }
    paths = [Path(f"{stem}{ending}") for ending in metadata]
    # letters stay letters in the SVG, and names are not random
    with matplotlib.rc_context({"svg.hashsalt": "fedtailor", "svg.fonttype": "none"}):
        for path in paths:
            figure.savefig(path, dpi=150, metadata=metadata[path.suffix])
    return paths
