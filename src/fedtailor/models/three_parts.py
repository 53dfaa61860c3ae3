"""Networks in three parts: an extractor, a filter (one linear layer) and a head."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from fedtailor.core.errors import Unsupported
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, part
from fedtailor.models.backbone import Backbone, fresh

NamedLayers = list[tuple[str, nn.Module]]


class ThreeParts(nn.Module):
    """``head(rest(filter(base(x))))``; ``rest`` has no parameters, it is the filter's activation.

    Where one layer stands between filter and head, modules are counted as in the backbone, so that
    both get the same first values.
    """

    def __init__(
        self, base: nn.Module, layer: nn.Linear, rest: nn.Module, head: nn.Module
    ) -> None:
        super().__init__()
        self.base = base
        self.filter = layer
        self.rest = rest
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        filtered = self.filter(self.base(x))
        logits: Tensor = self.head(self.rest(filtered))
        return logits


def split_backbone(backbone: Backbone, how: str = "auto") -> ThreeParts:
    """Split a backbone into three parts.

    Args:
        backbone: the network.
        how: "fc" takes the linear layer before the last for the filter, "extra_fc" adds a square
            layer with a ReLU, "auto" adds one only where there is no such layer.
    """
    parts = None
    if how != "extra_fc":
        parts = _split_at_linear(backbone)
        if parts is None and how == "fc":
            raise Unsupported(
                "there is no linear layer before the last one to be the filter: set filter=extra_fc"
            )
    if parts is None:
        parts = _add_linear(backbone)
    if not list(parts.base.parameters()):
        raise Unsupported(
            "there is no layer before the filter to be the extractor: take a deeper network"
        )
    return parts


def name_filter(backbone: Backbone) -> Literal["fc", "extra_fc"]:
    """What "auto" does with this backbone."""
    return "fc" if _split_at_linear(backbone) else "extra_fc"


def draw_filter(w: Params, rng: Rng) -> Params:
    """New random values for the filter of a network with parameters ``w``."""
    old = part(w, "filter")
    outputs, inputs = old["filter.weight"].shape
    layer = nn.Linear(inputs, outputs, bias="filter.bias" in old, device="meta")
    new = fresh(layer, rng, "filter.")
    return {name: value.to(old[name].device) for name, value in new.items()}


def _add_linear(backbone: Backbone) -> ThreeParts:
    """The backbone with a square layer between its extractor and its head."""
    size = backbone.features
    layer = nn.Linear(size, size, device="meta")  # draws no random numbers
    return ThreeParts(backbone.base, layer, nn.ReLU(), backbone.head)


def _split_at_linear(backbone: Backbone) -> ThreeParts | None:
    """The parts, if the module before the last one with parameters is linear and in a sequence."""
    if len(backbone.stages) < 3:
        return None
    where, _, name = backbone.stages[-2].partition(".")
    sequence = backbone.get_submodule(where)
    if type(sequence) is not nn.Sequential:
        return None
    layer = sequence._modules.get(name)
    if not isinstance(layer, nn.Linear):
        return None
    layers = list(sequence.named_children())
    place = [other for other, _ in layers].index(name)
    before = _make_sequence(layers[:place])
    after = layers[place + 1 :]
    if where == "base":
        return ThreeParts(before, layer, _make_module(after), backbone.head)
    last_name, last = layers[-1]
    if backbone.last != f"head.{last_name}":
        return None
    return ThreeParts(
        nn.Sequential(backbone.base, before), layer, _make_module(after[:-1]), last
    )


def _make_sequence(layers: NamedLayers) -> nn.Sequential:
    """The layers one after another, under their names."""
    sequence = nn.Sequential()
    for name, layer in layers:
        sequence.add_module(name, layer)
    return sequence


def _make_module(layers: NamedLayers) -> nn.Module:
    """A single layer as it is, several as a sequence."""
    if len(layers) == 1:
        _, layer = layers[0]
        return layer
    return _make_sequence(layers)
