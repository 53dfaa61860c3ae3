"""How the layers of a network hang together: which hidden units each reads, and which it makes.

A *stream* is a set of units that flows through a network: the channels of one convolution, or of all convolutions that
are added up along a residual connection. Whoever changes the order of a stream's units must do so wherever they are
made, normalised and read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

INPUT = "x"  # the data, as a stream


class Layer(NamedTuple):
    """A layer with parameters."""

    name: str
    source: str | None  # the stream it reads; None for a normalisation, which reads what it makes


class Stream(NamedTuple):
    """Units that flow together; a stream is called like the layer that makes it first."""

    width: int  # how many there are in the network as it was built
    groups: int  # equal runs of units: a unit can change places within its run alone
    grows: bool  # whether there can be more


class Step(NamedTuple):
    """Layers that make the same stream at the same time, with the normalisations behind them."""

    layers: tuple[Layer, ...]
    stream: str  # what they make; "" for the classes
    decides: bool  # whether the order of the stream's units is still open here

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layers."""
        return tuple(layer.name for layer in self.layers)


class Wiring(NamedTuple):
    """All layers."""

    steps: tuple[Step, ...]  # in forward order; the last one makes the classes
    streams: dict[str, Stream]  # hidden ones

    def __str__(self) -> str:
        """One line, such as ``conv1(x) norm1 > conv1:4/2; fc1(conv1) > fc1:16+; head(fc1)``."""
        return "; ".join(map(self._tell, self.steps))

    def _tell(self, step: Step) -> str:
        layers = " ".join(
            a.name if a.source is None else f"{a.name}({a.source})" for a in step.layers
        )
        if not step.stream:
            return layers
        width, groups, grows = self.streams[step.stream]
        return f"{layers} > {step.stream}:{width}{f'/{groups}' if groups > 1 else ''}{'+' if grows else ''}"


def join_steps(
    parts: Iterable[tuple[tuple[Layer, ...], str]], streams: dict[str, Stream]
) -> Wiring:
    """The wiring of layers and what they make: whoever makes a stream first decides, if there is a choice at all."""
    steps: list[Step] = []
    undecided = {name for name, s in streams.items() if s.groups < s.width}
    for layers, stream in parts:
        steps.append(Step(layers, stream, stream in undecided))
        undecided.discard(stream)
    return Wiring(tuple(steps), streams)


@cache
def read_wiring(text: str) -> Wiring:
    """The wiring that was written as this line."""
    parts: list[tuple[tuple[Layer, ...], str]] = []
    streams: dict[str, Stream] = {}
    for part in text.split("; "):
        names, _, made = part.partition(" > ")
        layers = re.findall(r"([^\s()]+)(?:\(([^)]*)\))?", names)
        width = re.search(r":(\d+)(?:/(\d+))?(\+?)$", made)
        stream = made[: width.start()] if width else ""
        if width:
            streams[stream] = Stream(int(width[1]), int(width[2] or 1), bool(width[3]))
        parts.append((tuple(Layer(name, source or None) for name, source in layers), stream))
    return join_steps(parts, streams)
