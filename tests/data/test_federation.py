"""A federation's digest, and inputs as networks take them."""

from __future__ import annotations

from dataclasses import replace

import torch
from data_helpers import make_dataset

from fedtailor.data.federation import features
from fedtailor.data.partition.build import build_federation


def test_the_hash_changes_with_samples_and_labels_alone() -> None:
    federation = build_federation(make_dataset(tests=100), clients=4, split="official")
    assert replace(federation, settings={}, name="else").hash == federation.hash
    train = [*federation.train[1:], federation.train[0]]
    assert replace(federation, train=train).hash != federation.hash
    assert replace(federation, common=None).hash != federation.hash
    assert replace(federation, y=federation.y.flip(0)).hash != federation.hash


def test_bytes_are_scaled_and_other_values_are_not() -> None:
    bytes_ = torch.tensor([0, 51, 255], dtype=torch.uint8)
    assert torch.allclose(features(bytes_), torch.tensor([-1.0, -0.6, 1.0]))
    tokens = torch.tensor([3, 4])
    assert features(tokens) is tokens
    counts = torch.tensor([2.0, 7.0], dtype=torch.float64)
    assert torch.equal(features(counts), torch.tensor([2.0, 7.0]))
