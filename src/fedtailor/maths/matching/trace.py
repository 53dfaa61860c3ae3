"""The wiring of a network, read from its forward."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from fedtailor.core.errors import Unsupported
from fedtailor.maths.matching.wiring import INPUT, Layer, Stream, Wiring, join_steps
from fedtailor.models.architectures.resnet import PadShortcut
from fedtailor.models.backbone import Backbone
from fedtailor.models.channels.decoupled import PLAIN

SUMS: tuple[Any, ...] = (operator.add, operator.iadd, torch.add, "add", "add_")
SINGLE: tuple[Any, ...] = (
    *(
        torch.relu,
        torch.tanh,
        torch.sigmoid,
        F.relu,
        F.leaky_relu,
        F.elu,
        F.gelu,
        F.silu,
        "relu",
        "tanh",
        "sigmoid",
    ),
    *(
        F.max_pool1d,
        F.max_pool2d,
        F.avg_pool1d,
        F.avg_pool2d,
        F.adaptive_avg_pool1d,
        F.adaptive_avg_pool2d,
    ),
)  # functions (and tensors' methods, by name) that treat every unit for itself
SIZES: tuple[Any, ...] = (getattr, len, "size")
TAKEN = "linear layers, ungrouped convolutions, BatchNorm, GroupNorm, activations, poolings, Flatten and additions"


def trace_wiring(backbone: Backbone, *, grow: bool = True) -> Wiring:
    """Read how a network's layers hang together; raises Unsupported where units cannot be followed.

    A stream grows where nothing ties its width: in a network without additions, and where no normalisation follows
    (GroupNorm's groups must divide a width, and BatchNorm's statistics may stay with a client). Units that GroupNorm
    normalises keep to their groups. A stream that is padded with zeros, or added to the data, keeps its order.
    """
    try:
        graph = _Tracer().trace(backbone)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise Unsupported(
            f"FedMA cannot follow the units through this network's forward: {reason}"
        ) from error
    flow = _Flow(backbone)
    for node in graph.nodes:
        flow.take(node)
    return flow.join(grow)


class _Tracer(fx.Tracer):
    """Records a forward down to the layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, PadShortcut) or super().is_leaf_module(m, module_qualified_name)


