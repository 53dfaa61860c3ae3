"""Networks of linear layers alone: MLPs, GPFL's for the Amazon reviews, and the linear model."""

from __future__ import annotations

import math

from torch import nn

from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import (
    Request,
    take_no_variants,
    take_numbers,
    take_table,
    take_width,
)
from fedtailor.models.layers import chain


def make_mlp(request: Request) -> Backbone:
    """Hidden layers of the given widths, by default one of 128."""
    hidden = tuple(take_width(request, v) for v in request.variants) or (128,)
    return _stack(request, math.prod(take_numbers(request)), hidden)


def make_amazon_mlp(request: Request) -> Backbone:
    """Hidden layers of 1000, 500 and 100."""
    take_no_variants(request)
    return _stack(request, take_table(request), (1000, 500, 100))


def make_linear(request: Request) -> Backbone:
    """One linear layer on the raw input."""
    take_no_variants(request)
    return _stack(request, math.prod(take_numbers(request)), ())


def _stack(request: Request, inputs: int, hidden: tuple[int, ...]) -> Backbone:
    base = chain(flatten=nn.Flatten())
    for i, width in enumerate(hidden, 1):
        base.add_module(f"fc{i}", nn.Linear(inputs, width))
        base.add_module(f"relu{i}", nn.ReLU())
        inputs = width
    return Backbone(base, nn.Linear(inputs, request.classes), features=inputs, kind=request.name)
