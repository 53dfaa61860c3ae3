"""A backbone whose last layer holds the small heads of several tasks."""

from __future__ import annotations

import copy
from typing import cast

from torch import nn

from fedtailor.models.backbone import Backbone


def mount_heads(backbone: Backbone, logits: int, width: int | None) -> Backbone:
    """The backbone with another last layer; of a head of several layers, the others join the base.

    Args:
        backbone: the network; it stays as it is.
        logits: of all heads together.
        width: of an additional layer below the heads; no such layer if None.
    """
    last = cast(nn.Linear, backbone.get_submodule(backbone.last))
    base = backbone.base
    features = last.in_features
    if backbone.last != "head":
        base = nn.Sequential(base, _without_last_layer(backbone))
    if width:
        # on the meta device, where a layer draws no random numbers
        bottleneck = nn.Linear(features, width, device="meta")
        base = nn.Sequential(base, bottleneck, nn.ReLU())
        features = width
    heads = nn.Linear(features, logits, bias=last.bias is not None, device="meta")
    return Backbone(base, heads, features=features, kind=backbone.kind)


def _without_last_layer(backbone: Backbone) -> nn.Module:
    """A copy of the head without its last layer."""
    head = copy.deepcopy(backbone.head)
    name = backbone.last.removeprefix("head.")
    head.set_submodule(name, nn.Identity())
    return head
