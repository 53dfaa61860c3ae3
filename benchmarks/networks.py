"""The networks of all contenders in plain PyTorch, with FedTailor's names of parameters."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import Tensor, nn

Shape = tuple[int, ...]


class Mean(nn.Module):
    """The mean over the positions of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """Average over the second axis."""
        return x.mean(1)


def build_network(
    name: str, shape: Shape, classes: int, vocabulary: int = 0
) -> nn.Sequential:
    """``base`` under ``head``, without dropout; all programs load the same first values into it."""
    if name == "pflcnn":
        return build_pflcnn(shape, classes)
    if name == "cnn" and min(shape[-2:]) >= 16:
        return build_cnn(shape, classes)
    if name == "cnn":
        return build_small_cnn(shape, classes)
    if name == "mlp":
        return build_mlp(shape, classes)
    if name == "har_cnn":
        return build_har_cnn(shape, classes)
    if name == "fasttext":
        return build_fasttext(classes, vocabulary)
    raise ValueError(f"there is no network {name}")


def build_pflcnn(shape: Shape, classes: int) -> nn.Sequential:
    """pfl-research's ``simple_cnn`` without its dropout: 1,626,442 parameters on 3 x 32 x 32."""
    channels, height, width = shape
    pixels = ((height - 4) // 2) * ((width - 4) // 2)
    base = chain_layers(
        conv1=nn.Conv2d(channels, 32, 3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        pool1=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * pixels, 128),
        relu3=nn.ReLU(),
    )
    return chain_layers(base=base, head=nn.Linear(128, classes))


def build_cnn(shape: Shape, classes: int) -> nn.Sequential:
    """The 4-layer CNN: 582,026 parameters on 1 x 28 x 28."""
    channels, height, width = shape
    height = ((height - 4) // 2 - 4) // 2
    width = ((width - 4) // 2 - 4) // 2
    base = chain_layers(
        conv1=nn.Conv2d(channels, 32, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * height * width, 512),
        relu3=nn.ReLU(),
    )
    return chain_layers(base=base, head=nn.Linear(512, classes))


def build_small_cnn(shape: Shape, classes: int) -> nn.Sequential:
    """The CNN for images of less than 16 x 16."""
    channels, height, width = shape
    pixels = (height // 4) * (width // 4)
    base = chain_layers(
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
    return chain_layers(base=base, head=nn.Linear(64, classes))


def build_mlp(shape: Shape, classes: int) -> nn.Sequential:
    """One hidden layer of 128."""
    base = chain_layers(
        flatten=nn.Flatten(),
        fc1=nn.Linear(math.prod(shape), 128),
        relu1=nn.ReLU(),
    )
    return chain_layers(base=base, head=nn.Linear(128, classes))


def build_har_cnn(shape: Shape, classes: int) -> nn.Sequential:
    """Two convolutions over time and three linear layers."""
    channels, length = shape
    length = ((length - 8) // 2 - 8) // 2
    base = chain_layers(
        conv1=nn.Conv1d(channels, 32, 9),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool1d(2),
        conv2=nn.Conv1d(32, 64, 9),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool1d(2),
        flatten=nn.Flatten(),
    )
    head = chain_layers(
        fc1=nn.Linear(64 * length, 1024),
        relu1=nn.ReLU(),
        fc2=nn.Linear(1024, 512),
        relu2=nn.ReLU(),
        fc3=nn.Linear(512, classes),
    )
    return chain_layers(base=base, head=head)


def build_fasttext(classes: int, vocabulary: int) -> nn.Sequential:
    """The mean of word vectors, and a linear layer."""
    base = chain_layers(
        embedding=nn.Embedding(vocabulary, 32, padding_idx=0),
        mean=Mean(),
        fc1=nn.Linear(32, 32),
    )
    return chain_layers(base=base, head=nn.Linear(32, classes))


def chain_layers(**layers: nn.Module) -> nn.Sequential:
    """Layers one after another, by name."""
    return nn.Sequential(OrderedDict(layers))
