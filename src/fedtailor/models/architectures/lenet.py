"""LeNet-5 as in LG-FedAvg and CD2-pFed, and the LeNet of MGDA that pFedC builds on."""

from __future__ import annotations

from torch import nn

from fedtailor.core.errors import UserError
from fedtailor.models.architecture import Architecture, add_linear_head
from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import (
    Request,
    parse_width,
    refuse_variants,
    require_image,
)
from fedtailor.models.layers import two_convolutions


def build_lenet5(request: Request) -> Backbone:
    """Two 5x5 convolutions of 6 and 16 channels, hidden layers of 120 and 100.

    LG-FedAvg's second hidden layer is 100 wide, LeCun's own 84.
    """
    if len(request.variants) > 1:
        raise UserError(
            f"model '{request.name}' has one variant, the second hidden layer's width,"
            " as in lenet5:84"
        )
    hidden = 100
    if request.variants:
        hidden = parse_width(request, request.variants[0])
    shape = require_image(request, 16)
    base = two_convolutions(shape, (6, 16), hidden=120)
    base.add_module("fc2", nn.Linear(120, hidden))
    base.add_module("relu4", nn.ReLU())
    return add_linear_head(base, hidden, request)


def build_lenet_mgda(request: Request) -> Backbone:
    """Two 5x5 convolutions of 10 and 20 channels and a hidden layer of 50."""
    refuse_variants(request)
    shape = require_image(request, 16)
    base = two_convolutions(shape, (10, 20), hidden=50)
    return add_linear_head(base, 50, request)


ARCHITECTURES = {
    "lenet5": Architecture(
        build=build_lenet5,
        learning_rate=0.01,  # FedPer; CD2-pFed gives none
        layers="conv 6-16 (5x5), FC 120-100",
        source="LG-FedAvg (2020), CD2-pFed (CVPR 2022)",
        shape=(3, 32, 32),
        classes=10,
        variants=("84",),
    ),
    "lenet_mgda": Architecture(
        build=build_lenet_mgda,
        learning_rate=0.005,  # pFedC
        layers="conv 10-20 (5x5), FC 50",
        source="MGDA (NeurIPS 2018), pFedC (2023)",
        shape=(1, 28, 28),
        classes=10,
    ),
}
