"""LeNet-5 as in LG-FedAvg and CD2-pFed, and the LeNet of MGDA that pFedC builds on."""

from __future__ import annotations

from torch import nn

from fedtailor.core.errors import UserError
from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import Request, take_image, take_no_variants, take_width
from fedtailor.models.layers import chain, shrink


def make_lenet5(request: Request) -> Backbone:
    """Two 5x5 convolutions of 6 and 16 channels, hidden layers of 120 and 100 (LG-FedAvg; LeCun's own is 84)."""
    if len(request.variants) > 1:
        raise UserError(
            f"model '{request.name}' has one variant, the second hidden layer's width, as in lenet5:84"
        )
    hidden = take_width(request, request.variants[0]) if request.variants else 100
    c, h, w = take_image(request, 16)
    base = chain(
        conv1=nn.Conv2d(c, 6, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(6, 16, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(16 * shrink(h, (5, 2), (5, 2)) * shrink(w, (5, 2), (5, 2)), 120),
        relu3=nn.ReLU(),
        fc2=nn.Linear(120, hidden),
        relu4=nn.ReLU(),
    )
    return Backbone(base, nn.Linear(hidden, request.classes), features=hidden, kind=request.name)


def make_lenet_mgda(request: Request) -> Backbone:
    """Two 5x5 convolutions of 10 and 20 channels, each pooled before its ReLU, and a hidden layer of 50."""
    take_no_variants(request)
    c, h, w = take_image(request, 16)
    base = chain(
        conv1=nn.Conv2d(c, 10, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(10, 20, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(20 * shrink(h, (5, 2), (5, 2)) * shrink(w, (5, 2), (5, 2)), 50),
        relu3=nn.ReLU(),
    )
    return Backbone(base, nn.Linear(50, request.classes), features=50, kind=request.name)
