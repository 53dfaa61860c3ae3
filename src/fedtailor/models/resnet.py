"""Residual networks of basic blocks (He et al., Deep Residual Learning for Image Recognition, CVPR 2016)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.errors import UserError, unknown
from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import Request, take_image, take_no_variants, take_width
from fedtailor.models.layers import chain, normalise

STEMS = ("imagenet", "cifar")


class PadShortcut(nn.Module):
    """Option A: every ``stride``-th pixel, and new channels that are zero, one half before and one half after the old.

    The middle place keeps halves together: what was in the upper half of the channels is in the upper half again.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.before = stride, (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)"""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input takes a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str, *, pad: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = normalise(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = normalise(norm, outputs)
        self.shortcut: nn.Module
        if stride == 1 and inputs == outputs:
            self.shortcut = nn.Identity()
        elif pad:
            self.shortcut = PadShortcut(inputs, outputs, stride)
        else:  # option B
            self.shortcut = chain(
                conv=nn.Conv2d(inputs, outputs, 1, stride, bias=False), bn=normalise(norm, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the residual plus the shortcut."""
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


def make_resnet18(request: Request) -> Backbone:
    """Widths 64, 128, 256, 512 with 2 blocks each."""
    return _make_wide_resnet(request, (2, 2, 2, 2))


def make_resnet34(request: Request) -> Backbone:
    """Widths 64, 128, 256, 512 with 3, 4, 6 and 3 blocks."""
    return _make_wide_resnet(request, (3, 4, 6, 3))


def make_resnet32(request: Request) -> Backbone:
    """Widths 16, 32, 64 with 5 blocks each (6n + 2 layers, n = 5), shortcuts without parameters."""
    take_no_variants(request)
    c, _, _ = take_image(request, 8)
    stem = chain(
        conv1=nn.Conv2d(c, 16, 3, padding=1, bias=False),
        bn1=normalise(request.norm, 16),
        relu1=nn.ReLU(),
    )
    return _join(request, stem, zip((16, 32, 64), (5, 5, 5), strict=True), pad=True)


def _make_wide_resnet(request: Request, depths: tuple[int, ...]) -> Backbone:
    """A ResNet with the ImageNet or the CIFAR stem and, where a width is given, a bottleneck under the head."""
    stem_name, bottleneck = _read_variants(request)
    c, _, _ = take_image(request, 16 if stem_name == "imagenet" else 8)
    if stem_name == "imagenet":
        stem = chain(
            conv1=nn.Conv2d(c, 64, 7, stride=2, padding=3, bias=False),
            bn1=normalise(request.norm, 64),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(3, stride=2, padding=1),
        )
    else:
        stem = chain(
            conv1=nn.Conv2d(c, 64, 3, padding=1, bias=False),
            bn1=normalise(request.norm, 64),
            relu1=nn.ReLU(),
        )
    return _join(
        request,
        stem,
        zip((64, 128, 256, 512), depths, strict=True),
        pad=False,
        bottleneck=bottleneck,
    )


def _read_variants(request: Request) -> tuple[str, int]:
    """The stem's name and the bottleneck's width (0: none)."""
    stem, bottleneck = STEMS[0], 0
    rest = list(request.variants)
    if rest and not rest[0].isdigit():
        stem = rest.pop(0)
        if stem not in STEMS:
            raise unknown(f"variant of {request.name}", stem, STEMS)
    if rest:
        bottleneck = take_width(request, rest.pop(0))
    if rest:
        form = f"{request.name}:cifar,50"
        raise UserError(
            f"model '{request.name}' has a stem and a bottleneck, as in {form}; '{rest[0]}' is too much"
        )
    return stem, bottleneck


def _join(
    request: Request,
    stem: nn.Module,
    widths: Iterable[tuple[int, int]],
    *,
    pad: bool,
    bottleneck: int = 0,
) -> Backbone:
    """Stem, blocks, mean over the pixels, bottleneck and head."""
    base = chain(stem=stem)
    inputs = 0
    for width, depth in widths:
        for i in range(depth):
            stride = 2 if inputs and i == 0 else 1
            block = BasicBlock(inputs or width, width, stride, request.norm, pad=pad)
            base.add_module(f"block{len(base)}", block)
            inputs = width
    stages = [f"base.{name}" for name, _ in base.named_children()]
    base.add_module("pool", nn.AdaptiveAvgPool2d(1))
    base.add_module("flatten", nn.Flatten())
    if bottleneck:
        base.add_module("fc1", nn.Linear(inputs, bottleneck))
        base.add_module("relu1", nn.ReLU())
        stages.append("base.fc1")
    features = bottleneck or inputs
    head = nn.Linear(features, request.classes)
    return Backbone(base, head, features=features, stages=(*stages, "head"), kind=request.name)
