"""FedRep: a shared representation under private heads, trained in turns.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, Algorithm 1.

While the head trains, the representation stands still to the last bit (BatchNorm statistics included), and the other
way round. The head trains for ``head_epochs``, then the representation for the experiment's epochs. All clients are
given the same head before their first round; one that was not draws its own.
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
    """What goes down."""

    base: Params


class Keep(NamedTuple):
    """What never leaves the client."""

    head: Annotated[Params, Doc("h_k")]


class Up(NamedTuple):
    """What goes up."""

    base: Annotated[Params, Doc("phi_k, after its turn")]


@dataclass(frozen=True)
class FedRep(Method[Server, Down, Keep, Up]):
    """The head is private, the representation is FedAvg's."""

    head_epochs: Count = hyper(
        10, "tau, epochs of the head before the representation's turn; the authors' for CIFAR-10"
    )
    finetune: int = hyper(
        0,
        "epochs of the head on the newest representation before use; 10 in the authors' last round",
    )

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        return Server(part(w, "base"), part(w, "head"))

    def given(self, server: Server) -> Params:
        return server.first

    def keep_given(self, c: Client, given: Params) -> Keep:
        return Keep(given)

    def send(self, server: Server, k: int) -> Down:
        return Down(server.base)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(c.fresh("head"))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        head = self.fit_head(c, down.base, keep.head, self.head_epochs)

        def loss(base: Params, batch: Batch) -> Tensor:
            return c.task.loss(c.model.head(head, c.model.base(base, batch.x)), batch.y)

        return Up(c.train(loss, down.base)), Keep(head)

    def fit_head(self, c: Client, base: Params, head: Params, epochs: int) -> Params:
        """The head, trained on a representation that stands still."""

        def loss(head: Params, batch: Batch) -> Tensor:
            return c.task.loss(c.model.head(head, c.model.base(base, batch.x)), batch.y)

        return c.train(loss, head, epochs=epochs)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return server._replace(base=ups.mean("base"))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        head = self.fit_head(c, down.base, keep.head, self.finetune) if self.finetune else keep.head
        return {**down.base, **head}

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return {**up.base, **keep.head}
