"""FedRoD: a generic head learns a balanced task, a private head adds what is special about the client.

Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022,
Algorithm 1.

The linear private head; the variant whose head a hyper-network makes of the class counts is left out. A private head
begins as the generic one, so that a newcomer predicts as the global model does. Classes that a client has not count as
a trace (1e-12) in the balanced softmax, whose logarithm is finite.
"""

import copy
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor, nn

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, part, rename
from fedtailor.method import Doc, Method, New, NonNegative, Uploads, hyper
from fedtailor.models.backbone import Backbone

TRACE = 1e-12


class TwoHeads(nn.Module):
    """A feature extractor under a generic head and a private one, whose logits add up."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.base, self.head, self.own = backbone.base, backbone.head, copy.deepcopy(backbone.head)

    def forward(self, x: Tensor) -> Tensor:
        h = self.base(x)
        out: Tensor = self.head(h) + self.own(h)
        return out


class Server(NamedTuple):
    """What the server remembers."""

    base: Annotated[Params, Doc("theta, feature extractor")]
    head: Annotated[Params, Doc("psi, generic head")]


class Down(NamedTuple):
    """What goes down."""

    base: Params
    head: Params


class Keep(NamedTuple):
    """What never leaves the client."""

    own: Annotated[Params, Doc("phi_k, private head")]


class Up(NamedTuple):
    """What goes up."""

    base: Annotated[Params, Doc("trained extractor")]
    head: Annotated[Params, Doc("trained generic head")]


@dataclass(frozen=True)
class FedRoD(Method[Server, Down, Keep, Up]):
    """Extractor and generic head are FedAvg's on a balanced loss; the private head sees them but does not move them."""

    gamma: NonNegative = hyper(
        1.0, "gamma, power of the class counts in the balanced softmax; 1 is the softmax itself"
    )

    def warnings(self) -> list[str]:
        return (
            ["gamma=0: FedRoD's generic loss is not balanced, its global model is FedAvg's"]
            if not self.gamma
            else []
        )

    def net(self, backbone: Backbone) -> nn.Module:
        return TwoHeads(backbone)

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        return Server(part(w, "base"), part(w, "head"))

    def send(self, server: Server, k: int) -> Down:
        return Down(*server)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(rename(down.head, "head", "own"))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        prior = (c.counts**self.gamma).clamp(min=TRACE).log()

        def loss(w: Params, batch: Batch) -> Tensor:
            h = c.model.base(w, batch.x)
            generic = c.model.head(w, h)
            both = generic.detach() + c.model.own(w, h.detach())  # moves the private head alone
            return c.task.loss(generic + prior, batch.y) + c.task.loss(both, batch.y)

        w = c.train(loss, self.personal(c, down, keep))
        return Up(part(w, "base"), part(w, "head")), Keep(part(w, "own"))

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return Server(ups.mean("base"), ups.mean("head"))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return {**down.base, **down.head, **keep.own}

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return {**up.base, **up.head, **keep.own}

    def shared(self, server: Server) -> Params:
        return {**server.base, **server.head}

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        h = c.model.base(w, x)
        generic: Tensor = c.model.head(w, h)
        return (
            generic + c.model.own(w, h) if part(w, "own") else generic
        )  # the global model has no private head
