"""FedAvg: one model for all clients, the mean of the locally trained ones.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS
2017, Algorithm 1.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from fedtailor.client import Client
from fedtailor.core.tree import Params
from fedtailor.method import Doc, Method, New, Uploads, hyper


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("global model")]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[Params, Doc("global model")]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[Params, Doc("locally trained model")]


@dataclass(frozen=True)
class FedAvg(Method[Server, Down, None, Up]):
    """Everything is shared; the personal model is the global one, fine-tuned if asked for."""

    finetune: int = hyper(
        0,
        "epochs on the client's own data that make the global model a personal one; "
        "0 (Algorithm 1)",
    )

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def local(self, c: Client, down: Down, keep: None) -> tuple[Up, None]:
        """ClientUpdate: train the global model on the client's own data."""
        w = c.train(c.loss, down.w)
        return Up(w), None

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return Server(ups.mean("w"))  # weighted by n_k

    def personal(self, c: Client, down: Down, keep: None) -> Params:
        if not self.finetune:
            return down.w
        return c.train(c.loss, down.w, epochs=self.finetune)

    def after_training(self, c: Client, down: Down, up: Up, keep: None) -> Params:
        return up.w

    def shared(self, server: Server) -> Params:
        return server.w
