"""FedPer: shared base layers under private personalisation layers, trained together.

Arivazhagan et al., Federated Learning with Personalization Layers, arXiv 2019, Algorithms 1 and 2.

In the paper every client draws its first personalisation layers; here all are given the same ones before their first
round, as in the comparisons of later papers: base layers trained under unlike heads make a poor first mean. A client
that was not given them draws its own.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from fedtailor.client import Client
from fedtailor.core.errors import UserError, unknown
from fedtailor.core.tree import Params, average, part, without
from fedtailor.method import Cohort, Count, Method, New, NoReplies, Uploads
from fedtailor.models.backbone import Backbone


class Server(NamedTuple):
    """What the server remembers."""

    base: Params  # W_B, base layers
    first: Params  # every client's first personalisation layers


class First(NamedTuple):
    """What a newcomer is given, once."""

    own: Params


class Down(NamedTuple):
    """What goes down."""

    base: Params


class Keep(NamedTuple):
    """What never leaves the client."""

    own: Params  # W_P, its personalisation layers


class Up(NamedTuple):
    """What goes up."""

    base: Params  # trained base layers


class Nothing(NamedTuple):
    """What a newcomer answers."""


@dataclass(frozen=True)
class FedPer(Method[Server, Down, Keep, Up]):
    """The last layers are private, all others FedAvg's."""

    setup_calls = ("begin",)
    layers: Count = 1  # K_P, private layers from the last on (a block of a ResNet is one); the paper tries up to 4
    private: str = ""  # names of the private layers, by commas; found from K_P unless given

    def with_defaults_for(self, backbone: Backbone) -> Self:
        stages, modules = backbone.stages, dict(backbone.named_modules())
        if self.private:
            for name in self.private.split(","):
                if name not in modules:
                    raise unknown("layer of this network", name, stages)
            return self
        if self.layers >= len(stages):
            raise UserError(
                f"FedPer: layers={self.layers} leaves nothing to share, as this network has {len(stages)} layers "
                f"({', '.join(stages)}); choose at most {len(stages) - 1}"
            )
        return replace(self, private=",".join(stages[-self.layers :]))

    def init(self, new: New, clients: int) -> Server:
        w, private = new(0), self.private.split(",")
        return Server(without(w, *private), part(w, *private))

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
        return Keep(down.own if isinstance(down, First) else c.fresh(*self.private.split(",")))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        w = c.train(c.loss, self.personal(c, down, keep))
        return Up({k: w[k] for k in down.base}), Keep({k: w[k] for k in keep.own})

    def merge(self, server: Server, ups: Uploads) -> Server:
        return server._replace(base=average(ups.base, ups.n))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return {**down.base, **keep.own}

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return {**up.base, **keep.own}
