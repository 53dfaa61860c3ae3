"""Ditto: beside the global model every client trains one of its own, pulled towards it.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedtailor.client import Batch, Client
from fedtailor.method import Count, Method, New, NonNegative, Uploads
from fedtailor.tree import Params, average, sqdist


class Server(NamedTuple):
    """What the server remembers."""

    w: Params  # global model


class Down(NamedTuple):
    """What goes down."""

    w: Params


class Keep(NamedTuple):
    """What never leaves the client."""

    v: Params  # personal model v_k


class Up(NamedTuple):
    """What goes up."""

    w: Params  # w_k, trained as in FedAvg


@dataclass(frozen=True)
class Ditto(Method[Server, Down, Keep, Up]):
    """The global model is FedAvg's; the personal one is regularised by it."""

    lam: NonNegative = 1.0  # lambda, pull towards the global model; the authors' runs use 1 (Sec. 4 tries 0.05 .. 2)
    personal_epochs: Count | None = None  # s, epochs of the personal model per round; as many as the global one's

    def doubts(self) -> list[str]:
        return ["lam=0: nothing pulls Ditto's personal models together, they are Local's"] if self.lam == 0 else []

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def join(self, c: Client, down: Down) -> Keep:
        return Keep(down.w)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        def h(v: Params, batch: Batch) -> Tensor:  # Eq. (2): F_k(v) + lambda/2 ||v - w||^2
            return c.loss(v, batch) + self.lam / 2 * sqdist(v, down.w)

        v = c.train(h, keep.v, epochs=self.personal_epochs)
        return Up(c.train(c.loss, down.w)), Keep(v)

    def merge(self, server: Server, ups: Uploads) -> Server:
        return Server(average(ups.w, ups.n))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return keep.v

    def after(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return keep.v

    def shared(self, server: Server) -> Params:
        return server.w
