"""FedRep: a shared representation under private heads, trained in turns.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, Algorithm 1.

While the head trains, the representation stands still to the last bit (BatchNorm statistics included), and the other
way round. The head trains for ``head_epochs``, then the representation for the experiment's epochs. All clients are
given the same head before their first round; one that was not draws its own.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, average, part
from fedtailor.method import Cohort, Count, Method, New, NoReplies, Uploads


class Server(NamedTuple):
    """What the server remembers."""

    base: Params  # phi, representation
    first: Params  # every client's first head


class First(NamedTuple):
    """What a newcomer is given, once."""

    head: Params


class Down(NamedTuple):
    """What goes down."""

    base: Params


class Keep(NamedTuple):
    """What never leaves the client."""

    head: Params  # h_k


class Up(NamedTuple):
    """What goes up."""

    base: Params  # phi_k, after its turn


class Nothing(NamedTuple):
    """What a newcomer answers."""


@dataclass(frozen=True)
class FedRep(Method[Server, Down, Keep, Up]):
    """The head is private, the representation is FedAvg's."""

    setup_calls = ("begin",)
    head_epochs: Count = (
        10  # tau, epochs of the head before the representation's turn; the authors' for CIFAR-10
    )
    finetune: int = 0  # epochs of the head on the newest representation before use; 10 in the authors' last round

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        return Server(part(w, "base"), part(w, "head"))

    def setup(self, server: Server, cohort: Cohort) -> Server:
        with suppress(NoReplies):  # an answer says nothing
            cohort.run(self.begin, First(server.first))
        return server

    def begin(self, c: Client, down: First, keep: Keep) -> tuple[Nothing, Keep]:
        """Join with what is given."""
        return Nothing(), keep

    def send(self, server: Server, k: int) -> Down:
        return Down(server.base)

    def first_keep(self, c: Client, down: First | Down) -> Keep:
        return Keep(down.head if isinstance(down, First) else c.fresh("head"))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        head = self.fit_head(c, down.base, keep.head, self.head_epochs)

        def loss(base: Params, batch: Batch) -> Tensor:
            return F.cross_entropy(c.model.head(head, c.model.base(base, batch.x)), batch.y)

        return Up(c.train(loss, down.base)), Keep(head)

    def fit_head(self, c: Client, base: Params, head: Params, epochs: int) -> Params:
        """The head, trained on a representation that stands still."""

        def loss(head: Params, batch: Batch) -> Tensor:
            return F.cross_entropy(c.model.head(head, c.model.base(base, batch.x)), batch.y)

        return c.train(loss, head, epochs=epochs)

    def merge(self, server: Server, ups: Uploads) -> Server:
        return server._replace(base=average(ups.base, ups.n))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        head = self.fit_head(c, down.base, keep.head, self.finetune) if self.finetune else keep.head
        return {**down.base, **head}

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return {**up.base, **keep.head}
