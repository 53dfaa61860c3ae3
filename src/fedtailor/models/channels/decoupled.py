"""A backbone that can also run on its private or shared channels alone, as a smaller network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.errors import Unsupported
from fedtailor.core.tree import Params
from fedtailor.models.architectures.resnet import BasicBlock, PadShortcut
from fedtailor.models.backbone import Backbone
from fedtailor.models.channels.border import TABLE, count_shared
from fedtailor.models.factored_linear import FactoredLinear
from fedtailor.models.layers import Mean

# Layers that own nothing and treat every channel for itself.
PLAIN = (
    nn.Identity,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Dropout,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    Mean,
)
TAKEN = (
    "linear and ungrouped convolutional layers, BatchNorm, GroupNorm, activations, poolings, "
    "Flatten, BasicBlock"
)

Affine = nn.Linear | nn.Conv1d | nn.Conv2d
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


class Side(NamedTuple):
    """The channels of one kind, in every layer."""

    private: bool
    p: float  # share of private channels

    def bounds(self, width: int) -> tuple[int, int]:
        """The first channel of this kind and the one behind the last, in a layer of some width."""
        shared = count_shared(width, self.p)
        if self.private:
            return shared, width
        return 0, shared


class Flow(NamedTuple):
    """An activation, and which channels of the whole network it holds (flattened: features)."""

    x: Tensor
    low: int  # the first
    high: int  # the one behind the last


# ---------------------------------------------------------------- the network
class Decoupled(nn.Module):
    """The whole backbone, and either side of it alone. Parameters have the backbone's names.

    A side sees the whole input and, of every layer, the weights between its own channels. Its
    BatchNorm layers use the batch's statistics in training and do not change the buffers; in
    prediction they use a channel's place in the buffers, so that one set of buffers serves both
    sides. Its GroupNorm layers normalise a group over those of its channels that are there.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.base = backbone.base
        self.head = backbone.head
        self.last = backbone.last
        self._check_layers()

    def forward(
        self,
        x: Tensor,
        side: Side | None = None,
        statistics: Params | None = None,
    ) -> Tensor:
        """Logits.

        Args:
            x: the inputs.
            side: the side to run; the whole network if None.
            statistics: if given, a side's BatchNorm layers use the batch's statistics and put
                them in here.
        """
        if side is None:
            logits: Tensor = self.head(self.base(x))
            return logits
        flow = Flow(x, 0, x.shape[1])
        for name, layer in self._layers():
            flow = self._run_layer(name, layer, flow, side, statistics)
        return flow.x

    def _layers(self) -> Iterator[tuple[str, nn.Module]]:
        yield from _unroll("base", self.base)
        yield from _unroll("head", self.head)

    def _check_layers(self) -> None:
        """Refuse a network that cannot be cut by channel."""
        width = 0
        before: nn.Module = nn.Module()
        for name, layer in self._layers():
            width = _check_layer(name, layer, before, width, name == self.last)
            before = layer
        if width:
            raise Unsupported(
                f"CD2-pFed cuts '{self.last}' by input: "
                "no layer with weights may follow it, name the last"
            )

    def _run_layer(
        self,
        name: str,
        layer: nn.Module,
        flow: Flow,
        side: Side,
        statistics: Params | None,
    ) -> Flow:
        """What comes out of one layer."""
        match layer:
            case nn.Linear() | nn.Conv1d() | nn.Conv2d():
                return self._run_affine(name, layer, flow, side)
            case Mean():
                return _run_mean(layer, flow, side)
            case nn.BatchNorm1d() | nn.BatchNorm2d():
                return flow._replace(x=_normalise_batch(name, layer, flow, statistics))
            case nn.GroupNorm():
                return flow._replace(x=_normalise_groups(layer, flow))
            case nn.Flatten():
                pixels = math.prod(flow.x.shape[2:])
                return Flow(layer(flow.x), flow.low * pixels, flow.high * pixels)
            case BasicBlock():
                return self._run_block(name, layer, flow, side, statistics)
            case _:
                return flow._replace(x=layer(flow.x))

    def _run_affine(self, name: str, layer: Affine, flow: Flow, side: Side) -> Flow:
        """The layer's weights between the channels of the side; all classes of the last layer."""
        outputs = len(layer.weight)
        start, stop = side.bounds(outputs)
        if name == self.last:
            start = 0
            stop = outputs
        rows = slice(start, stop)
        columns = slice(flow.low, flow.high)
        if isinstance(layer, FactoredLinear):
            return Flow(layer.forward_block(flow.x, rows, columns), start, stop)
        weight = layer.weight[rows, columns]
        bias = None if layer.bias is None else layer.bias[rows]
        if isinstance(layer, nn.Linear):
            return Flow(F.linear(flow.x, weight, bias), start, stop)
        return Flow(layer._conv_forward(flow.x, weight, bias), start, stop)

    def _run_block(
        self,
        name: str,
        block: BasicBlock,
        flow: Flow,
        side: Side,
        statistics: Params | None,
    ) -> Flow:
        """A residual block."""
        h = self._run_layer(f"{name}.conv1", block.conv1, flow, side, statistics)
        h = self._run_layer(f"{name}.bn1", block.bn1, h, side, statistics)
        h = h._replace(x=torch.relu(h.x))
        h = self._run_layer(f"{name}.conv2", block.conv2, h, side, statistics)
        h = self._run_layer(f"{name}.bn2", block.bn2, h, side, statistics)
        if isinstance(block.shortcut, PadShortcut):
            padded = _pad(block.shortcut, flow, h.low, h.high)
            return h._replace(x=torch.relu(h.x + padded))
        for child, layer in _unroll(f"{name}.shortcut", block.shortcut):
            flow = self._run_layer(child, layer, flow, side, statistics)
        return h._replace(x=torch.relu(h.x + flow.x))


