"""FedPer: shared base layers under private personalisation layers, trained together.

Arivazhagan et al., Federated Learning with Personalization Layers, arXiv 2019, Algorithms 1 and 2.

In the paper every client draws its first personalisation layers. Here all clients are given the
same ones before their first round, as in the comparisons of later papers: base layers trained under
different heads make a poor first mean. A client that was not given them draws its own.
"""

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, Self

from fedtailor.client import Client
from fedtailor.core.errors import UserError, unknown
from fedtailor.core.tree import Params, part, without
from fedtailor.method import Count, Doc, Method, New, Uploads, hyper
from fedtailor.models.backbone import Backbone


class Server(NamedTuple):
    """What the server remembers."""

    base: Annotated[Params, Doc("W_B, base layers")]
    first: Annotated[Params, Doc("every client's first personalisation layers")]


class Down(NamedTuple):
    """What a client is sent."""

    base: Annotated[Params, Doc("W_B, base layers")]


class Keep(NamedTuple):
    """What a client keeps to itself."""

    own: Annotated[Params, Doc("W_P, its personalisation layers")]


class Up(NamedTuple):
    """What a client sends back."""

    base: Annotated[Params, Doc("trained base layers")]


@dataclass(frozen=True)
class FedPer(Method[Server, Down, Keep, Up]):
    """The last layers are private, all others FedAvg's."""

    layers: Count = hyper(
        1,
        "K_P, private layers from the last on (a block of a ResNet is one); "
        "the paper tries up to 4",
    )
    private: str = hyper(
        "", "names of the private layers, by commas; found from K_P unless given"
    )

    def with_defaults_for(self, backbone: Backbone) -> Self:
        stages = backbone.stages
        if self.private:
            known = dict(backbone.named_modules())
            for name in self.private_layers:
                if name not in known:
                    raise unknown("layer of this network", name, stages)
            return self
        if self.layers >= len(stages):
            raise UserError(
                f"FedPer: layers={self.layers} leaves nothing to share, as this network has "
                f"{len(stages)} layers ({', '.join(stages)}); choose at most {len(stages) - 1}"
            )
        last = stages[-self.layers :]
        return replace(self, private=",".join(last))

    @property
    def private_layers(self) -> list[str]:
        """Names of the private layers."""
        return self.private.split(",")

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        return Server(
            base=without(w, *self.private_layers),
            first=part(w, *self.private_layers),
        )

    def given(self, server: Server) -> Params:
        return server.first

    def keep_given(self, c: Client, given: Params) -> Keep:
        return Keep(given)

    def send(self, server: Server, k: int) -> Down:
        return Down(server.base)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(c.fresh(*self.private_layers))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Train base and personalisation layers together."""
        start = self.personal(c, down, keep)
        w = c.train(c.loss, start)
        base = {name: w[name] for name in down.base}
        own = {name: w[name] for name in keep.own}
        return Up(base), Keep(own)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return server._replace(base=ups.mean("base"))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return down.base | keep.own

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return up.base | keep.own
