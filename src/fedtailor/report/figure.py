"""What all figures share: colours, an empty figure, plain axes, and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    axes.xaxis.get_major_locator().set_params(integer=True)


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write ``<stem>.png`` and ``<stem>.svg``."""
    png = stem.with_suffix(".png")
    svg = stem.with_suffix(".svg")
    figure.savefig(png, dpi=150)
    figure.savefig(svg, dpi=150, metadata={"Date": None})  # the same run, the same file
    return [png, svg]
