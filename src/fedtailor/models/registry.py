"""All architectures by name, collected from the files in ``models/architectures``."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass

import torch

from fedtailor.core.errors import unknown
from fedtailor.models import architectures
from fedtailor.models.architecture import Architecture
from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import Request
from fedtailor.models.layers import NORMS

OWN_NETWORK_RATE = 0.01  # in no paper: learns in some tens of rounds


@dataclass(frozen=True)
class CatalogueEntry:
    """A line of the catalogue."""

    name: str
    variants: tuple[str, ...]  # examples of what may stand after the name's colon
    layers: str
    source: str
    shape: tuple[int, ...]  # the standard input
    classes: int
    parameters: int  # for the standard input


def find_architectures() -> dict[str, Architecture]:
    """The architectures of all files in the folder, by name."""
    found: dict[str, Architecture] = {}
    for file in pkgutil.iter_modules(architectures.__path__):
        module = importlib.import_module(f"{architectures.__name__}.{file.name}")
        for name, architecture in module.ARCHITECTURES.items():
            if name in found:
                raise ValueError(
                    f"two files in models/architectures name a network '{name}'"
                )
            found[name] = architecture
    return found


def build(
    spec: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    vocabulary: int = 0,
    norm: str = "batch",
) -> Backbone:
    """The network ``spec`` for inputs of this shape.

    ``spec`` is a name with variants after a colon (``lenet5:84``, ``resnet18:cifar,50``). ``norm``,
    "batch" or "group", is what stands where an architecture has BatchNorm. The values of the
    parameters are not those of a run, which come from ``fresh``.
    """
    known = find_architectures()
    name, *variants = re.split("[:,]", spec.strip())
    if name not in known:
        raise unknown("model", name, known)
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    request = Request(name, tuple(variants), tuple(shape), classes, vocabulary, norm)
    # the caller's own random numbers go on as if nothing had been built
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return known[name].build(request)


def find_learning_rate(backbone: Backbone) -> float:
    """The default learning rate of a network: its architecture's, or one for own networks."""
    architecture = find_architectures().get(backbone.kind)
    if architecture is None:
        return OWN_NETWORK_RATE
    if callable(architecture.learning_rate):
        return architecture.learning_rate(backbone)
    return architecture.learning_rate


def catalogue() -> list[CatalogueEntry]:
    """All architectures, with the number of parameters for the standard input."""
    return [_describe(name, a) for name, a in find_architectures().items()]


def _describe(name: str, architecture: Architecture) -> CatalogueEntry:
    shape = architecture.shape
    classes = architecture.classes
    network = build(name, shape, classes, vocabulary=architecture.vocabulary)
    return CatalogueEntry(
        name=name,
        variants=architecture.variants,
        layers=architecture.layers,
        source=architecture.source,
        shape=shape,
        classes=classes,
        parameters=sum(p.numel() for p in network.parameters()),
    )
