"""Networks of linear layers alone: MLPs, GPFL's for the Amazon reviews, and the linear model."""

from __future__ import annotations

import math

from torch import nn

from fedtailor.models.architecture import Architecture, add_linear_head
from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import (
    Request,
    parse_width,
    refuse_variants,
    require_numbers,
    require_table,
)
from fedtailor.models.layers import chain


def build_mlp(request: Request) -> Backbone:
    """Hidden layers of the given widths, by default one of 128."""
    hidden = [parse_width(request, variant) for variant in request.variants]
    shape = require_numbers(request)
    return _build_stack(request, math.prod(shape), hidden or [128])


def build_amazon_mlp(request: Request) -> Backbone:
    """Hidden layers of 1000, 500 and 100."""
    refuse_variants(request)
    columns = require_table(request)
    return _build_stack(request, columns, [1000, 500, 100])


def build_linear(request: Request) -> Backbone:
    """One linear layer on the raw input."""
    refuse_variants(request)
    shape = require_numbers(request)
    return _build_stack(request, math.prod(shape), [])


def _build_stack(request: Request, inputs: int, hidden: list[int]) -> Backbone:
    """Linear layers of these widths, each with a ReLU, and a linear head."""
    base = chain(flatten=nn.Flatten())
    for i, width in enumerate(hidden, 1):
        base.add_module(f"fc{i}", nn.Linear(inputs, width))
        base.add_module(f"relu{i}", nn.ReLU())
        inputs = width
    return add_linear_head(base, inputs, request)


# The learning rates of mlp and linear are in no paper: at these they learn in tens of rounds.
ARCHITECTURES = {
    "mlp": Architecture(
        build=build_mlp,
        learning_rate=0.05,
        layers="FC 128, or of the widths given",
        source="",
        shape=(1, 28, 28),
        classes=10,
        variants=("200,100",),
    ),
    "amazon_mlp": Architecture(
        build=build_amazon_mlp,
        learning_rate=0.005,  # GPFL
        layers="FC 1000-500-100",
        source="GPFL (ICCV 2023)",
        shape=(5000,),
        classes=2,
    ),
    "linear": Architecture(
        build=build_linear,
        learning_rate=0.05,
        layers="one linear layer",
        source="MOCHA, FedEM, pFedC",
        shape=(3, 32, 32),
        classes=10,
    ),
}
