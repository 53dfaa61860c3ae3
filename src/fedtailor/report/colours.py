"""One look for every method in every picture: colour, line and mark, by the method's name.

The colours can be told apart with the three common kinds of colour vision, and stand out from white
paper and from a dark screen alike. There are fewer of them than methods: line and mark tell methods
of one colour apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

BLUE = "#1665d8"
ORANGE = "#d9500a"
GREEN = "#0f8a63"
PINK = "#dd6fb0"
AMBER = "#c08a00"
SKY = "#2a9fd2"
BROWN = "#8a5a2b"
GREY = "#858b95"

HUES = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY)
LINES = ("solid", "dashed", "dotted", "dashdot")
MARKS = ("circle", "square", "triangle", "diamond", "star", "cross")


class Style(NamedTuple):
    """How a method is drawn."""

    colour: str
    line: str  # one of LINES
    mark: str  # one of MARKS


# The two that others are measured by, and the methods most often seen together. All others get
# a place by their name, so that a new method needs no line here.
FIXED = {
    "local": Style(GREY, "solid", "circle"),
    "fedavg": Style(BROWN, "solid", "square"),
    "fedper": Style(BLUE, "solid", "circle"),
    "fedcp": Style(ORANGE, "solid", "square"),
    "pfedc": Style(GREEN, "solid", "triangle"),
    "ditto": Style(PINK, "solid", "diamond"),
    "gpfl": Style(AMBER, "solid", "star"),
    "fed3p2p": Style(SKY, "solid", "cross"),
    "cd2pfed": Style(BLUE, "dashed", "diamond"),
    "fedrep": Style(ORANGE, "dashed", "triangle"),
}


def choose_styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for every name; the same for the same names, in whatever order they come.

    A name has the same style in any company, unless two names of it happen on the same one.
    """
    wanted = sorted(set(names))
    styles = {name: FIXED[name] for name in wanted if name in FIXED}
    free = _list_free_styles()
    taken: set[int] = set()
    for name in wanted:
        if name in styles:
            continue
        first = zlib.crc32(name.encode()) % len(free)
        places = [(first + i) % len(free) for i in range(len(free))]
        place = next((i for i in places if i not in taken), None)
        if place is None:  # more methods than looks
            styles[name] = Style(GREY, "dotted", "circle")
            continue
        taken.add(place)
        styles[name] = free[place]
    return {name: styles[name] for name in wanted}


def _list_free_styles() -> list[Style]:
    """Every combination of hue and line that no method has for itself."""
    taken = {(style.colour, style.line) for style in FIXED.values()}
    found = []
    for i, line in enumerate(LINES):
        for j, hue in enumerate(HUES):
            if (hue, line) not in taken:
                mark = MARKS[(i + j) % len(MARKS)]
                found.append(Style(hue, line, mark))
    return found
