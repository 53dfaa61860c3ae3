"""Three ways to combine the predictions of several models, by hand."""

from __future__ import annotations

import pytest
import torch

from fedtailor.evaluation.ensemble import combine


def test_three_ways_to_combine():
    """In sample 0 two models lean to class 1 and one is sure of 0; in 1 and 2 it is the reverse."""
    models = [
        [[0.2, 0.8], [0.01, 0.99], [0.01, 0.99]],
        [[0.2, 0.8], [0.6, 0.4], [0.6, 0.4]],
        [[0.999, 0.001], [0.6, 0.4], [0.6, 0.4]],
    ]
    logs = [torch.tensor(model).log() for model in models]
    assert combine(logs, torch.zeros(3, dtype=torch.int64)) == {
        "accuracy": pytest.approx(1 / 3),
        "logmean": pytest.approx(1 / 3),
        "probmean": 0.0,
        "vote": pytest.approx(2 / 3),
        "single": pytest.approx((0 + 2 + 3) / 9),
        "n": 3,
    }


def test_nothing_to_combine():
    assert combine([], torch.zeros(3)) == {"accuracy": None, "n": 3}
    assert combine([torch.zeros(0, 2)], torch.zeros(0)) == {"accuracy": None, "n": 0}
