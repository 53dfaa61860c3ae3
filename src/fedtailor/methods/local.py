"""Local: every client trains alone; what all others are measured against.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, Algorithm 1,
without its server: ClientUpdate goes on round after round, and nothing is averaged.

Before their first round all clients are given the same parameters, FedAvg's first ones, so that what a method gains
over Local is not the luck of a draw. A client that was not given them draws its own. After that nothing is sent.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from fedtailor.client import Client
from fedtailor.core.tree import Params
from fedtailor.method import Cohort, Method, New, NoReplies, Uploads


class Server(NamedTuple):
    """What the server remembers."""

    first: Params  # every client's first model


class First(NamedTuple):
    """What a newcomer is given, once."""

    w: Params


class Down(NamedTuple):
    """What goes down: nothing."""


class Keep(NamedTuple):
    """What never leaves the client."""

    w: Params  # its model


class Up(NamedTuple):
    """What goes up: nothing."""


@dataclass(frozen=True)
class Local(Method[Server, Down, Keep, Up]):
    """Nobody learns from anybody."""

    setup_calls = ("begin",)

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def setup(self, server: Server, cohort: Cohort) -> Server:
        with suppress(NoReplies):  # an answer says nothing
            cohort.run(self.begin, First(server.first))
        return server

    def begin(self, c: Client, down: First, keep: Keep) -> tuple[Up, Keep]:
        """Join with what is given."""
        return Up(), keep

    def send(self, server: Server, k: int) -> Down:
        return Down()

    def first_keep(self, c: Client, down: First | Down) -> Keep:
        return Keep(down.w if isinstance(down, First) else c.fresh("base", "head"))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        return Up(), Keep(c.train(c.loss, keep.w))

    def merge(self, server: Server, ups: Uploads) -> Server:
        return server

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return keep.w
