"""Local: every client trains alone; what all other methods are measured against.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS
2017, Algorithm 1, without its server: ClientUpdate continues round after round, and nothing is
averaged.

Before their first round all clients are given the same parameters, those FedAvg starts from, so
that what a method gains over Local is not the luck of a draw. A client that was not given them
draws its own. After that nothing is sent.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from fedtailor.client import Client
from fedtailor.core.tree import Params
from fedtailor.method import Doc, Method, New, Uploads


class Server(NamedTuple):
    """What the server remembers."""

    first: Annotated[Params, Doc("every client's first model")]


class Down(NamedTuple):
    """What a client is sent: nothing."""


class Keep(NamedTuple):
    """What a client keeps to itself."""

    w: Annotated[Params, Doc("its model")]


class Up(NamedTuple):
    """What a client sends back: nothing."""


@dataclass(frozen=True)
class Local(Method[Server, Down, Keep, Up]):
    """No client learns from another."""

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def given(self, server: Server) -> Params:
        return server.first

    def keep_given(self, c: Client, given: Params) -> Keep:
        return Keep(given)

    def send(self, server: Server, k: int) -> Down:
        return Down()

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(c.fresh("base", "head"))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """ClientUpdate: continue to train the client's own model."""
        w = c.train(c.loss, keep.w)
        return Up(), Keep(w)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return server

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return keep.w
