"""A backbone in three parts, extractor, filter (one linear layer) and head, and losses through them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.client import Batch, Client, Loss
from fedtailor.core.errors import Unsupported
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, part, rename
from fedtailor.models.backbone import Backbone, fresh

PIECE = 100  # examples that go through the extractor at once where it is not trained


class Parts(nn.Module):
    """``head(rest(filter(base(x))))``; ``rest`` has no parameters, it is the filter's activation.

    Where one layer stands between filter and head, modules are counted as in the backbone, so that both get the same
    first values.
    """

    def __init__(self, base: nn.Module, layer: nn.Linear, rest: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.base, self.filter, self.rest, self.head = base, layer, rest, head

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        out: Tensor = self.head(self.rest(self.filter(self.base(x))))
        return out


def split_backbone(backbone: Backbone, how: str = "auto") -> Parts:
    """Cut at the linear layer before the last one ("fc"), or add a square one with a ReLU for a filter ("extra_fc").

    "auto" cuts where it can.
    """
    parts = None if how == "extra_fc" else _cut(backbone)
    if parts is None and how == "fc":
        raise Unsupported(
            "there is no linear layer before the last one to be the filter: set filter=extra_fc"
        )
    if parts is None:
        layer = nn.Linear(
            backbone.features, backbone.features, device="meta"
        )  # draws no random numbers
        parts = Parts(backbone.base, layer, nn.ReLU(), backbone.head)
    if not list(parts.base.parameters()):
        raise Unsupported(
            "there is no layer before the filter to be the extractor: take a deeper network"
        )
    return parts


def name_filter(backbone: Backbone) -> Literal["fc", "extra_fc"]:
    """What "auto" does with this backbone."""
    return "fc" if _cut(backbone) else "extra_fc"


def start_filters(w: Params, rng: Rng, number: int, anew: bool) -> list[Params]:
    """So many filters: each with random values of its own, or all as in ``w``."""
    old = part(w, "filter")
    height, width = old["filter.weight"].shape
    layer = nn.Linear(width, height, bias="filter.bias" in old, device="meta")
    drawn = [fresh(layer, rng.fold(i), "filter.") for i in range(number if anew else 0)]
    return (
        [{k: v.to(old[k].device) for k, v in new.items()} for new in drawn]
        if anew
        else [old] * number
    )


def judge_features(c: Client, w: Params) -> Loss:
    """Cross entropy on a frozen extractor: it runs once for all batches, with its running statistics."""
    features = torch.cat([c.model.base(w, x) for x, _, _ in c.data.chunks(PIECE)])

    def loss(w: Params, batch: Batch) -> Tensor:
        f = c.model.rest(w, c.model.filter(w, features[batch.index]))
        return F.cross_entropy(c.model.head(w, f), batch.y)

    return loss


def judge_both_heads(c: Client) -> Loss:
    """Cross entropy of the head plus that of a second one, whose parameters are called ``own``."""

    def loss(w: Params, batch: Batch) -> Tensor:
        f = c.model.rest(w, c.model.filter(w, c.model.base(w, batch.x)))
        own = c.model.head(rename(w, "own", "head"), f)
        return F.cross_entropy(c.model.head(w, f), batch.y) + F.cross_entropy(own, batch.y)

    return loss


def _cut(backbone: Backbone) -> Parts | None:
    """The parts, where the layer is one of a sequence and not the first with parameters."""
    if len(backbone.stages) < 3:
        return None
    where, _, name = backbone.stages[-2].partition(".")
    row = backbone.get_submodule(where)
    if type(row) is not nn.Sequential or not isinstance(layer := row._modules.get(name), nn.Linear):
        return None
    layers = list(row.named_children())
    i = [n for n, _ in layers].index(name)
    if where == "base":
        return Parts(_chain(layers[:i]), layer, _merge(layers[i + 1 :]), backbone.head)
    if backbone.last != f"head.{layers[-1][0]}":
        return None
    front = nn.Sequential(backbone.base, _chain(layers[:i]))
    return Parts(front, layer, _merge(layers[i + 1 : -1]), layers[-1][1])


def _chain(layers: list[tuple[str, nn.Module]]) -> nn.Sequential:
    row = nn.Sequential()
    for name, layer in layers:
        row.add_module(name, layer)
    return row


def _merge(layers: list[tuple[str, nn.Module]]) -> nn.Module:
    return layers[0][1] if len(layers) == 1 else _chain(layers)
