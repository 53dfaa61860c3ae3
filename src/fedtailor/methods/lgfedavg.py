"""LG-FedAvg: private representations under shared layers, trained together.

Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations,
arXiv 2020, Algorithm 1.

The text keeps the lowest layers private and shares the top (``share=top``). The authors' runs on
CIFAR-10 do the reverse: they share the convolutions and keep the linear layers (``share=conv``).
The text weighs clients by their data (``weights=data``). The default weighs them equally, as the
authors' code does, because our specification of the baselines follows it there.

All clients are given the same random layers before their first round; a client that was not given
them draws its own. The authors' runs begin with a FedAvg model of 400 rounds and more: see
``warmup``. With a warm-up a client keeps its private layers as differences from FedAvg's, which are
still sent after it, as the server does not know which clients have them. The authors also choose
every client's best round by its test data; here nothing is chosen.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, Self

import torch
from annotated_types import Ge
from torch import nn

from fedtailor.client import Client
from fedtailor.core.errors import UserError, unknown
from fedtailor.core.tree import Params, add, part, subtract, tmap, without
from fedtailor.method import Count, Doc, Method, New, Uploads, hyper
from fedtailor.models.backbone import Backbone

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[
        Params,
        Doc(
            "theta_g, shared layers; with a warm-up all layers, the private ones as they were then"
        ),
    ]
    first: Annotated[
        Params, Doc("every client's first private layers; with a warm-up none")
    ]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[Params, Doc("theta_g, shared layers; with a warm-up all layers")]


class Keep(NamedTuple):
    """What a client keeps to itself."""

    own: Annotated[
        Params,
        Doc(
            "theta_l, its private layers; with a warm-up how they differ from FedAvg's"
        ),
    ]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[Params, Doc("trained shared layers; during a warm-up all layers")]


@dataclass(frozen=True)
class LGFedAvg(Method[Server, Down, Keep, Up]):
    """The shared layers are FedAvg's, all others private."""

    share: Literal["top", "conv"] = hyper(
        "top",
        "which layers are shared: the last ones (text) or the convolutions (code)",
    )
    layers: Count = hyper(
        1,
        "how many of the last layers are shared when the top is; "
        "1 in the code's options, its runs 2, 3",
    )
    weights: Literal["equal", "data"] = hyper(
        "equal",
        "of clients in the mean: alike (code, our specification), or by data",
    )
    warmup: Annotated[int, Ge(0)] = hyper(
        0,
        "first rounds, in which all is shared as in FedAvg; text: 0, code: 400 to 1800",
    )
    private: str = hyper(
        "",
        "names of the private layers, by commas; found from the network unless given",
    )

    def with_defaults_for(self, backbone: Backbone) -> Self:
        stages = backbone.stages
        if self.private:
            known = dict(backbone.named_modules())
            for name in self.private_layers:
                if name not in known:
                    raise unknown("layer of this network", name, stages)
            return self
        shared = self.find_shared_layers(backbone)
        private = [name for name in stages if name not in shared]
        return replace(self, private=",".join(private))

    def find_shared_layers(self, backbone: Backbone) -> list[str]:
        """Names of the layers to share: the last ones, or the convolutions."""
        stages = list(backbone.stages)
        if self.share == "conv":
            shared = find_convolutions(backbone)
            if not shared:
                raise UserError(
                    "LG-FedAvg: share=conv needs a network that begins with convolutions; "
                    "choose share=top"
                )
            return shared
        if self.layers >= len(stages):
            raise UserError(
                f"LG-FedAvg: layers={self.layers} leaves nothing private, as this network has "
                f"{len(stages)} layers ({', '.join(stages)}); choose at most {len(stages) - 1}"
            )
        return stages[-self.layers :]

    @property
    def private_layers(self) -> list[str]:
        """Names of the private layers."""
        return self.private.split(",")

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        if self.warmup:
            return Server(w, {})
        return Server(
            w=without(w, *self.private_layers),
            first=part(w, *self.private_layers),
        )

    def given(self, server: Server) -> Params | None:
        return None if self.warmup else server.first

    def keep_given(self, c: Client, given: Params) -> Keep:
        return Keep(given)

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def first_keep(self, c: Client, down: Down) -> Keep:
        if self.warmup:
            averaged = part(down.w, *self.private_layers)
            return Keep(tmap(torch.zeros_like, averaged))
        return Keep(c.fresh(*self.private_layers))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Train private and shared layers together; during a warm-up all of them are sent back."""
        start = self.personal(c, down, keep)
        w = c.train(c.loss, start)
        if c.t <= self.warmup:
            return Up(w), keep
        own = {name: w[name] for name in keep.own}
        shared = {name: w[name] for name in down.w if name not in own}
        if self.warmup:
            averaged = part(down.w, *self.private_layers)
            own = subtract(own, averaged)
        return Up(shared), Keep(own)

    def expected_upload(self, down: Down, t: int) -> dict[str, Params]:
        if t <= self.warmup:
            return {"w": down.w}
        return {"w": without(down.w, *self.private_layers)}

    @property
    def counts_alike(self) -> bool:
        return self.weights == "equal"

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        weights = ups.n
        if self.weights == "equal":
            weights = torch.ones(len(ups))
        mean = ups.mean("w", weights)
        # after a warm-up they stay as they are
        private = part(server.w, *self.private_layers)
        return server._replace(w=private | mean)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        own = keep.own
        if self.warmup:
            averaged = part(down.w, *self.private_layers)
            own = add(averaged, own)
        return down.w | own

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return self.personal(c, down, keep) | up.w


def find_convolutions(backbone: Backbone) -> list[str]:
    """The layers below the first linear one (norms among them), if any is a convolution."""
    names: list[str] = []
    for name in backbone.stages:
        if has_layer(backbone, name, (nn.Linear,)):
            break
        names.append(name)
    if any(has_layer(backbone, name, CONVOLUTIONS) for name in names):
        return names
    return []


def has_layer(
    backbone: Backbone, name: str, kinds: tuple[type[nn.Module], ...]
) -> bool:
    """Whether the named submodule is, or holds, a layer of these kinds."""
    modules = backbone.get_submodule(name).modules()
    return any(isinstance(module, kinds) for module in modules)
