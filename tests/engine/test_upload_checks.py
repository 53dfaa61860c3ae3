"""Uploads are looked at together; each is judged by itself."""

import math

import pytest
import torch

from fedtailor.engine.upload_checks import MANY, PIECE, Inspector, _distances
from fedtailor.methods.fedavg import Down, FedAvg, Up


def test_distances_of_small_and_large_tensors_are_those_of_their_difference() -> None:
    torch.manual_seed(0)
    sent = [torch.randn(3, 4), torch.randn(PIECE + 7), torch.randn(()), torch.arange(5)]
    other = [x.clone() for x in sent]
    near = [x + 0.5 if x.is_floating_point() else x + 9 for x in sent]
    found = _distances(
        {4: list(zip(near, sent, strict=True)), 7: list(zip(sent, other, strict=True)), 9: []}
    )
    assert (
        found[4] == pytest.approx(0.5 * math.sqrt(12 + PIECE + 7 + 1))
        and found[7] == 0
        and found[9] == 0
    )


def test_many_clients_that_were_sent_the_same_are_subtracted_in_groups() -> None:
    sent = torch.zeros(PIECE)
    assert MANY // PIECE < 20
    pairs = {k: [(sent + k, sent)] for k in range(20)}
    assert _distances(pairs) == pytest.approx({k: k * math.sqrt(PIECE) for k in range(20)})


def test_one_bad_upload_is_found_among_good_ones() -> None:
    w = {"head.weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)}
    down = Down(w)
    good, bad = Up({k: x + 1 for k, x in w.items()}), Up({k: x + 1 for k, x in w.items()})
    bad.w["head.bias"][0] = math.nan
    short = Up({"head.weight": torch.ones(2, 3)})
    slim = Up({"head.weight": torch.ones(2, 2), "head.bias": torch.ones(2)})
    ups = {0: good, 1: bad, 2: short, 3: slim, 4: good}
    found = Inspector(FedAvg(), 1).look(ups, dict.fromkeys(ups, down))
    assert found[0].fault == found[4].fault == "" and found[0].distance == pytest.approx(
        math.sqrt(8)
    )
    assert "NaN" in found[1].fault
    assert (
        "head.bias is missing" in found[2].fault and "of shape (2, 2), not (2, 3)" in found[3].fault
    )
    assert found[0].bytes == 4 * 8
