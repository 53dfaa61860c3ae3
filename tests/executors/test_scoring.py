"""Scores: every piece of the data is predicted with randomness of its own."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedtailor.core.torch_settings import torch_settings
from fedtailor.executors.scoring import Part, predict_in_pieces
from fedtailor.methods.fedcp import FedCP
from fedtailor.testing.small_world import digits, run_small
from fedtailor.training.client_data import CHUNK


def test_pieces_of_the_data_have_noise_of_their_own() -> None:
    run = run_small(FedCP(gate="gumbel_always"), rounds=1)
    c, down, keep = run.next_visit(0)
    w = run.method.personal(c, down, keep)
    predict = predict_in_pieces(run.method, c, w, Part.TEST)
    first = predict(c.x)
    second = predict(c.x)
    assert not torch.allclose(first, second, atol=1e-3)
    again = predict_in_pieces(run.method, c, w, Part.TEST)
    assert torch.equal(again(c.x), first)
    assert torch.equal(again(c.x), second)
    others = predict_in_pieces(run.method, c, w, Part.VALIDATION)
    assert not torch.allclose(others(c.x), first, atol=1e-3)


def test_a_method_without_noise_predicts_alike_everywhere() -> None:
    run = run_small(FedCP(), rounds=1)
    c, down, keep = run.next_visit(0)
    w = run.method.personal(c, down, keep)
    predict = predict_in_pieces(run.method, c, w, Part.TEST)
    assert torch.equal(predict(c.x), predict(c.x))


def test_noise_of_pieces_is_the_same_under_vmap() -> None:
    """Two clients, one of which has test examples for two pieces and the other for one."""
    federation = digits((20, 20))
    many = torch.arange(CHUNK + 100)
    federation = replace(federation, test=[many, many[:50]])
    found = []
    for executor in ("sequential", "vmap"):
        with torch_settings(torch.float64):
            run = run_small(
                FedCP(gate="gumbel_always"),
                rounds=1,
                federation=federation,
                dtype=torch.float64,
                executor=executor,
            )
            found.append(run.scores())
        assert run.executor.notices() == []
    for k in range(2):
        one, other = found[0][k], found[1][k]
        torch.testing.assert_close(
            one.diagnostics["test/PIR"], other.diagnostics["test/PIR"]
        )
        torch.testing.assert_close(one.test.loss, other.test.loss)
        assert int(one.test.n.sum()) == len(federation.test[k])