def _unroll(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested sequences by name, in forward order."""
    if not isinstance(module, nn.Sequential):
        yield name, module
        return
    for child, layer in module.named_children():
        yield from _unroll(f"{name}.{child}", layer)


# ---------------------------------------------------------------- which networks can be cut
def _check_layer(
    name: str,
    layer: nn.Module,
    before: nn.Module,
    width: int,
    is_last: bool,
) -> int:
    """Refuse a layer that cannot be cut by channel.

    Args:
        name: of the layer.
        layer: the layer itself.
        before: the layer before it.
        width: how many channels go in; 0 for the network's inputs, which are not cut.
        is_last: whether its outputs are the classes.

    Returns:
        How many channels come out; 0 for classes, which are not cut.
    """
    _check_words(name, layer, before)
    if is_last and width == 0:
        raise Unsupported(
            "CD2-pFed splits the channels of hidden layers and this network has none: "
            "take a deeper one"
        )
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm):
        _check_norm(name, layer, width)
        return width
    if isinstance(layer, Affine) and getattr(layer, "groups", 1) == 1:
        return 0 if is_last else len(layer.weight)
    if isinstance(layer, BasicBlock):
        return layer.conv2.out_channels
    if isinstance(layer, nn.Embedding):
        return layer.embedding_dim
    if isinstance(layer, PLAIN) or _flattens_all(layer):
        return width
    raise Unsupported(
        f"CD2-pFed cannot split '{name}' by channel ({type(layer).__name__}): "
        f"it takes sequences of {TAKEN}"
    )


def _check_words(name: str, layer: nn.Module, before: nn.Module) -> None:
    """Refuse word vectors that are not recognised by their name or not averaged."""
    if isinstance(layer, nn.Embedding) != f"{name}.weight".endswith(TABLE):
        raise Unsupported(
            f"CD2-pFed cannot split '{name}': call word vectors 'embedding', and nothing else"
        )
    if isinstance(layer, Mean) != isinstance(before, nn.Embedding):
        raise Unsupported(
            f"CD2-pFed cannot split '{name}': Mean must stand behind word vectors, and nowhere else"
        )


def _check_norm(name: str, layer: BatchNorm | nn.GroupNorm, width: int) -> None:
    """Refuse a normalisation of something else than the channels that come in."""
    channels = (
        layer.num_channels if isinstance(layer, nn.GroupNorm) else layer.num_features
    )
    if channels != width:
        raise Unsupported(
            f"CD2-pFed cannot split '{name}': "
            f"put {type(layer).__name__} right behind the layer it normalises"
        )


def _flattens_all(layer: nn.Module) -> bool:
    """Whether the layer flattens all axes but the first."""
    if not isinstance(layer, nn.Flatten):
        return False
    return layer.start_dim == 1 and layer.end_dim == -1


# ---------------------------------------------------------------- layers on one side
def _run_mean(layer: Mean, flow: Flow, side: Side) -> Flow:
    """The side's channels of mean word vectors.

    The mean is cut instead of the table, which need not be copied and whose gradient stays sparse.
    """
    start, stop = side.bounds(flow.x.shape[-1])
    return Flow(layer(flow.x)[:, start:stop], start, stop)


def _pad(shortcut: PadShortcut, flow: Flow, low: int, high: int) -> Tensor:
    """The shortcut into some channels of a wider stream, without channels that change sides."""
    start = flow.low + shortcut.before
    stop = flow.high + shortcut.before
    first = min(max(start, low), high)
    end = max(min(stop, high), first)
    stride = shortcut.stride
    kept = flow.x[:, first - start : end - start, ::stride, ::stride]
    return F.pad(kept, (0, 0, 0, 0, first - low, high - end))


def _normalise_batch(
    name: str,
    layer: BatchNorm,
    flow: Flow,
    statistics: Params | None,
) -> Tensor:
    """BatchNorm of the channels that are there."""
    there = slice(flow.low, flow.high)
    weight = _cut(layer.weight, there)
    bias = _cut(layer.bias, there)
    mean = layer.running_mean
    var = layer.running_var
    if statistics is not None:
        statistics |= _measure_batch(name, flow.x)
    elif not layer.training and mean is not None and var is not None:
        return F.batch_norm(
            flow.x, mean[there], var[there], weight, bias, eps=layer.eps
        )
    return F.batch_norm(flow.x, None, None, weight, bias, training=True, eps=layer.eps)


def _measure_batch(name: str, x: Tensor) -> Params:
    """A batch's statistics, as buffers of a BatchNorm layer."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    var, mean = torch.var_mean(x, axes)
    return {
        f"{name}.running_var": var,
        f"{name}.running_mean": mean,
    }


def _normalise_groups(layer: nn.GroupNorm, flow: Flow) -> Tensor:
    """GroupNorm of the channels that are there: whole groups, and parts of one before and after."""
    size = layer.num_channels // layer.num_groups
    first_whole = min(flow.high, math.ceil(flow.low / size) * size)
    last_whole = max(first_whole, flow.high // size * size)
    whole_groups = (last_whole - first_whole) // size
    runs = (
        (flow.low, first_whole, 1),
        (first_whole, last_whole, whole_groups),
        (last_whole, flow.high, 1),
    )
    normalised = []
    for start, stop, groups in runs:
        if stop > start:
            x = flow.x[:, start - flow.low : stop - flow.low]
            weight = _cut(layer.weight, slice(start, stop))
            bias = _cut(layer.bias, slice(start, stop))
            normalised.append(torch.group_norm(x, groups, weight, bias, layer.eps))
    return torch.cat(normalised, 1)


def _cut(value: Tensor | None, channels: slice) -> Tensor | None:
    """Some channels of a parameter that a layer may not have."""
    return None if value is None else value[channels]
