"""FedRep: a shared representation under private heads, trained in turns.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021,
Algorithm 1.

While the head trains, the representation does not change by a single bit (BatchNorm statistics
included), and the other way round. The head trains for ``head_epochs``, then the representation for
the experiment's epochs. All clients are given the same head before their first round; a client that
was not given it draws its own.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, part
from fedtailor.method import Count, Doc, Method, New, Uploads, hyper


class Server(NamedTuple):
    """What the server remembers."""

    base: Annotated[Params, Doc("phi, representation")]
    first: Annotated[Params, Doc("every client's first head")]


class Down(NamedTuple):
    """What a client is sent."""

    base: Annotated[Params, Doc("phi, representation")]


class Keep(NamedTuple):
    """What a client keeps to itself."""

    head: Annotated[Params, Doc("h_k")]


class Up(NamedTuple):
    """What a client sends back."""

    base: Annotated[Params, Doc("phi_k, after its turn")]


@dataclass(frozen=True)
class FedRep(Method[Server, Down, Keep, Up]):
    """The head is private, the representation is FedAvg's."""

    head_epochs: Count = hyper(
        10,
        "tau, epochs of the head before the representation's turn; the authors' for CIFAR-10",
    )
    finetune: int = hyper(
        0,
        "epochs of the head on the newest representation before use; 10 in the authors' last round",
    )

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        return Server(
            base=part(w, "base"),
            first=part(w, "head"),
        )

    def given(self, server: Server) -> Params:
        return server.first

    def keep_given(self, c: Client, given: Params) -> Keep:
        return Keep(given)

    def send(self, server: Server, k: int) -> Down:
        return Down(server.base)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(c.fresh("head"))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Train the head on the representation, then the representation under the new head."""
        head = self.fit_head(c, down.base, keep.head, self.head_epochs)

        def loss(base: Params, batch: Batch) -> Tensor:
            return measure_loss(c, base, head, batch)

        base = c.train(loss, down.base)
        return Up(base), Keep(head)

    def fit_head(self, c: Client, base: Params, head: Params, epochs: int) -> Params:
        """The head, trained on a representation that does not change."""

        def loss(head: Params, batch: Batch) -> Tensor:
            return measure_loss(c, base, head, batch)

        return c.train(loss, head, epochs=epochs)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return server._replace(base=ups.mean("base"))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        head = keep.head
        if self.finetune:
            head = self.fit_head(c, down.base, head, self.finetune)
        return down.base | head

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return up.base | keep.head


def measure_loss(c: Client, base: Params, head: Params, batch: Batch) -> Tensor:
    """The loss of a head on a representation."""
    features = c.model.base(base, batch.x)
    logits = c.model.head(head, features)
    return c.task.loss(logits, batch.y)
