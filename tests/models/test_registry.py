"""Architectures are found by looking into their folder, each with its learning rate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fedtailor.core.errors import UserError
from fedtailor.models import (
    Backbone,
    architectures,
    build,
    catalogue,
    find_learning_rate,
)
from fedtailor.models.registry import find_architectures

NEW_FILE = '''
"""A network of one's own."""

from torch import nn

from fedtailor.models.architecture import Architecture, add_linear_head
from fedtailor.models.layers import chain


def build_tiny(request):
    base = chain(flatten=nn.Flatten(), fc1=nn.Linear(64, 8), relu1=nn.ReLU())
    return add_linear_head(base, 8, request)


ARCHITECTURES = {
    "%s": Architecture(
        build=build_tiny,
        learning_rate=0.25,
        layers="FC 8",
        source="nowhere",
        shape=(1, 8, 8),
        classes=10,
    ),
}
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A second place that counts as the folder of architectures."""
    monkeypatch.setattr(
        architectures, "__path__", [*architectures.__path__, str(tmp_path)]
    )
    return tmp_path


def test_a_new_file_in_the_folder_is_found_with_its_learning_rate(folder: Path) -> None:
    (folder / "tiny_file.py").write_text(NEW_FILE % "tiny")
    network = build("tiny", (1, 8, 8), 10)
    assert network.kind == "tiny"
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert find_learning_rate(network) == 0.25
    assert "tiny" in {entry.name for entry in catalogue()}


def test_it_is_gone_with_its_file() -> None:
    assert "tiny" not in find_architectures()
    with pytest.raises(UserError, match="no model 'tiny'"):
        build("tiny", (1, 8, 8), 10)


def test_a_name_cannot_be_given_twice(folder: Path) -> None:
    (folder / "other_cnn.py").write_text(NEW_FILE % "cnn")
    with pytest.raises(ValueError, match="name a network 'cnn'"):
        find_architectures()


RATES = {
    "cnn": 0.005,
    "convnet2": 0.01,
    "convnet3": 0.001,
    "pflcnn": 0.1,
    "lenet5": 0.01,
    "lenet_mgda": 0.005,
    "resnet18": 0.1,
    "resnet34": 0.01,
    "resnet32": 0.01,
    "fasttext": 0.1,
    "har_cnn": 0.01,
    "mlp": 0.05,
    "amazon_mlp": 0.005,
    "linear": 0.05,
}


def test_learning_rates_are_the_papers() -> None:
    found = find_architectures()
    assert set(found) == set(RATES)
    for name, a in found.items():
        with torch.device("meta"):
            network = build(name, a.shape, a.classes, vocabulary=a.vocabulary)
        assert find_learning_rate(network) == RATES[name], name


def test_the_small_cnn_and_own_networks_have_rates_of_their_own() -> None:
    assert find_learning_rate(build("cnn", (1, 8, 8), 10)) == 0.05
    own = Backbone(nn.Flatten(), nn.Linear(64, 10), features=64)
    assert find_learning_rate(own) == 0.01
