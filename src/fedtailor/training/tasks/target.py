"""What a task must know of the targets."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """The targets of a federation."""

    classes: int  # classes of a label; columns where there are several, else 1
    weights: tuple[float, ...] = ()  # of the classes, in training
    mean: float = 0.0  # of a number, over all clients' training examples
    std: float = 1.0
    select: str = ""  # the measure that chooses the round
