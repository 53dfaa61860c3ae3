"""The network of GPFL for signals of motion sensors (human activity recognition)."""

from __future__ import annotations

from torch import nn

from fedtailor.models.architecture import Architecture
from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import (
    SHORTEST_SIGNAL,
    Request,
    refuse_variants,
    require_signal,
)
from fedtailor.models.layers import chain, count_left


def build_har_cnn(request: Request) -> Backbone:
    """Two convolutions of width 9 along time, 32 and 64 channels, under three linear layers.

    The paper's 1x9 convolutions of 9x1x128 inputs are one-dimensional here: same weights, same
    numbers. All three linear layers are the head.
    """
    refuse_variants(request)
    channels, length = require_signal(request, SHORTEST_SIGNAL)
    features = 64 * count_left(length, ((9, 2), (9, 2)))
    base = chain(
        conv1=nn.Conv1d(channels, 32, 9),
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


ARCHITECTURES = {
    "har_cnn": Architecture(
        build=build_har_cnn,
        learning_rate=0.01,  # GPFL
        layers="conv 32-64 (9 samples), head of FC 1024-512",
        source="GPFL (ICCV 2023)",
        shape=(9, 128),
        classes=6,
    ),
}
