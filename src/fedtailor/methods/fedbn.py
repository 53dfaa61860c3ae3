"""FedBN: FedAvg of everything but BatchNorm, which stays with its client.

Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021,
Algorithm 1.

A layer counts as BatchNorm if it has running statistics, whatever its name; they are private, and
so are its scale and shift. So the private layers can be found in any tree of parameters. On a
network without such layers FedBN is FedAvg. A network whose BatchNorm layers keep no running
statistics is refused, as these layers could not be told from others.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import nn

from fedtailor.client import Client
from fedtailor.core.errors import Unsupported
from fedtailor.core.tree import Params, without
from fedtailor.method import Doc, Method, New, Uploads
from fedtailor.models.backbone import Backbone

STATISTIC = ".running_mean"  # a parameter of this name marks a BatchNorm layer


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("global model without BatchNorm")]
    layers: Annotated[tuple[str, ...], Doc("names of the BatchNorm layers")]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[Params, Doc("global model without BatchNorm")]
    layers: Annotated[tuple[str, ...], Doc("names of the BatchNorm layers")]


class Keep(NamedTuple):
    """What a client keeps to itself."""

    bn: Annotated[
        Params, Doc("its BatchNorm layers: scale, shift, running mean and variance")
    ]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[Params, Doc("locally trained model without BatchNorm")]


@dataclass(frozen=True)
class FedBN(Method[Server, Down, Keep, Up]):
    """Normalisation is private, everything else is FedAvg's."""

    def net(self, backbone: Backbone) -> nn.Module:
        for name, module in backbone.named_modules():
            is_batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
            if is_batch_norm and not module.track_running_stats:
                raise Unsupported(
                    f"FedBN needs running statistics, and the network's layer '{name}' keeps none"
                )
        return backbone

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        statistics = [name for name in w if name.endswith(STATISTIC)]
        layers = tuple(name.removesuffix(STATISTIC) for name in statistics)
        return Server(
            w=without(w, *layers),
            layers=layers,
        )

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w, server.layers)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(c.fresh(*down.layers))  # nothing random: scales of 1, shifts of 0

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Train the global model with the client's own BatchNorm layers in it."""
        start = self.personal(c, down, keep)
        w = c.train(c.loss, start)
        shared = {name: w[name] for name in down.w}
        private = {name: w[name] for name in keep.bn}
        return Up(shared), Keep(private)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return server._replace(w=ups.mean("w"))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return down.w | keep.bn

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return up.w | keep.bn
