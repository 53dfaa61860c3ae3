"""Plain convolutional networks: the 4-layer CNN of FedCP and GPFL, Fed3+2p's ConvNets, pfl-research's benchmark net."""

from __future__ import annotations

from torch import nn

from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import SMALLEST_IMAGE, Request, take_image, take_no_variants
from fedtailor.models.layers import chain, shrink


def make_cnn(request: Request) -> Backbone:
    """Two 5x5 convolutions of 32 and 64 channels and a hidden layer of 512; for images below 16x16 a small sibling."""
    take_no_variants(request)
    c, h, w = take_image(request, SMALLEST_IMAGE)
    if min(h, w) < 16:
        return _make_small_cnn(request)
    flat = 64 * shrink(h, (5, 2), (5, 2)) * shrink(w, (5, 2), (5, 2))
    base = chain(
        conv1=nn.Conv2d(c, 32, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, 512),
        relu3=nn.ReLU(),
    )
    return Backbone(base, nn.Linear(512, request.classes), features=512, kind=request.name)


def _make_small_cnn(request: Request) -> Backbone:
    """Two padded 3x3 convolutions of 16 and 32 channels and a hidden layer of 64: 8x8 digits."""
    c, h, w = request.shape
    base = chain(
        conv1=nn.Conv2d(c, 16, 3, padding=1),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(16, 32, 3, padding=1),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(32 * (h // 4) * (w // 4), 64),
        relu3=nn.ReLU(),
    )
    return Backbone(base, nn.Linear(64, request.classes), features=64, kind=request.name)


def make_convnet2(request: Request) -> Backbone:
    """Two 5x5 convolutions of 32 and 64 channels and a hidden layer of 50, Fed3+2p's filter."""
    take_no_variants(request)
    c, h, w = take_image(request, 16)
    flat = 64 * shrink(h, (5, 2), (5, 2)) * shrink(w, (5, 2), (5, 2))
    base = chain(
        conv1=nn.Conv2d(c, 32, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, 50),
        relu3=nn.ReLU(),
    )
    return Backbone(base, nn.Linear(50, request.classes), features=50, kind=request.name)


def make_convnet3(request: Request) -> Backbone:
    """Three 3x3 convolutions of 32, 64 and 64 channels, pooled after the first two, and a hidden layer of 64."""
    take_no_variants(request)
    c, h, w = take_image(request, 18)
    flat = 64 * shrink(h, (3, 2), (3, 2), (3, 1)) * shrink(w, (3, 2), (3, 2), (3, 1))
    base = chain(
        conv1=nn.Conv2d(c, 32, 3),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        conv3=nn.Conv2d(64, 64, 3),
        relu3=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, 64),
        relu4=nn.ReLU(),
    )
    return Backbone(base, nn.Linear(64, request.classes), features=64, kind=request.name)


def make_pflcnn(request: Request) -> Backbone:
    """Two 3x3 convolutions of 32 and 64 channels, one pooling, a hidden layer of 128.

    pfl-research's ``simple_cnn`` has dropout after the pooling (0.25) and after the hidden layer (0.5) and Xavier's
    first values; here there is no dropout, and first values are PyTorch's defaults.
    """
    take_no_variants(request)
    c, h, w = take_image(request, 6)
    base = chain(
        conv1=nn.Conv2d(c, 32, 3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        pool1=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * shrink(h, (3, 1), (3, 2)) * shrink(w, (3, 1), (3, 2)), 128),
        relu3=nn.ReLU(),
    )
    return Backbone(base, nn.Linear(128, request.classes), features=128, kind=request.name)
