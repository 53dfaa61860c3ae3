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


def test_models_have_no_say_on_classes_they_do_not_know():
    """Class 0 is known to two models, class 1 to one, class 2 to none.

    The means are -2 and -1.5, then -2 and -2.5. Neither the sum nor the number of those who know
    a class decides: sums are -4 and -1.5, then -4 and -2.5.
    """
    nothing = -torch.inf
    logs = [
        torch.tensor([[-1.0, nothing, nothing], [-1.0, nothing, nothing]]),
        torch.tensor([[-3.0, nothing, nothing], [-3.0, nothing, nothing]]),
        torch.tensor([[nothing, -1.5, nothing], [nothing, -2.5, nothing]]),
    ]
    right = combine(logs, torch.tensor([1, 0]))
    assert right["accuracy"] == right["logmean"] == 1
    # exp(-1) and exp(-3) have the mean 0.21; exp(-1.5) is 0.22 and exp(-2.5) 0.08
    assert right["probmean"] == 1
    assert combine(logs, torch.tensor([2, 2]))["accuracy"] == 0
