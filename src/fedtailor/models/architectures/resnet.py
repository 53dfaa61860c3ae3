"""Residual networks of basic blocks.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016. First values are torchvision's,
with either normalisation: convolutions normal with variance 2 / fan-out, normalisations 1 and 0,
linear layers PyTorch's default.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.errors import UserError, unknown
from fedtailor.models.architecture import Architecture
from fedtailor.models.backbone import Backbone
from fedtailor.models.initial_values import use_he_values
from fedtailor.models.input_checks import (
    Request,
    parse_width,
    refuse_variants,
    require_image,
)
from fedtailor.models.layers import chain, make_norm

STEMS = ("imagenet", "cifar")


class PadShortcut(nn.Module):
    """Option A: every ``stride``-th pixel, and new channels that are zero.

    Half of the new channels stand before the old ones and half after: what was in the upper half of
    the channels is in the upper half again.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        added = outputs - inputs
        self.stride = stride
        self.before = added // 2
        self.after = added - self.before

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)"""
        pixels = x[:, :, :: self.stride, :: self.stride]
        return F.pad(pixels, (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input takes a shortcut."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, norm: str, *, pad: bool
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = make_norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = make_norm(norm, outputs)
        self.shortcut: nn.Module
        if stride == 1 and inputs == outputs:
            self.shortcut = nn.Identity()
        elif pad:
            self.shortcut = PadShortcut(inputs, outputs, stride)
        else:  # option B
            self.shortcut = chain(
                conv=nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                bn=make_norm(norm, outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the residual plus the shortcut."""
        h = torch.relu(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(h))
        return torch.relu(residual + self.shortcut(x))


def build_resnet18(request: Request) -> Backbone:
    """Widths 64, 128, 256, 512 with 2 blocks each."""
    return _build_wide_resnet(request, [(64, 2), (128, 2), (256, 2), (512, 2)])


def build_resnet34(request: Request) -> Backbone:
    """Widths 64, 128, 256, 512 with 3, 4, 6 and 3 blocks."""
    return _build_wide_resnet(request, [(64, 3), (128, 4), (256, 6), (512, 3)])


def build_resnet32(request: Request) -> Backbone:
    """Widths 16, 32, 64 with 5 blocks each (6n + 2 layers, n = 5), shortcuts without parameters."""
    refuse_variants(request)
    channels, _, _ = require_image(request, 8)
    stem = _make_cifar_stem(channels, 16, request.norm)
    base = chain(stem=stem)
    features = _add_blocks(base, [(16, 5), (32, 5), (64, 5)], request.norm, pad=True)
    return _finish_resnet(request, base, features)


def _build_wide_resnet(request: Request, groups: list[tuple[int, int]]) -> Backbone:
    """A ResNet with either stem and, where a width is given, a bottleneck under the head."""
    stem_name, bottleneck = _parse_variants(request)
    if stem_name == "imagenet":
        channels, _, _ = require_image(request, 16)
        stem = _make_imagenet_stem(channels, 64, request.norm)
    else:
        channels, _, _ = require_image(request, 8)
        stem = _make_cifar_stem(channels, 64, request.norm)
    base = chain(stem=stem)
    features = _add_blocks(base, groups, request.norm, pad=False)
    return _finish_resnet(request, base, features, bottleneck)


def _parse_variants(request: Request) -> tuple[str, int]:
    """The stem's name and the bottleneck's width (0: none)."""
    stem = "imagenet"
    bottleneck = 0
    rest = list(request.variants)
    if rest and not rest[0].isdigit():
        stem = rest.pop(0)
        if stem not in STEMS:
            raise unknown(f"variant of {request.name}", stem, STEMS)
    if rest:
        bottleneck = parse_width(request, rest.pop(0))
    if rest:
        raise UserError(
            f"model '{request.name}' has a stem and a bottleneck, as in {request.name}:cifar,50;"
            f" '{rest[0]}' is too much"
        )
    return stem, bottleneck


def _make_imagenet_stem(channels: int, width: int, norm: str) -> nn.Sequential:
    """A 7x7 convolution and a pooling: a quarter of the height and of the width is left."""
    return chain(
        conv1=nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
        bn1=make_norm(norm, width),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(3, stride=2, padding=1),
    )


def _make_cifar_stem(channels: int, width: int, norm: str) -> nn.Sequential:
    """A 3x3 convolution: all pixels are left."""
    return chain(
        conv1=nn.Conv2d(channels, width, 3, padding=1, bias=False),
        bn1=make_norm(norm, width),
        relu1=nn.ReLU(),
    )


def _add_blocks(
    base: nn.Sequential, groups: list[tuple[int, int]], norm: str, *, pad: bool
) -> int:
    """Append groups of (width, number of blocks) to the stem; returns the last width.

    Every group but the first begins by halving the height and the width.
    """
    inputs = groups[0][0]
    for width, number in groups:
        for _ in range(number):
            stride = 1 if width == inputs else 2
            block = BasicBlock(inputs, width, stride, norm, pad=pad)
            base.add_module(f"block{len(base)}", block)
            inputs = width
    return inputs


def _finish_resnet(
    request: Request, base: nn.Sequential, features: int, bottleneck: int = 0
) -> Backbone:
    """Append the mean over the pixels and the bottleneck, and put the head on top."""
    use_he_values(base)
    stages = [f"base.{name}" for name, _ in base.named_children()]
    base.add_module("pool", nn.AdaptiveAvgPool2d(1))
    base.add_module("flatten", nn.Flatten())
    if bottleneck:
        base.add_module("fc1", nn.Linear(features, bottleneck))
        base.add_module("relu1", nn.ReLU())
        stages.append("base.fc1")
        features = bottleneck
    head = nn.Linear(features, request.classes)
    return Backbone(
        base, head, features=features, stages=(*stages, "head"), kind=request.name
    )


ARCHITECTURES = {
    "resnet18": Architecture(
        build=build_resnet18,
        learning_rate=0.1,  # FedCP, GPFL
        layers="ResNet-18; 7x7 stem with pooling or 3x3 stem; optional bottleneck",
        source="He et al. (CVPR 2016), FedCP, GPFL, pFedC",
        shape=(3, 64, 64),
        classes=200,
        variants=("imagenet", "cifar", "cifar,50"),
    ),
    "resnet34": Architecture(
        build=build_resnet34,
        learning_rate=0.01,  # FedPer; CD2-pFed gives none
        layers="ResNet-34; 7x7 stem with pooling or 3x3 stem; optional bottleneck",
        source="He et al. (CVPR 2016), CD2-pFed",
        shape=(3, 224, 224),
        classes=100,
        variants=("imagenet", "cifar", "cifar,50"),
    ),
    "resnet32": Architecture(
        build=build_resnet32,
        learning_rate=0.01,  # FedPer; CD2-pFed gives none
        layers="ResNet-32 (6n+2), widths 16-32-64, zero-padded shortcuts",
        source="He et al. (CVPR 2016), CD2-pFed",
        shape=(3, 32, 32),
        classes=9,
    ),
}
