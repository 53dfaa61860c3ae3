"""The network of GPFL for signals of motion sensors (human activity recognition)."""

from __future__ import annotations

from torch import nn

from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import SHORTEST_SIGNAL, Request, take_no_variants, take_signal
from fedtailor.models.layers import chain, shrink


def make_har_cnn(request: Request) -> Backbone:
    """Two convolutions of width 9 along time, 32 and 64 channels, under a head of three linear layers.

    The paper's 1x9 convolutions of 9x1x128 inputs are one-dimensional ones: same weights, same numbers.
    """
    take_no_variants(request)
    c, length = take_signal(request, SHORTEST_SIGNAL)
    features = 64 * shrink(length, (9, 2), (9, 2))
    base = chain(
        conv1=nn.Conv1d(c, 32, 9),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool1d(2),
        conv2=nn.Conv1d(32, 64, 9),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool1d(2),
        flatten=nn.Flatten(),
    )
    head = chain(
        fc1=nn.Linear(features, 1024),
        relu1=nn.ReLU(),
        fc2=nn.Linear(1024, 512),
        relu2=nn.ReLU(),
        fc3=nn.Linear(512, request.classes),
    )
    return Backbone(base, head, features=features, last="head.fc3", kind=request.name)
