"""All architectures by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedtailor.core.errors import unknown
from fedtailor.models.backbone import Backbone
from fedtailor.models.cnn import make_cnn, make_convnet2, make_convnet3, make_pflcnn
from fedtailor.models.fasttext import make_fasttext
from fedtailor.models.har_cnn import make_har_cnn
from fedtailor.models.input_checks import Request
from fedtailor.models.layers import NORMS
from fedtailor.models.lenet import make_lenet5, make_lenet_mgda
from fedtailor.models.mlp import make_amazon_mlp, make_linear, make_mlp
from fedtailor.models.resnet import make_resnet18, make_resnet32, make_resnet34


@dataclass(frozen=True)
class Architecture:
    """How to make a network, and the input for which its size is told."""

    make: Callable[[Request], Backbone]
    what: str
    source: str
    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0
    variants: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A line of the catalogue."""

    name: str
    variants: tuple[str, ...]  # what may stand after the name's colon
    what: str
    source: str
    shape: tuple[int, ...]  # the standard input
    classes: int
    parameters: int  # for the standard input


ARCHITECTURES: dict[str, Architecture] = {
    "cnn": Architecture(
        make_cnn,
        "conv 32-64 (5x5), FC 512; below 16x16 conv 16-32 (3x3), FC 64",
        "FedCP (KDD 2023), GPFL (ICCV 2023)",
        (3, 32, 32),
        10,
    ),
    "lenet5": Architecture(
        make_lenet5,
        "conv 6-16 (5x5), FC 120-100",
        "LG-FedAvg (2020), CD2-pFed (CVPR 2022)",
        (3, 32, 32),
        10,
        variants=("84",),
    ),
    "lenet_mgda": Architecture(
        make_lenet_mgda,
        "conv 10-20 (5x5), FC 50",
        "MGDA (NeurIPS 2018), pFedC (2023)",
        (1, 28, 28),
        10,
    ),
    "convnet2": Architecture(
        make_convnet2, "conv 32-64 (5x5), FC 50", "FedRoD (ICLR 2022), Fed3+2p", (1, 28, 28), 10
    ),
    "convnet3": Architecture(
        make_convnet3, "conv 32-64-64 (3x3), FC 64", "FedRoD (ICLR 2022), Fed3+2p", (3, 32, 32), 10
    ),
    "pflcnn": Architecture(
        make_pflcnn,
        "conv 32-64 (3x3), FC 128, no dropout",
        "pfl-research (NeurIPS 2024)",
        (3, 32, 32),
        10,
    ),
    "resnet18": Architecture(
        make_resnet18,
        "ResNet-18; 7x7 stem with pooling or 3x3 stem; optional bottleneck",
        "He et al. (CVPR 2016), FedCP, GPFL, pFedC",
        (3, 64, 64),
        200,
        variants=("imagenet", "cifar", "cifar,50"),
    ),
    "resnet34": Architecture(
        make_resnet34,
        "ResNet-34; 7x7 stem with pooling or 3x3 stem; optional bottleneck",
        "He et al. (CVPR 2016), CD2-pFed",
        (3, 224, 224),
        100,
        variants=("imagenet", "cifar", "cifar,50"),
    ),
    "resnet32": Architecture(
        make_resnet32,
        "ResNet-32 (6n+2), widths 16-32-64, zero-padded shortcuts",
        "He et al. (CVPR 2016), CD2-pFed",
        (3, 32, 32),
        9,
    ),
    "fasttext": Architecture(
        make_fasttext,
        "mean of word vectors of 32, FC 32",
        "FedCP, GPFL",
        (200,),
        4,
        vocabulary=98635,
    ),
    "har_cnn": Architecture(
        make_har_cnn, "conv 32-64 (9 samples), head of FC 1024-512", "GPFL (ICCV 2023)", (9, 128), 6
    ),
    "amazon_mlp": Architecture(make_amazon_mlp, "FC 1000-500-100", "GPFL (ICCV 2023)", (5000,), 2),
    "mlp": Architecture(
        make_mlp, "FC 128, or of the widths given", "", (1, 28, 28), 10, variants=("200,100",)
    ),
    "linear": Architecture(make_linear, "one linear layer", "MOCHA, FedEM, pFedC", (3, 32, 32), 10),
}


def build(
    spec: str, shape: tuple[int, ...], classes: int, *, vocabulary: int = 0, norm: str = "batch"
) -> Backbone:
    """The network ``spec``, a name with variants after a colon (``lenet5:84``, ``resnet18:cifar,50``), for this input.

    ``norm``: "batch" or "group", what stands where an architecture has BatchNorm. The values of its parameters are no
    run's: those come from ``fresh``.
    """
    name, *variants = re.split("[:,]", spec.strip())
    if name not in ARCHITECTURES:
        raise unknown("model", name, ARCHITECTURES)
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    request = Request(name, tuple(variants), tuple(shape), classes, vocabulary, norm)
    with torch.random.fork_rng(
        devices=[]
    ):  # a caller's own random numbers go on as if nothing had been built
        torch.default_generator.manual_seed(0)
        return ARCHITECTURES[name].make(request)


def catalogue() -> list[Entry]:
    """All architectures, with the number of parameters for the standard input."""
    entries = []
    for name, a in ARCHITECTURES.items():
        net = build(name, a.shape, a.classes, vocabulary=a.vocabulary)
        parameters = sum(p.numel() for p in net.parameters())
        entries.append(Entry(name, a.variants, a.what, a.source, a.shape, a.classes, parameters))
    return entries
