"""The networks of all contenders, once, in plain PyTorch; parameters have the names FedTailor gives them."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import Tensor, nn


class Mean(nn.Module):
    """The mean over the positions of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def chain(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def build(name: str, shape: tuple[int, ...], classes: int, vocabulary: int = 0) -> nn.Sequential:
    """``base`` under ``head``; no dropout, first values do not matter: every program is given the same ones."""
    base, head = {
        "pflcnn": _pflcnn,
        "cnn": _cnn if min(shape[-2:]) >= 16 else _small_cnn,
        "mlp": _mlp,
        "har_cnn": _har_cnn,
        "fasttext": _fasttext,
    }[name](tuple(shape), classes, vocabulary)
    return chain(base=base, head=head)


def _pflcnn(shape: tuple[int, ...], classes: int, _: int) -> tuple[nn.Module, nn.Module]:
    """pfl-research's ``simple_cnn`` without its dropout: 1,626,442 parameters on 3 x 32 x 32."""
    channels, height, width = shape
    flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    base = chain(
        conv1=nn.Conv2d(channels, 32, 3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        pool1=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, 128),
        relu3=nn.ReLU(),
    )
    return base, nn.Linear(128, classes)


def _two_convolutions(
    channels: int, kernel: int, pad: int, widths: tuple[int, int, int], flat: int
) -> nn.Sequential:
    first, second, hidden = widths
    return chain(
        conv1=nn.Conv2d(channels, first, kernel, padding=pad),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(first, second, kernel, padding=pad),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, hidden),
        relu3=nn.ReLU(),
    )


def _cnn(shape: tuple[int, ...], classes: int, _: int) -> tuple[nn.Module, nn.Module]:
    """The 4-layer CNN: 582,026 parameters on 1 x 28 x 28."""
    channels, height, width = shape
    flat = 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return _two_convolutions(channels, 5, 0, (32, 64, 512), flat), nn.Linear(512, classes)


def _small_cnn(shape: tuple[int, ...], classes: int, _: int) -> tuple[nn.Module, nn.Module]:
    channels, height, width = shape
    flat = 32 * (height // 4) * (width // 4)
    return _two_convolutions(channels, 3, 1, (16, 32, 64), flat), nn.Linear(64, classes)


def _mlp(shape: tuple[int, ...], classes: int, _: int) -> tuple[nn.Module, nn.Module]:
    base = chain(flatten=nn.Flatten(), fc1=nn.Linear(math.prod(shape), 128), relu1=nn.ReLU())
    return base, nn.Linear(128, classes)


def _har_cnn(shape: tuple[int, ...], classes: int, _: int) -> tuple[nn.Module, nn.Module]:
    channels, length = shape
    base = chain(
        conv1=nn.Conv1d(channels, 32, 9),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool1d(2),
        conv2=nn.Conv1d(32, 64, 9),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool1d(2),
        flatten=nn.Flatten(),
    )
    flat = 64 * (((length - 8) // 2 - 8) // 2)
    head = chain(
        fc1=nn.Linear(flat, 1024),
        relu1=nn.ReLU(),
        fc2=nn.Linear(1024, 512),
        relu2=nn.ReLU(),
        fc3=nn.Linear(512, classes),
    )
    return base, head


def _fasttext(_: tuple[int, ...], classes: int, vocabulary: int) -> tuple[nn.Module, nn.Module]:
    base = chain(
        embedding=nn.Embedding(vocabulary, 32, padding_idx=0), mean=Mean(), fc1=nn.Linear(32, 32)
    )
    return base, nn.Linear(32, classes)
