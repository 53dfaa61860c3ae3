"""Find the wiring of a network: record its forward, and follow the hidden units through it."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from fedtailor.core.errors import Unsupported
from fedtailor.maths.matching.wiring import (
    INPUT,
    Layer,
    LayersOfStep,
    Stream,
    Wiring,
    make_wiring,
)
from fedtailor.models.architectures.resnet import PadShortcut
from fedtailor.models.backbone import Backbone
from fedtailor.models.channels.decoupled import PLAIN

# functions, and methods of tensors by name
ADDITIONS: tuple[Any, ...] = (operator.add, operator.iadd, torch.add, "add", "add_")
SIZES: tuple[Any, ...] = (getattr, len, "size")
UNIT_BY_UNIT: tuple[Any, ...] = (  # these treat every unit on its own
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
    F.max_pool1d,
    F.max_pool2d,
    F.avg_pool1d,
    F.avg_pool2d,
    F.adaptive_avg_pool1d,
    F.adaptive_avg_pool2d,
)
SUPPORTED = (
    "linear layers, ungrouped convolutions, BatchNorm, GroupNorm, activations, poolings, Flatten "
    "and additions"
)


def trace_wiring(backbone: Backbone, *, grow: bool = True) -> Wiring:
    """Find how a network's layers are connected.

    A stream grows where nothing fixes its width: in a network without additions, and where no
    normalisation follows (GroupNorm's groups must divide a width, and BatchNorm's statistics may
    stay with a client). Units that GroupNorm normalises keep to their groups. A stream that is
    padded with zeros, or added to the data, keeps its order.

    Args:
        backbone: the network.
        grow: whether any stream may grow.

    Raises:
        Unsupported: units cannot be followed through this network.
    """
    try:
        graph = _Tracer().trace(backbone)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise Unsupported(
            f"FedMA cannot follow the units through this network's forward: {reason}"
        ) from error
    tracker = _StreamTracker(backbone)
    for node in graph.nodes:
        tracker.follow(node)
    return tracker.make_wiring(grow)


class _Tracer(fx.Tracer):
    """Records a forward down to the layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, PadShortcut) or super().is_leaf_module(
            m, module_qualified_name
        )


