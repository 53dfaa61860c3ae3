"""Local: every client trains alone; what the others are measured against.

No paper: the lower bound of every comparison. All clients begin with the same parameters, as under FedAvg, so that
what a method gains over Local is not the luck of a first draw. They come down with every call, as the server cannot
know who still needs them; nothing goes up.
"""

from dataclasses import dataclass
from typing import NamedTuple

from fedtailor.client import Client
from fedtailor.method import Method, New, Uploads
from fedtailor.tree import Params


class Server(NamedTuple):
    """What the server remembers."""

    first: Params  # every client's first model


class Down(NamedTuple):
    """What goes down."""

    first: Params


class Keep(NamedTuple):
    """What never leaves the client."""

    w: Params  # its model


class Up(NamedTuple):
    """What goes up: nothing."""


@dataclass(frozen=True)
class Local(Method[Server, Down, Keep, Up]):
    """Nobody learns from anybody."""

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.first)

    def join(self, c: Client, down: Down) -> Keep:
        return Keep(down.first)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        return Up(), Keep(c.train(c.loss, keep.w))

    def merge(self, server: Server, ups: Uploads) -> Server:
        return server

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return keep.w
