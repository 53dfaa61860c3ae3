"""FedProx: FedAvg whose local models are held near the global one.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2.

The paper samples clients in proportion to their data and averages them equally. Here, as in FedAvg,
clients are sampled uniformly and weighted by their data: the same in expectation, and with mu=0
FedAvg itself.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from fedtailor.client import Client
from fedtailor.core.tree import Params
from fedtailor.method import Doc, Method, New, NonNegative, Uploads, hyper
from fedtailor.training.optim import pull


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("w^t, global model")]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[Params, Doc("w^t, global model, which also holds the local one")]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[Params, Doc("w_k^{t+1}, locally trained model")]


@dataclass(frozen=True)
class FedProx(Method[Server, Down, None, Up]):
    """Everything is shared; the personal model is the global one."""

    mu: NonNegative = hyper(
        0.001,
        "mu, pull towards the global model; the least of the paper's grid 0.001 .. 1",
    )

    def warnings(self) -> list[str]:
        if self.mu == 0:
            return ["mu=0: nothing holds FedProx's local models, it is FedAvg"]
        return []

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def local(self, c: Client, down: Down, keep: None) -> tuple[Up, None]:
        """Train on Eq. (2): F_k(w) + mu/2 ||w - w^t||^2."""
        held = pull(c.optimiser, down.w, self.mu)
        w = c.train(c.loss, down.w, opt=held)
        return Up(w), None

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return Server(ups.mean("w"))

    def personal(self, c: Client, down: Down, keep: None) -> Params:
        return down.w

    def after_training(self, c: Client, down: Down, up: Up, keep: None) -> Params:
        return up.w

    def shared(self, server: Server) -> Params:
        return server.w