class _StreamTracker:
    """Follows streams of units through a recorded forward."""

    def __init__(self, backbone: Backbone) -> None:
        self.last = backbone.last
        self.modules = dict(backbone.named_modules())
        self.parameters = list(backbone.state_dict())
        self.layers: list[tuple[Layer, str]] = []  # with the streams they make
        self.stream_after: dict[fx.Node, str] = {}
        self.output = ""  # the stream that comes out of the network
        # of every stream, in the order they begin
        self.width: dict[str, int] = {INPUT: 0}
        self.added_to: dict[str, str] = {}  # streams that are part of an older one
        self.run: dict[str, int] = {}  # units in a run, where not all can change places
        self.has_norm: set[str] = set()  # streams that are normalised

    # ---------------------------------------------------------------- nodes
    def follow(self, node: fx.Node) -> None:
        """Follow the streams through one node of the forward."""
        inputs = []
        for source in node.all_input_nodes:
            if source in self.stream_after:
                inputs.append(self.find(self.stream_after[source]))
        if node.op == "placeholder":
            self.stream_after[node] = INPUT
        elif node.op == "output":
            self.output = inputs[0] if inputs else ""
        elif node.op == "call_module" and len(inputs) == 1:
            self.stream_after[node] = self.pass_module(str(node.target), inputs[0])
        elif node.target in ADDITIONS and len(inputs) == 2:
            self.stream_after[node] = self.add_streams(*inputs)
        elif len(inputs) == 1 and (node.target in UNIT_BY_UNIT or _flattens(node)):
            self.stream_after[node] = inputs[0]
        elif inputs and node.target not in SIZES:
            raise Unsupported(
                f"FedMA cannot follow units through '{node.name}': it takes networks of {SUPPORTED}"
            )

    def find(self, stream: str) -> str:
        """The stream that this one is part of by now."""
        while stream in self.added_to:
            stream = self.added_to[stream]
        return stream

    def keep_runs(self, stream: str, run: int) -> None:
        """Let units of a stream change places only within runs of so many."""
        self.run[stream] = math.gcd(self.run.get(stream, 0), run)

    def add_streams(self, a: str, b: str) -> str:
        """Make two streams one, the older."""
        order = list(self.width)
        old, new = sorted((a, b), key=order.index)
        if old == new:
            return old
        if self.width[old] not in (0, self.width[new]):
            raise Unsupported(
                f"FedMA cannot add '{new}' to '{old}': {self.width[new]} units to {self.width[old]}"
            )
        self.added_to[new] = old
        self.width[old] = self.width[new]
        if new in self.run:
            self.keep_runs(old, self.run[new])
        if old == INPUT:
            self.keep_runs(old, 1)
        return old

    # ---------------------------------------------------------------- modules
    def pass_module(self, name: str, stream: str) -> str:
        """The stream that comes out of a module."""
        m = self.modules[name]
        if any(layer.name == name for layer, _ in self.layers):
            raise Unsupported(
                f"FedMA cannot match the units of '{name}', as this network uses it twice"
            )
        if (
            isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)
            and getattr(m, "groups", 1) == 1
        ):
            self.layers.append((Layer(name, stream), name))
            self.width[name] = len(m.weight)
            return name
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm):
            self.pass_norm(name, m, stream)
            return stream
        if isinstance(m, PadShortcut):
            self.keep_runs(stream, 1)
            self.width[name] = self.width[stream] + m.before + m.after
            self.run[name] = 1
            return name
        flattens_all = isinstance(m, nn.Flatten) and (m.start_dim, m.end_dim) == (1, -1)
        if flattens_all or isinstance(m, PLAIN):
            return stream
        raise Unsupported(
            f"FedMA cannot follow units through '{name}' ({type(m).__name__}): "
            f"it takes networks of {SUPPORTED}"
        )

    def pass_norm(
        self, name: str, m: nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm, stream: str
    ) -> None:
        """A normalisation belongs to the stream that it normalises."""
        width = self.width[stream]
        channels = m.num_channels if isinstance(m, nn.GroupNorm) else m.num_features
        if width != channels:
            raise Unsupported(
                f"FedMA cannot permute '{name}': put {type(m).__name__} behind the layer it is for"
            )
        self.layers.append((Layer(name, None), stream))
        self.has_norm.add(stream)
        # a unit that is a group by itself can go anywhere
        if isinstance(m, nn.GroupNorm) and m.num_groups < width:
            self.keep_runs(stream, width // m.num_groups)

    # ---------------------------------------------------------------- the result
    def make_wiring(self, grow: bool) -> Wiring:
        """The wiring, once all nodes are followed."""
        steps = self.list_steps()
        self.check_steps(steps)
        can_grow = grow and not self.added_to
        streams: dict[str, Stream] = {}
        for _, stream in steps[:-1]:
            width = self.width[stream]
            groups = width // self.run.get(stream, width)
            streams[stream] = Stream(
                width, groups, can_grow and stream not in self.has_norm
            )
        named = [
            (layers, stream if stream in streams else "") for layers, stream in steps
        ]
        return make_wiring(named, streams)

    def list_steps(self) -> list[LayersOfStep]:
        """Layers in forward order; those that make a stream at the same time are together."""
        steps: list[LayersOfStep] = []
        for layer, made in self.layers:
            source = layer.source and self.find(layer.source)
            stream = self.find(made)
            together: tuple[Layer, ...] = ()
            if steps and steps[-1][1] == stream and source != stream:
                together, _ = steps.pop()
            steps.append(((*together, Layer(layer.name, source)), stream))
        return steps

    def check_steps(self, steps: list[LayersOfStep]) -> None:
        """Refuse all networks but hidden layers under a last one."""
        makers = [layers for layers, stream in steps if stream == self.output]
        ends = bool(steps) and steps[-1][1] == self.output
        names = [[layer.name for layer in layers] for layers in makers]
        if not ends or names != [[self.last]]:
            raise Unsupported(
                f"FedMA averages '{self.last}' by class, so it must be the last layer: let it be"
            )
        if len(steps) == 1:
            raise Unsupported(
                "FedMA matches the units of hidden layers and this network has none: "
                "take a deeper one"
            )
        used = tuple(f"{layer.name}." for layer, _ in self.layers)
        for name in self.parameters:
            if not name.startswith(used):
                raise Unsupported(
                    f"FedMA cannot match '{name}', as this network's forward does not use it: "
                    "remove it"
                )


def _flattens(node: fx.Node) -> bool:
    """Whether a call flattens all axes but the first."""
    if node.target in ("view", "reshape"):
        return len(node.args) == 3 and bool(node.args[2] == -1)
    if node.target not in (torch.flatten, "flatten"):
        return False
    first = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim")
    return bool(first == 1)
