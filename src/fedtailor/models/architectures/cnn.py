"""Plain convolutional networks: of FedCP and GPFL, of Fed3+2p, and of pfl-research's benchmark."""

from __future__ import annotations

from torch import nn

from fedtailor.models.architecture import Architecture, add_linear_head
from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import (
    SMALLEST_IMAGE,
    Request,
    refuse_variants,
    require_image,
)
from fedtailor.models.layers import chain, count_left, two_convolutions


def build_cnn(request: Request) -> Backbone:
    """Two 5x5 convolutions of 32 and 64 channels and a hidden layer of 512.

    For images below 16x16 a smaller network.
    """
    refuse_variants(request)
    shape = require_image(request, SMALLEST_IMAGE)
    if min(shape[1:]) < 16:
        return _build_small_cnn(request)
    base = two_convolutions(shape, (32, 64), hidden=512)
    return add_linear_head(base, 512, request)


def _build_small_cnn(request: Request) -> Backbone:
    """Two padded 3x3 convolutions of 16 and 32 channels and a hidden layer of 64: 8x8 digits."""
    channels, height, width = request.shape
    pixels = (height // 4) * (width // 4)
    base = chain(
        conv1=nn.Conv2d(channels, 16, 3, padding=1),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(16, 32, 3, padding=1),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(32 * pixels, 64),
        relu3=nn.ReLU(),
    )
    return add_linear_head(base, 64, request)


def choose_cnn_rate(backbone: Backbone) -> float:
    """FedCP's and GPFL's rate, or one for the smaller network, which is in no paper.

    At 0.05 it learns in some tens of rounds.
    """
    return 0.05 if backbone.features < 512 else 0.005


def build_convnet2(request: Request) -> Backbone:
    """Two 5x5 convolutions of 32 and 64 channels and a hidden layer of 50, Fed3+2p's filter."""
    refuse_variants(request)
    shape = require_image(request, 16)
    base = two_convolutions(shape, (32, 64), hidden=50)
    return add_linear_head(base, 50, request)


def build_convnet3(request: Request) -> Backbone:
    """Three 3x3 convolutions of 32, 64 and 64 channels and a hidden layer of 64.

    The first two are pooled.
    """
    refuse_variants(request)
    channels, height, width = require_image(request, 18)
    steps = ((3, 2), (3, 2), (3, 1))
    pixels = count_left(height, steps) * count_left(width, steps)
    base = chain(
        conv1=nn.Conv2d(channels, 32, 3),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        conv3=nn.Conv2d(64, 64, 3),
        relu3=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * pixels, 64),
        relu4=nn.ReLU(),
    )
    return add_linear_head(base, 64, request)


def build_pflcnn(request: Request) -> Backbone:
    """Two 3x3 convolutions of 32 and 64 channels, one pooling, a hidden layer of 128.

    pfl-research's ``simple_cnn`` has dropout after the pooling (0.25) and after the hidden layer
    (0.5) and Xavier's first values; here there is no dropout, and first values are PyTorch's
    defaults.
    """
    refuse_variants(request)
    channels, height, width = require_image(request, 6)
    steps = ((3, 1), (3, 2))
    pixels = count_left(height, steps) * count_left(width, steps)
    base = chain(
        conv1=nn.Conv2d(channels, 32, 3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        pool1=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * pixels, 128),
        relu3=nn.ReLU(),
    )
    return add_linear_head(base, 128, request)


ARCHITECTURES = {
    "cnn": Architecture(
        build=build_cnn,
        learning_rate=choose_cnn_rate,
        layers="conv 32-64 (5x5), FC 512; below 16x16 conv 16-32 (3x3), FC 64",
        source="FedCP (KDD 2023), GPFL (ICCV 2023)",
        shape=(3, 32, 32),
        classes=10,
    ),
    "convnet2": Architecture(
        build=build_convnet2,
        learning_rate=0.01,  # Fed3+2p
        layers="conv 32-64 (5x5), FC 50",
        source="FedRoD (ICLR 2022), Fed3+2p",
        shape=(1, 28, 28),
        classes=10,
    ),
    "convnet3": Architecture(
        build=build_convnet3,
        learning_rate=0.001,  # Fed3+2p
        layers="conv 32-64-64 (3x3), FC 64",
        source="FedRoD (ICLR 2022), Fed3+2p",
        shape=(3, 32, 32),
        classes=10,
    ),
    "pflcnn": Architecture(
        build=build_pflcnn,
        learning_rate=0.1,  # as in the benchmark against pfl-research
        layers="conv 32-64 (3x3), FC 128, no dropout",
        source="pfl-research (NeurIPS 2024)",
        shape=(3, 32, 32),
        classes=10,
    ),
}
