"""FedBN: FedAvg of everything but BatchNorm, which stays with its client.

Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021, Algorithm 1.

A layer is BatchNorm because it owns running statistics, whatever its name: with its scale and shift they are private.
So the split can be told from any tree of parameters. A network without such layers makes FedBN FedAvg; one whose
BatchNorm keeps no statistics is refused, as its layers could not be told from others.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import nn

from fedtailor.client import Client
from fedtailor.core.errors import Unsupported
from fedtailor.core.tree import Params, without
from fedtailor.method import Doc, Method, New, Uploads
from fedtailor.models.backbone import Backbone


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("global model without BatchNorm")]
    layers: Annotated[tuple[str, ...], Doc("names of the BatchNorm layers")]


class Down(NamedTuple):
    """What goes down."""

    w: Params
    layers: tuple[str, ...]


class Keep(NamedTuple):
    """What never leaves the client."""

    bn: Annotated[Params, Doc("its BatchNorm layers: scale, shift, running mean and variance")]


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("locally trained model without BatchNorm")]


@dataclass(frozen=True)
class FedBN(Method[Server, Down, Keep, Up]):
    """Normalisation is private, all else is FedAvg's."""

    def net(self, backbone: Backbone) -> nn.Module:
        for name, m in backbone.named_modules():
            if isinstance(m, nn.modules.batchnorm._BatchNorm) and not m.track_running_stats:
                raise Unsupported(
                    f"FedBN needs running statistics, and the network's layer '{name}' keeps none"
                )
        return backbone

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        layers = tuple(k.removesuffix(".running_mean") for k in w if k.endswith(".running_mean"))
        return Server(without(w, *layers), layers)

    def send(self, server: Server, k: int) -> Down:
        return Down(*server)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(c.fresh(*down.layers))  # nothing random: scales of 1, shifts of 0

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        w = c.train(c.loss, self.personal(c, down, keep))
        return Up({k: w[k] for k in down.w}), Keep({k: w[k] for k in keep.bn})

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return server._replace(w=ups.mean("w"))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return {**down.w, **keep.bn}

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return {**up.w, **keep.bn}
