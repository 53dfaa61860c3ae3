"""A backbone that can also be run on its private or on its shared channels alone, as a network of that size."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.client import Batch, Client
from fedtailor.core.errors import Unsupported
from fedtailor.core.tree import Params, is_statistic
from fedtailor.models.architectures.resnet import BasicBlock, PadShortcut
from fedtailor.models.backbone import Backbone
from fedtailor.models.channels.border import TABLE, count_shared, join_parts
from fedtailor.models.factored_linear import FactoredLinear
from fedtailor.models.layers import Mean

PLAIN = (
    *(
        nn.Identity,
        nn.ReLU,
        nn.LeakyReLU,
        nn.ELU,
        nn.GELU,
        nn.SiLU,
        nn.Tanh,
        nn.Sigmoid,
        nn.Dropout,
    ),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, Mean),
)  # layers that own nothing and treat every channel for itself
TAKEN = "linear and ungrouped convolutional layers, BatchNorm, GroupNorm, activations, poolings, Flatten, BasicBlock"


class Side(NamedTuple):
    """The channels of one kind, in every layer."""

    private: bool
    p: float  # share of private channels

    def span(self, width: int) -> tuple[int, int]:
        """First channel and the one behind the last, in a layer of this width."""
        at = count_shared(width, self.p)
        return (at, width) if self.private else (0, at)


class Flow(NamedTuple):
    """An activation, and which of the whole network's channels (flattened: features) it holds."""

    x: Tensor
    low: int
    high: int


class Decoupled(nn.Module):
    """The whole backbone, and either side of it alone. Parameters are the backbone's, under the same names.

    A side sees the whole input, and of every layer the weights between its own channels. Its BatchNorm layers take the
    batch's statistics in training and leave the buffers alone; in prediction they take a channel's statistics from the
    channel's place in the buffers, so that one set of buffers serves both sides. Its GroupNorm layers normalise a
    group over those of the group's channels that are there.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.base, self.head, self.last = backbone.base, backbone.head, backbone.last
        width, before = 0, nn.Module()
        for name, m in self._layers():
            width, before = _check_layer(name, m, before, width, name == self.last), m
        if width:
            raise Unsupported(
                f"CD2-pFed cuts '{self.last}' by input: no layer with weights may follow it, name the last"
            )

    def forward(self, x: Tensor, side: Side | None = None, seen: Params | None = None) -> Tensor:
        """Logits of the whole or of one side; with ``seen``, a side uses the batch's statistics and notes them."""
        if side is None:
            logits: Tensor = self.head(self.base(x))
            return logits
        flow = Flow(x, 0, x.shape[1])
        for name, m in self._layers():
            flow = self._pass(name, m, flow, side, seen)
        return flow.x

    def _layers(self) -> Iterator[tuple[str, nn.Module]]:
        yield from _unroll("base", self.base)
        yield from _unroll("head", self.head)

    def _pass(self, name: str, m: nn.Module, flow: Flow, side: Side, seen: Params | None) -> Flow:
        """What comes out of one layer."""
        x, low, high = flow
        match m:
            case nn.Linear() | nn.Conv1d() | nn.Conv2d():
                start, stop = (0, len(m.weight)) if name == self.last else side.span(len(m.weight))
                if isinstance(m, FactoredLinear):
                    return Flow(
                        m.forward_block(x, slice(start, stop), slice(low, high)), start, stop
                    )
                weight, bias = (
                    m.weight[start:stop, low:high],
                    None if m.bias is None else m.bias[start:stop],
                )
                out = (
                    F.linear(x, weight, bias)
                    if isinstance(m, nn.Linear)
                    else m._conv_forward(x, weight, bias)
                )
                return Flow(out, start, stop)
            case Mean():  # of word vectors, cut here: no table is copied, and gradients stay sparse
                start, stop = side.span(x.shape[-1])
                return Flow(m(x)[:, start:stop], start, stop)
            case nn.BatchNorm1d() | nn.BatchNorm2d():
                return flow._replace(x=_normalise_batch(name, m, flow, seen))
            case nn.GroupNorm():
                return flow._replace(x=_normalise_groups(m, flow))
            case nn.Flatten():
                pixels = math.prod(x.shape[2:])
                return Flow(m(x), low * pixels, high * pixels)
            case BasicBlock():
                return self._pass_block(name, m, flow, side, seen)
            case _:
                return flow._replace(x=m(x))

    def _pass_block(
        self, name: str, m: BasicBlock, flow: Flow, side: Side, seen: Params | None
    ) -> Flow:
        h = self._pass(f"{name}.conv1", m.conv1, flow, side, seen)
        h = self._pass(f"{name}.bn1", m.bn1, h, side, seen)
        h = self._pass(f"{name}.conv2", m.conv2, h._replace(x=torch.relu(h.x)), side, seen)
        h = self._pass(f"{name}.bn2", m.bn2, h, side, seen)
        if isinstance(m.shortcut, PadShortcut):
            return h._replace(x=torch.relu(h.x + _pad(m.shortcut, flow, h.low, h.high)))
        for child, layer in _unroll(f"{name}.shortcut", m.shortcut):
            flow = self._pass(child, layer, flow, side, seen)
        return h._replace(x=torch.relu(h.x + flow.x))