class _Flow:
    """Follows units through a recorded forward."""

    def __init__(self, backbone: Backbone) -> None:
        self.last, self.modules, self.names = (
            backbone.last,
            dict(backbone.named_modules()),
            list(backbone.state_dict()),
        )
        self.at: dict[fx.Node, str] = {}  # the stream that comes out of a node
        self.width: dict[str, int] = {INPUT: 0}  # of the streams, in the order they begin
        self.joined: dict[str, str] = {}  # streams that were added to an older one
        self.run: dict[
            str, int
        ] = {}  # how many units stand together in a run, where not all can change places
        self.tied: set[str] = set()  # streams whose width is given
        self.layers: list[tuple[Layer, str]] = []  # and the streams they make
        self.end = ""  # the stream that comes out of the network

    def take(self, node: fx.Node) -> None:
        """One node of the forward."""
        came = [self.find(self.at[n]) for n in node.all_input_nodes if n in self.at]
        if node.op == "placeholder":
            self.at[node] = INPUT
        elif node.op == "output":
            self.end = came[0] if came else ""
        elif node.op == "call_module" and len(came) == 1:
            self.at[node] = self.pass_layer(str(node.target), came[0])
        elif node.target in SUMS and len(came) == 2:
            self.at[node] = self.add(*came)
        elif len(came) == 1 and (node.target in SINGLE or _flattens(node)):
            self.at[node] = came[0]
        elif came and node.target not in SIZES:
            raise Unsupported(
                f"FedMA cannot follow units through '{node.name}': it takes networks of {TAKEN}"
            )

    def find(self, stream: str) -> str:
        """The stream of which this one is a part by now."""
        while stream in self.joined:
            stream = self.joined[stream]
        return stream

    def pass_layer(self, name: str, came: str) -> str:
        """What comes out of a layer."""
        m, width = self.modules[name], self.width[came]
        if any(layer.name == name for layer, _ in self.layers):
            raise Unsupported(
                f"FedMA cannot match the units of '{name}', as this network uses it twice"
            )
        if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d) and getattr(m, "groups", 1) == 1:
            self.layers.append((Layer(name, came), name))
            self.width[name] = len(m.weight)
            return name
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm):
            if width != (m.num_channels if isinstance(m, nn.GroupNorm) else m.num_features):
                raise Unsupported(
                    f"FedMA cannot permute '{name}': put {type(m).__name__} behind the layer it is for"
                )
            self.layers.append((Layer(name, None), came))
            self.tied.add(came)
            if (
                isinstance(m, nn.GroupNorm) and m.num_groups < width
            ):  # a unit that is a group can go anywhere
                self.stay(came, width // m.num_groups)
            return came
        if isinstance(m, PadShortcut):
            self.stay(came, 1)
            self.width[name], self.run[name] = width + m.before + m.after, 1
            return name
        if isinstance(m, PLAIN) or (
            isinstance(m, nn.Flatten) and (m.start_dim, m.end_dim) == (1, -1)
        ):
            return came
        kind = type(m).__name__
        raise Unsupported(
            f"FedMA cannot follow units through '{name}' ({kind}): it takes networks of {TAKEN}"
        )

    def stay(self, stream: str, run: int) -> None:
        """Units of this stream stay within runs of so many."""
        self.run[stream] = math.gcd(self.run.get(stream, 0), run)

    def add(self, a: str, b: str) -> str:
        """Two streams become one, the older."""
        order = list(self.width)
        old, new = sorted((a, b), key=order.index)
        if old != new:
            if self.width[old] not in (0, self.width[new]):
                raise Unsupported(
                    f"FedMA cannot add '{new}' to '{old}': {self.width[new]} units to {self.width[old]}"
                )
            self.joined[new] = old
            self.width[old] = self.width[new]
            for run in [self.run[s] for s in (old, new) if s in self.run] + [1] * (old == INPUT):
                self.stay(old, run)
        return old

    def join(self, grow: bool) -> Wiring:
        """The wiring, once all nodes are taken."""
        steps: list[tuple[tuple[Layer, ...], str]] = []
        for layer, made in self.layers:
            source, stream = layer.source and self.find(layer.source), self.find(made)
            together = bool(steps) and steps[-1][1] == stream and source != stream
            before = steps.pop()[0] if together else ()
            steps.append(((*before, layer._replace(source=source)), stream))
        self.check(steps)
        streams: dict[str, Stream] = {}
        for _, stream in steps[:-1]:
            width, free = self.width[stream], grow and not self.joined and stream not in self.tied
            streams[stream] = Stream(width, width // self.run.get(stream, width), free)
        return join_steps([(layers, s if s in streams else "") for layers, s in steps], streams)

    def check(self, steps: list[tuple[tuple[Layer, ...], str]]) -> None:
        """Refuse all but hidden layers under a last one."""
        makers = [layers for layers, stream in steps if stream == self.end]
        if (
            not steps
            or steps[-1][1] != self.end
            or [[a.name for a in m] for m in makers] != [[self.last]]
        ):
            raise Unsupported(
                f"FedMA averages '{self.last}' by class, so it must be the last layer: let it be"
            )
        if len(steps) == 1:
            raise Unsupported(
                "FedMA matches the units of hidden layers and this network has none: take a deeper one"
            )
        known = tuple(f"{layer.name}." for layer, _ in self.layers)
        for name in self.names:
            if not name.startswith(known):
                raise Unsupported(
                    f"FedMA cannot match '{name}', as this network's forward does not use it: remove it"
                )


def _flattens(node: fx.Node) -> bool:
    """Whether a call flattens all axes but the first."""
    if node.target in ("view", "reshape"):
        return len(node.args) == 3 and bool(node.args[2] == -1)
    first = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim")
    return node.target in (torch.flatten, "flatten") and bool(first == 1)
