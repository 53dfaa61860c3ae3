"""What a method tells of its clients (FedCP's PIR and s, say), as PNG and SVG: numbers over rounds, distributions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.report.curves import COLOURS, make_figure, save_figure, tidy

ACROSS = 3  # panels side by side
MANY = 50  # clients from which on single ones cannot be told apart, and take minutes to draw
PARTS = {"train": ("training samples", COLOURS[4]), "test": ("test samples", COLOURS[0])}
FLOOR = (
    "_floor"  # NAME_floor is what NAME is worth for who has learnt nothing, and is drawn beside it
)

Course = dict[int, dict[str, Any]]  # by round, what is noted of every client


def noted(folder: Path, records: Iterable[dict[str, Any]]) -> list[Path]:
    """A panel for everything noted: single numbers of every client over rounds, distributions at the last one."""
    courses = gather(records)
    names = list(dict.fromkeys(name.partition("/")[2] for name in courses))
    shown = [name for name in names if not name.endswith(FLOOR)]
    if not shown:
        return []
    rows = -(-len(shown) // ACROSS)
    figure = make_figure(3.6 * min(len(shown), ACROSS), 3.0 * rows)
    panels = figure.subplots(rows, min(len(shown), ACROSS), squeeze=False).flatten()
    for axes, name in zip_longest(panels, shown):
        if name is None:
            axes.set_visible(False)
            continue
        mine = {part: courses[f"{part}/{name}"] for part in PARTS if f"{part}/{name}" in courses}
        if is_distribution(mine):
            _distributions(figure, axes, mine["test"], name)
        else:
            _numbers(axes, mine, courses.get(f"test/{name}{FLOOR}", {}), name)
    return save_figure(figure, folder / "notes")


def gather(records: Iterable[dict[str, Any]]) -> dict[str, Course]:
    """By name ("train/PIR"), what the evaluated rounds of a run noted of the clients."""
    courses: dict[str, Course] = {}
    for record in records:
        for name, by in record["evaluation"]["notes"].items():
            courses.setdefault(name, {})[record["t"]] = by
    return courses


def is_distribution(courses: dict[str, Course]) -> bool:
    """Whether several numbers are noted of a client: the shares of equal bins between 0 and 1."""
    return any(
        isinstance(v, list)
        for course in courses.values()
        for by in course.values()
        for v in by.values()
    )


def _numbers(axes: Any, courses: dict[str, Course], floor: Course, name: str) -> None:
    """A faint line for every client (many: a band without the lowest and highest tenth), a strong one for the mean."""
    for part, course in courses.items():
        label, colour = PARTS[part]
        clients = dict.fromkeys(k for by in course.values() for k in by)
        if len(clients) > MANY:
            tenths = [np.quantile(list(by.values()), (0.1, 0.9)) for by in course.values()]
            axes.fill_between(
                list(course), *zip(*tenths, strict=True), color=colour, linewidth=0, alpha=0.2
            )
        for k in clients if len(clients) <= MANY else ():
            seen = {t: by[k] for t, by in course.items() if k in by}
            axes.plot(list(seen), list(seen.values()), color=colour, linewidth=0.6, alpha=0.25)
        means = [sum(by.values()) / len(by) for by in course.values()]
        axes.plot(
            list(course),
            means,
            color=colour,
            linewidth=1.8,
            label=label,
            marker="." if len(means) == 1 else "",
        )
    if floor:
        least = [sum(by.values()) / len(by) for by in floor.values()]
        axes.plot(
            list(floor),
            least,
            color="#666666",
            linewidth=1.0,
            linestyle=":",
            label="having learnt nothing",
        )
    axes.set_title(name, fontsize=10)
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)


def _distributions(figure: Any, axes: Any, course: Course, name: str) -> None:
    """A row for every client, the darker the more of its values lie there."""
    t = max(course)
    clients = sorted(course[t], key=int)
    rows = [course[t][k] for k in clients]
    picture = axes.imshow(
        rows,
        aspect="auto",
        cmap="Blues",
        vmin=0,
        extent=(0, 1, len(rows) - 0.5, -0.5),
        interpolation="nearest",
    )
    step = max(1, len(clients) // 10)
    axes.set_yticks(range(0, len(clients), step), clients[::step])
    axes.set_title(f"{name}, test samples, round {t}", fontsize=10)
    axes.set_xlabel(name)
    axes.set_ylabel("client")
    figure.colorbar(picture, ax=axes, label="share of values")
