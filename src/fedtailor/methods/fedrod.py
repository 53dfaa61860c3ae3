"""FedRoD: a generic head learns a balanced task, a private head adds what is special to the client.

Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification,
ICLR 2022, Algorithm 1.

The private head is linear; the variant in which a hyper-network makes it from the class counts is
left out. A private head starts as a copy of the generic one, so that a new client predicts as the
global model does. Classes that a client does not have count as a trace (1e-12) in the balanced
softmax, whose logarithm is finite.
"""

import copy
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from torch import Tensor, nn

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, part, rename
from fedtailor.method import Doc, Method, New, NonNegative, Uploads, hyper
from fedtailor.models.backbone import Backbone

TRACE = 1e-12  # examples of a class that a client does not have


class TwoHeads(nn.Module):
    """A feature extractor under a generic head and a private one, whose logits add up."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.base = backbone.base
        self.head = backbone.head
        self.own = copy.deepcopy(backbone.head)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both heads' logits."""
        h = self.base(x)
        logits: Tensor = self.head(h) + self.own(h)
        return logits


class Server(NamedTuple):
    """What the server remembers."""

    base: Annotated[Params, Doc("theta, feature extractor")]
    head: Annotated[Params, Doc("psi, generic head")]


class Down(NamedTuple):
    """What a client is sent."""

    base: Annotated[Params, Doc("theta, feature extractor")]
    head: Annotated[Params, Doc("psi, generic head")]


class Keep(NamedTuple):
    """What a client keeps to itself."""

    own: Annotated[Params, Doc("phi_k, private head")]


class Up(NamedTuple):
    """What a client sends back."""

    base: Annotated[Params, Doc("trained extractor")]
    head: Annotated[Params, Doc("trained generic head")]


@dataclass(frozen=True)
class FedRoD(Method[Server, Down, Keep, Up]):
    """Extractor and generic head are FedAvg's on a balanced loss; the private head adds to them."""

    needs_classes: ClassVar[str] = "its softmax is balanced by class counts"

    gamma: NonNegative = hyper(
        1.0,
        "gamma, power of the class counts in the balanced softmax; 1 is the softmax itself",
    )

    def warnings(self) -> list[str]:
        if self.gamma == 0:
            return [
                "gamma=0: FedRoD's generic loss is not balanced, its global model is FedAvg's"
            ]
        return []

    def net(self, backbone: Backbone) -> nn.Module:
        return TwoHeads(backbone)

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        return Server(
            base=part(w, "base"),
            head=part(w, "head"),
        )

    def send(self, server: Server, k: int) -> Down:
        return Down(server.base, server.head)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(rename(down.head, "head", "own"))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Train extractor and generic head on a balanced loss, the private head on a plain one."""
        counts = c.counts**self.gamma
        prior = counts.clamp(min=TRACE).log()

        def loss(w: Params, batch: Batch) -> Tensor:
            h = c.model.base(w, batch.x)
            generic = c.model.head(w, h)
            balanced = c.task.loss(generic + prior, batch.y)
            private = c.model.own(w, h.detach())
            both = generic.detach() + private
            plain = c.task.loss(both, batch.y)  # moves the private head alone
            return balanced + plain

        start = self.personal(c, down, keep)
        w = c.train(loss, start)
        up = Up(
            base=part(w, "base"),
            head=part(w, "head"),
        )
        return up, Keep(part(w, "own"))

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return Server(
            base=ups.mean("base"),
            head=ups.mean("head"),
        )

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return down.base | down.head | keep.own

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return up.base | up.head | keep.own

    def shared(self, server: Server) -> Params:
        return server.base | server.head

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        h = c.model.base(w, x)
        logits: Tensor = c.model.head(w, h)
        if part(w, "own"):  # the global model has no private head
            logits = logits + c.model.own(w, h)
        return logits
