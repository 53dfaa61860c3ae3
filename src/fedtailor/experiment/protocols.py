"""The papers' protocols: options that an experiment takes from a paper unless they are given.

Who has which data (``partition``, ``clients``), how long a run is (``rounds``) and a method's own
constants differ from table to table of one paper, so no protocol sets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedtailor.core.errors import unknown

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Protocol:
    """Options of all of a paper's experiments, and further ones by data set."""

    source: str
    options: Values
    by_data: Mapping[str, Values] = field(default_factory=dict)

    def options_for(self, data: str) -> dict[str, Any]:
        """What the paper says for a data set, which may be written with its variant."""
        name, _, _ = data.partition(":")
        return {**self.options, **self.by_data.get(name, {})}


# PyTorch's loaders keep the last, short batch; PFLlib's drop it.
PROTOCOLS = {
    "pfllib": Protocol(
        source="FedCP and GPFL, Setup and Implementation Details; the library PFLlib",
        options={
            "split": "merged:0.75",
            "validation": 0.0,
            "stratify": False,
            "epochs": 1,
            "batch": 10,
            "batching": "drop",
            "momentum": 0.0,
            "weight_decay": 0.0,
            "bn": "local",  # parameters travel, buffers do not
        },
    ),
    "cd2": Protocol(
        source="CD2-pFed Sec. 4.1, 4.2; no learning rate is given",
        options={
            "split": "official",
            "validation": 0.0,
            "stratify": False,
            "batching": "keep",
            "momentum": 0.9,
            "nesterov": True,
            "weight_decay": 5e-4,
            "bn": "average",  # LG-FedAvg's code, on which the paper builds
        },
        by_data={
            "cifar10": {"model": "lenet5", "epochs": 1, "batch": 128},
            "cifar100": {"model": "resnet34:cifar", "epochs": 4, "batch": 128},
            "flickr_aes": {
                "model": "resnet34",
                "epochs": 4,
                "batch": 4,
                "split": "merged:0.8",
            },
            "histo": {
                "model": "resnet32",
                "epochs": 4,
                "batch": 4,
                "split": "merged:0.8",  # not given: FLICKR-AES's
            },
        },
    ),
    "fed3p2p": Protocol(
        source="Fed3+2p Sec. 5.1; batches of PyTorch's loaders",
        options={
            "split": "official",
            "validation": 0.0,
            "stratify": False,
            "epochs": 5,
            "batch": 40,
            "batching": "keep",
            "momentum": 0.9,
            "weight_decay": 1e-5,
            "lr_decay": 0.99,
        },
        by_data={
            "fashion_mnist": {"model": "convnet2", "lr": 0.01, "participation": "0.2"},
            "cifar10": {"model": "convnet3", "lr": 0.001, "participation": "0.4"},
            "cifar100": {"model": "convnet3", "lr": 0.001, "participation": "0.4"},
        },
    ),
    "pfedc": Protocol(
        source="pFedC, Datasets and Performance Comparison; batches of PyTorch's loaders",
        options={
            "split": "merged:0.75",
            "validation": 0.0,
            "stratify": True,  # "the same data distribution"
            "batching": "keep",
            "momentum": 0.0,
            "weight_decay": 0.0,
        },
        by_data={
            "mnist": {"model": "lenet_mgda", "lr": 0.005, "epochs": 5, "batch": 32},
            "emnist": {"model": "lenet_mgda", "lr": 0.005, "epochs": 5, "batch": 32},
            "cifar10": {
                "model": "resnet18:cifar,50",
                "lr": 0.01,
                "epochs": 10,
                "batch": 16,
            },
            "cifar100": {
                "model": "resnet18:cifar,50",
                "lr": 0.01,
                "epochs": 10,
                "batch": 16,
            },
        },
    ),
}


def find_protocol(name: str) -> Protocol:
    """The protocol of this name."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def add_protocol(values: Values, data: str) -> dict[str, Any]:
    """The given options, and those of the protocol that they name, if any; given ones win."""
    given = {name: value for name, value in values.items() if value is not None}
    name = given.get("protocol")
    if name is None:
        return dict(values)
    wanted = find_protocol(str(name)).options_for(str(given.get("data", data)))
    if "momentum" in given and not float(given["momentum"]):
        wanted.pop("nesterov", None)  # there is none without momentum
    return {**values, **wanted, **given}


def describe_protocol(name: str, chosen: Values) -> str:
    """What a protocol asks for, and what was given instead, in one line."""
    wanted = find_protocol(name).options_for(str(chosen["data"]))
    words = []
    for option, value in wanted.items():
        word = f"{option}={value}"
        if chosen[option] != value:
            word = f"{option}={chosen[option]} (not {value})"
        words.append(word)
    return f"protocol {name}: {', '.join(words)}"