def score_sides(c: Client, w: Params, p: float, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Which examples either side of ``w`` gets right alone."""
    w, sides = w | measure_sides(c, w, p), {"private": Side(True, p), "shared": Side(False, p)}
    return {name: (c.model(w, x, side).argmax(-1) == y).to(x.dtype) for name, side in sides.items()}


def measure_sides(c: Client, w: Params, p: float) -> Params:
    """Buffers for predicting with either side of ``w``: the mean of its batches' statistics in a pass over the data."""
    buffers = {k: torch.zeros_like(x) for k, x in w.items() if is_statistic(k)}

    def look(total: Params, batch: Batch) -> Params:
        shared: Params = {}
        private: Params = {}
        c.model(w, batch.x, Side(False, p), shared)
        c.model(w, batch.x, Side(True, p), private)
        seen = join_parts(shared, private)
        return {k: x + seen[k] for k, x in total.items()}

    if not buffers:
        return {}
    steps, total = (
        c.steps(1),
        copy.copy(c).each_batch(look, buffers, epochs=1),
    )  # a copy: c's own epochs stay uncounted
    return {k: x / steps for k, x in total.items()}


def _unroll(name: str, m: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested sequences by name, in forward order."""
    if not isinstance(m, nn.Sequential):
        yield name, m
        return
    for child, layer in m.named_children():
        yield from _unroll(f"{name}.{child}", layer)


def _check_layer(name: str, m: nn.Module, before: nn.Module, width: int, last: bool) -> int:
    """How many channels come out of a layer into which ``width`` go; 0 for inputs and classes, which stay whole."""
    if isinstance(m, nn.Embedding) != f"{name}.weight".endswith(TABLE):
        raise Unsupported(
            f"CD2-pFed cannot split '{name}': call word vectors 'embedding', and nothing else"
        )
    if isinstance(m, Mean) != isinstance(before, nn.Embedding):
        raise Unsupported(
            f"CD2-pFed cannot split '{name}': Mean must stand behind word vectors, and nowhere else"
        )
    if last and width == 0:
        raise Unsupported(
            "CD2-pFed splits the channels of hidden layers and this network has none: take a deeper one"
        )
    if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm):
        if width == (m.num_channels if isinstance(m, nn.GroupNorm) else m.num_features):
            return width
        raise Unsupported(
            f"CD2-pFed cannot split '{name}': put {type(m).__name__} right behind the layer it normalises"
        )
    if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d) and getattr(m, "groups", 1) == 1:
        return 0 if last else len(m.weight)
    if isinstance(m, BasicBlock):
        return m.conv2.out_channels
    if isinstance(m, nn.Embedding):
        return m.embedding_dim
    if isinstance(m, PLAIN) or (isinstance(m, nn.Flatten) and (m.start_dim, m.end_dim) == (1, -1)):
        return width
    raise Unsupported(
        f"CD2-pFed cannot split '{name}' by channel ({type(m).__name__}): it takes sequences of {TAKEN}"
    )


def _pad(m: PadShortcut, flow: Flow, low: int, high: int) -> Tensor:
    """The shortcut into channels low..high of a wider stream; a channel that would change sides stays behind."""
    start = flow.low + m.before
    first = min(max(start, low), high)
    end = max(min(flow.high + m.before, high), first)
    x = flow.x[:, first - start : end - start, :: m.stride, :: m.stride]
    return F.pad(x, (0, 0, 0, 0, first - low, high - end))


def _normalise_batch(
    name: str, m: nn.BatchNorm1d | nn.BatchNorm2d, flow: Flow, seen: Params | None
) -> Tensor:
    x, part = flow.x, slice(flow.low, flow.high)
    weight, bias = (None if v is None else v[part] for v in (m.weight, m.bias))
    if seen is not None:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        seen[f"{name}.running_var"], seen[f"{name}.running_mean"] = torch.var_mean(x, axes)
    if m.training or seen is not None or m.running_mean is None or m.running_var is None:
        return F.batch_norm(x, None, None, weight, bias, training=True, eps=m.eps)
    return F.batch_norm(x, m.running_mean[part], m.running_var[part], weight, bias, eps=m.eps)


def _normalise_groups(m: nn.GroupNorm, flow: Flow) -> Tensor:
    x, low, high = flow
    size = m.num_channels // m.num_groups
    whole = min(high, -(-low // size) * size)  # where whole groups begin
    torn = max(whole, high // size * size)  # where they end
    out = []
    for start, stop, groups in (
        (low, whole, 1),
        (whole, torn, (torn - whole) // size),
        (torn, high, 1),
    ):
        if stop > start:
            weight, bias = (None if v is None else v[start:stop] for v in (m.weight, m.bias))
            out.append(
                torch.group_norm(x[:, start - low : stop - low], groups, weight, bias, m.eps)
            )
    return torch.cat(out, 1)
