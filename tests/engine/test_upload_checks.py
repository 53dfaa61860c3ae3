"""Uploads are checked together; each is judged by itself."""

from __future__ import annotations

import math

import pytest
import torch

from fedtailor.core.rng import Rng
from fedtailor.engine.upload_checks import (
    CACHED,
    TOGETHER,
    UploadChecker,
    measure_distances,
)
from fedtailor.methods.fedavg import Down, FedAvg, Up
from fedtailor.methods.fedper import FedPer


def test_distances_of_small_and_large_tensors_are_those_of_their_difference():
    sent = [
        Rng.seed(0).normal(3, 4),
        Rng.seed(1).normal(CACHED + 7),
        torch.tensor(0.3),
        torch.arange(5),  # not a number that is learned
    ]
    same = [x.clone() for x in sent]
    near = [x + 0.5 if x.is_floating_point() else x + 9 for x in sent]
    pairs = {
        4: list(zip(near, sent, strict=True)),
        7: list(zip(sent, same, strict=True)),
        9: [],
    }
    found = measure_distances(pairs)
    assert found[4] == pytest.approx(0.5 * math.sqrt(12 + CACHED + 7 + 1))
    assert found[7] == 0
    assert found[9] == 0


def test_many_clients_that_were_sent_the_same_are_subtracted_in_groups():
    sent = torch.zeros(CACHED)
    assert TOGETHER // CACHED < 20
    pairs = {k: [(sent + k, sent)] for k in range(20)}
    expected = {k: k * math.sqrt(CACHED) for k in range(20)}
    assert measure_distances(pairs) == pytest.approx(expected)


def make_model(shift: float = 0.0) -> dict[str, torch.Tensor]:
    return {
        "head.weight": torch.zeros(2, 3) + shift,
        "head.bias": torch.zeros(2) + shift,
    }


def test_one_bad_upload_is_found_among_good_ones():
    good = Up(make_model(1))
    bad = Up(make_model(1))
    bad.w["head.bias"][0] = math.nan
    short = Up({"head.weight": torch.ones(2, 3)})
    slim = Up({"head.weight": torch.ones(2, 2), "head.bias": torch.ones(2)})
    more = Up(make_model(1) | {"tail": torch.ones(1)})
    ups = {0: good, 1: bad, 2: short, 3: slim, 4: good, 5: more}
    down = Down(make_model())
    found = UploadChecker(FedAvg(), "local", 1).check(ups, dict.fromkeys(ups, down))
    assert found[0].fault == ""
    assert found[4].fault == ""
    assert found[0].distance == pytest.approx(math.sqrt(8))
    assert found[0].bytes == 4 * 8
    assert found[1].fault == "its upload holds NaN or infinity"
    assert found[2].fault == "its upload's w/head.bias is missing, not (2,)"
    assert found[3].fault == "its upload's w/head.weight is of shape (2, 2), not (2, 3)"
    assert found[5].fault == "its upload's w/tail is of shape (1,)"


def test_what_a_filter_withholds_may_be_missing():
    down = Down(make_model())
    without_bias = Up({"head.weight": torch.ones(2, 3)})
    withheld = frozenset({"head.bias"})
    checker = UploadChecker(FedAvg(), "local", 1, withheld)
    found = checker.check({0: without_bias, 1: Up(make_model(1))}, {0: down, 1: down})
    assert found[0].fault == ""
    assert found[0].distance == pytest.approx(math.sqrt(6))
    assert found[1].fault == ""


def test_nothing_comes_back_from_what_is_given():
    """First values for the private state go down; the upload is empty."""
    checker = UploadChecker(FedPer(), "receive", 0)
    given = make_model()
    assert checker.count_bytes(given) == 4 * 8
    assert checker.check({0: None}, {0: given})[0] == (0, "", 0.0, False)
