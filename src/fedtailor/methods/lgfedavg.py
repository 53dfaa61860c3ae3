"""LG-FedAvg: private representations under shared layers, trained together.

Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, arXiv 2020,
Algorithm 1.

The text keeps the lowest layers private and shares the top (``share=top``); the authors' runs on CIFAR-10 do the
reverse, they share the convolutions and keep the linear layers (``share=conv``). The text's means weigh clients by
their data (``weights=data``). The default weighs them alike, because our specification of the baselines does: it
follows the authors' code there.

All clients are given the same random layers before their first round; one that was not draws its own. The authors' runs
begin with a FedAvg model of 400 rounds and more: see ``warmup``. After that a client keeps its private layers as
differences from FedAvg's, which go on travelling down, as the server does not know who has them. They also choose every
client's best round by its test data; here nothing is chosen.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, Self

import torch
from annotated_types import Ge
from torch import nn

from fedtailor.client import Client
from fedtailor.core.errors import UserError, unknown
from fedtailor.core.tree import Params, add, average, part, tmap, without
from fedtailor.method import Cohort, Count, Method, New, NoReplies, Uploads
from fedtailor.models.backbone import Backbone


class Server(NamedTuple):
    """What the server remembers."""

    w: Params  # theta_g, shared layers; with a warm-up all, of which the private ones rest after it
    first: Params  # every client's first private layers; with a warm-up none


class First(NamedTuple):
    """What a newcomer is given, once."""

    own: Params


class Down(NamedTuple):
    """What goes down."""

    w: Params


class Keep(NamedTuple):
    """What never leaves the client."""

    own: Params  # theta_l, its private layers; with a warm-up how they differ from FedAvg's


class Up(NamedTuple):
    """What goes up."""

    w: Params  # trained shared layers; in a warm-up all


class Nothing(NamedTuple):
    """What a newcomer answers."""


@dataclass(frozen=True)
class LGFedAvg(Method[Server, Down, Keep, Up]):
    """The shared layers are FedAvg's, all others private."""

    setup_calls = ("begin",)
    share: Literal["top", "conv"] = (
        "top"  # which layers are shared: the last ones (text) or the convolutions (code)
    )
    layers: Count = 1  # how many of the last layers are shared when the top is; 1 in the code's options, its runs 2, 3
    weights: Literal["equal", "data"] = (
        "equal"  # of clients in the mean: alike (code, our specification), or by data
    )
    warmup: Annotated[int, Ge(0)] = (
        0  # first rounds, in which all is shared as in FedAvg; text: 0, code: 400 to 1800
    )
    private: str = ""  # names of the private layers, by commas; found from the network unless given

    def with_defaults_for(self, backbone: Backbone) -> Self:
        stages, modules = backbone.stages, dict(backbone.named_modules())
        if self.private:
            for name in self.private.split(","):
                if name not in modules:
                    raise unknown("layer of this network", name, stages)
            return self
        if self.share == "top" and self.layers >= len(stages):
            raise UserError(
                f"LG-FedAvg: layers={self.layers} leaves nothing private, as this network has {len(stages)} layers "
                f"({', '.join(stages)}); choose at most {len(stages) - 1}"
            )
        shared = stages[-self.layers :] if self.share == "top" else _convolutional(backbone)
        if not shared:
            raise UserError(
                "LG-FedAvg: share=conv needs a network that begins with convolutions; choose share=top"
            )
        return replace(self, private=",".join(s for s in stages if s not in shared))

    def init(self, new: New, clients: int) -> Server:
        w, private = new(0), self.private.split(",")
        return Server(w, {}) if self.warmup else Server(without(w, *private), part(w, *private))

    def setup(self, server: Server, cohort: Cohort) -> Server:
        if self.warmup:
            return server
        with suppress(NoReplies):  # an answer says nothing
            cohort.run(self.begin, First(server.first))
        return server

    def begin(self, c: Client, down: First, keep: Keep) -> tuple[Nothing, Keep]:
        """Join with what is given."""
        return Nothing(), keep

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def first_keep(self, c: Client, down: First | Down) -> Keep:
        if isinstance(down, First):
            return Keep(down.own)
        private = self.private.split(",")
        return Keep(
            tmap(torch.zeros_like, part(down.w, *private)) if self.warmup else c.fresh(*private)
        )

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        w = c.train(c.loss, self.personal(c, down, keep))
        if c.t <= self.warmup:
            return Up(w), keep
        own = {k: w[k] - down.w[k] if self.warmup else w[k] for k in keep.own}
        return Up({k: w[k] for k in down.w if k not in own}), Keep(own)

    def expected_upload(self, down: First | Down, t: int) -> dict[str, Params]:
        if isinstance(down, First):
            return {}
        return {"w": down.w if t <= self.warmup else without(down.w, *self.private.split(","))}

    def merge(self, server: Server, ups: Uploads) -> Server:
        w = average(ups.w, ups.n if self.weights == "data" else torch.ones(len(ups)))
        return server._replace(
            w=part(server.w, *self.private.split(",")) | w
        )  # private ones stand still, if any

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return down.w | (
            add(part(down.w, *self.private.split(",")), keep.own) if self.warmup else keep.own
        )

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return self.personal(c, down, keep) | up.w


def _convolutional(backbone: Backbone) -> list[str]:
    """The layers below the first linear one (norms among them), where there are convolutions."""
    names: list[str] = []
    for name in backbone.stages:
        if any(isinstance(m, nn.Linear) for m in backbone.get_submodule(name).modules()):
            break
        names.append(name)
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    convolutions = [
        n for n in names if any(isinstance(m, kinds) for m in backbone.get_submodule(n).modules())
    ]
    return names if convolutions else []
