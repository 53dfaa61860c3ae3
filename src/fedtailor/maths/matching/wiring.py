"""How the layers of a network are connected: which hidden units each reads, and which it makes.

A *stream* is a set of units that flows through a network: the channels of one convolution, or of
all convolutions that are added up along a residual connection. If the order of a stream's units
changes, it must change wherever they are made, normalised and read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

INPUT = "x"  # the data, as a stream


class Layer(NamedTuple):
    """A layer with parameters."""

    name: str
    # the stream it reads; None for a normalisation, which reads what it makes
    source: str | None


class Stream(NamedTuple):
    """Units that flow together; a stream has the name of the layer that makes it first."""

    width: int  # how many units there are in the network as it was built
    groups: int  # equal runs of units: a unit can change places within its run alone
    grows: bool  # whether there can be more units


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
    """All layers of a network."""

    steps: tuple[Step, ...]  # in forward order; the last one makes the classes
    streams: dict[str, Stream]  # hidden ones

    def layers_after(self, step: int) -> list[str]:
        """Names of the layers of all later steps."""
        names: list[str] = []
        for later in self.steps[step + 1 :]:
            names += later.names
        return names


LayersOfStep = tuple[tuple[Layer, ...], str]  # layers, and the stream they make


def make_wiring(parts: Iterable[LayersOfStep], streams: dict[str, Stream]) -> Wiring:
    """The wiring of layers in forward order.

    The first step that makes a stream decides on the order of its units, if there is a choice.
    """
    undecided = {
        name for name, stream in streams.items() if stream.groups < stream.width
    }
    steps: list[Step] = []
    for layers, stream in parts:
        steps.append(Step(layers, stream, stream in undecided))
        undecided.discard(stream)
    return Wiring(tuple(steps), streams)
