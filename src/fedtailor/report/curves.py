"""Curves of a run and of a comparison, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedtailor.experiment.run_folder import JOURNAL, journal

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


def curves(folder: Path, records: Sequence[dict[str, Any]], best: int | None) -> list[Path]:
    """Accuracy and loss over the evaluated rounds, with the chosen round marked."""
    if not records:
        return []
    figure = make_figure(
        8.4, 3.4, layout=None
    )  # places by hand: laying out takes as long as drawing, in every run
    figure.subplots_adjust(left=0.075, right=0.985, bottom=0.15, top=0.96, wspace=0.22)
    left, right = figure.subplots(1, 2)
    t = [r["t"] for r in records]
    for axes, kind, name in ((left, "accuracy", "accuracy"), (right, "loss", "cross entropy")):
        for part, colour in (("test", COLOURS[0]), ("val", COLOURS[4])):
            values = [r["evaluation"][part][kind] for r in records]
            if any(v is not None for v in values):
                label = "test" if part == "test" else "validation"
                axes.plot(
                    t, [float("nan") if v is None else v for v in values], color=colour, label=label
                )
        axes.set_xlabel("round")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylabel(name)
        tidy(axes)
    if best is not None:
        left.axvline(best, color="#999999", linewidth=0.8, linestyle=":")
        left.annotate(
            f"chosen: {best}",
            (best, left.get_ylim()[0]),
            textcoords="offset points",
            xytext=(-3, 4),
            fontsize=8,
            color="#666666",
            ha="right",
        )
    left.legend(frameon=False, fontsize=9)
    return save_figure(figure, folder / "curves")


def compared(folder: Path, results: dict[str, list[dict[str, Any]]]) -> list[Path]:
    """Mean test accuracy over rounds of every method, and each method's spread over clients."""
    order = sorted(results, key=lambda m: -_mean([_headline(r) for r in results[m]]))
    figure = make_figure(10.0, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for i, method in enumerate(order):
        runs = [
            journal(folder / f"{Path(method).stem}-s{r['seed']}" / JOURNAL) for r in results[method]
        ]
        seen = [
            {x["t"]: x["evaluation"]["test"]["accuracy"] for x in run if x.get("evaluation")}
            for run in runs
        ]
        t = sorted(set.intersection(*(set(s) for s in seen)))
        colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
        left.plot(
            t,
            [_mean([s[x] for s in seen]) for x in t],
            color=colour,
            linestyle=dash,
            label=Path(method).stem,
        )
    left.set_xlabel("round")
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set_ylabel("test accuracy of personal models")
    left.legend(frameon=False, fontsize=8, ncol=2 if len(order) > 6 else 1)
    tidy(left)
    spread = [
        [c["accuracy"] for r in results[m] for c in r["clients"] if c["accuracy"] is not None]
        for m in order
    ]
    boxes = right.boxplot(
        spread, orientation="horizontal", widths=0.6, showfliers=False, patch_artist=True
    )
    for i, box in enumerate(boxes["boxes"]):
        box.set(facecolor=COLOURS[i % len(COLOURS)], alpha=0.55, linewidth=0.8)
    for median in boxes["medians"]:
        median.set(color="black")
    right.set_yticks(range(1, len(order) + 1), [Path(m).stem for m in order], fontsize=9)
    right.invert_yaxis()
    right.set_xlabel("accuracy of single clients")
    tidy(right)
    return [
        *save_figure(figure, folder / "comparison"),
        folder / "leaderboard.md",
        folder / "leaderboard.csv",
    ]


def _headline(result: dict[str, Any]) -> float:
    best = result["accuracy"]["best"]
    return float(best if best is not None else result["accuracy"]["last"])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def make_figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """An empty figure, of a size in inches."""
    from matplotlib.backends.backend_agg import (
        FigureCanvasAgg,
    )  # here, because they take a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Any) -> None:
    """No frame, a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """As PNG and SVG."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths
