"""FedAMP: clients attend to those like them, and alone they are Local."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, average
from fedtailor.methods.fedamp import Down, FedAMP
from fedtailor.methods.local import Local
from fedtailor.testing.small_world import run_small
from fedtailor.training.optim import Plan
from helpers import equal, gap


def points(*rows: list[float]) -> list[Params]:
    return [{"w": torch.tensor(row[:1]), "v": torch.tensor(row[1:])} for row in rows]


@pytest.mark.parametrize("start", ["cloud", "own"])
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_without_pull_and_attention_it_is_local(start: str, norm: str) -> None:
    alone = FedAMP(lam=0.0, sigma=1e-6, start=start)  # type: ignore[arg-type]
    amp, local = run_small(alone, norm=norm), run_small(Local(), norm=norm)
    assert all(equal(amp.keep(k).w, local.keep(k).w) for k in range(6))
    assert torch.equal(amp.server.xi, torch.eye(6, dtype=torch.float64))


def test_attention_by_hand() -> None:
    models = points([0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0])
    xi = FedAMP(alpha=0.2, sigma=2.0).attend(models)
    # squared distances 01, 02, 12
    a, b, c = (0.2 / 2 * math.exp(-d / 2) for d in (1, 4, 5))
    by_hand = [[1 - a - b, a, b], [a, 1 - a - c, c], [b, c, 1 - b - c]]
    assert torch.allclose(xi, torch.tensor(by_hand, dtype=torch.float64), atol=1e-12)


def test_shares_add_up_to_the_whole_and_the_nearer_have_more() -> None:
    models = points([0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.3, 0.0], [9.0, 9.0, 9.0])
    xi = FedAMP(alpha=1000.0, sigma=0.1).attend(models)
    assert torch.allclose(xi.sum(1), torch.ones(4, dtype=torch.float64)) and bool(
        (xi >= 0).all()
    )
    assert float(xi[0, 1]) > float(xi[0, 2]) > float(xi[0, 3]) and float(xi[3, 3]) == 1


def test_attention_never_grows_with_distance_and_has_no_jumps() -> None:
    """Also where the others' shares begin to exceed the whole: at a squared distance of 0.1 ln
    10,000 = 0.92.
    """
    shares = [
        float(FedAMP().attend(points([0.0, 0.0], [0.02 * i, 0.0]))[0, 1])
        for i in range(80)
    ]
    steps = [a - b for a, b in pairwise(shares)]
    assert (
        shares[0] == 1 and shares[-1] < 1e-4 and min(steps) >= 0 and max(steps) < 0.35
    )


def test_relative_distances_do_not_depend_on_the_size_of_the_network() -> None:
    near = points([0.0, 0.0], [1.0, 0.0], [0.0, 3.0])
    far = [{k: 1000 * v for k, v in w.items()} for w in near]
    method = FedAMP(relative=True, alpha=0.2, sigma=2.0)
    assert torch.allclose(method.attend(near), method.attend(far))
    # squared distances 1, 9, 10: the median is 9
    expected = 0.2 / 2 * math.exp(-1 / 9 / 2)
    assert float(method.attend(far)[0, 1]) == pytest.approx(expected)
    assert torch.equal(
        FedAMP(alpha=0.2, sigma=2.0).attend(far), torch.eye(3, dtype=torch.float64)
    )


def test_a_run_in_which_nobody_attends_to_others_says_so() -> None:
    alone, together = run_small(FedAMP(sigma=1e-6)), run_small(FedAMP(relative=True))
    assert "nobody" in alone.runner.method.closing_remarks(alone.server)[0]
    assert together.runner.method.closing_remarks(together.server) == []


def test_cosine_attention_by_hand() -> None:
    models = points([1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 3.0, 0.0])
    xi = FedAMP(attention="cosine", sigma=2.0, own=0.4).attend(models)
    near, far = math.exp(2.0), 1.0
    row = [0.4, 0.6 * near / (near + far), 0.6 * far / (near + far)]
    assert torch.allclose(xi[0], torch.tensor(row, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(
        FedAMP(attention="cosine").attend(models).diagonal(),
        torch.full((3,), 1 / 3).double(),
    )


def test_a_single_client_attends_to_itself() -> None:
    for attention in ("distance", "cosine"):
        xi = FedAMP(attention=attention).attend(points([1.0, 2.0, 3.0]))  # type: ignore[arg-type]
        assert xi.tolist() == [[1.0]]


def test_the_cloud_model_is_the_mix_and_newcomers_get_the_first_model() -> None:
    played = run_small(FedAMP(alpha=0.05, sigma=1.0), rounds=2, share=0.5)
    method, server = played.runner.method, played.server
    known = sorted(server.w)
    assert len(known) >= 3 and 99 not in known
    weights = method.attend([server.w[k] for k in known])
    mixed = average([server.w[k] for k in known], weights[0])
    assert gap(method.send(server, known[0]).u, mixed) < 1e-6
    assert equal(method.send(server, 99).u, played.runner.new(0))


def test_the_pull_is_lambda_over_alpha() -> None:
    lam, alpha, lr = 2.0, 4.0, 0.05
    played = run_small(FedAMP(), rounds=1, dtype=torch.float64, plan=Plan(lr=lr))
    keep = played.keep(0)
    with torch_settings(torch.float64):
        u, c = played.runner.new(0), played.runner.client(0, 2, Purpose.CALL, 2, 1)

        def step(w: Params, batch: object) -> Params:
            g = c.grad(c.loss, w, batch)  # type: ignore[arg-type]
            return {k: v - lr * (g[k] + lam / alpha * (v - u[k])) for k, v in w.items()}

        own = c.each_batch(step, keep.w)
        method = FedAMP(lam=lam, alpha=alpha, start="own")
        up, _ = method.local(
            played.runner.client(0, 2, Purpose.CALL, 2, 1), Down(u), keep
        )
    assert gap(up.w, own) < 1e-12


def test_statistics_of_batchnorm_draw_no_attention() -> None:
    def shifted(by: float) -> Params:
        w: dict[str, Tensor] = play_first()
        return {k: v + by if "running" in k else v for k, v in w.items()}

    xi = FedAMP(alpha=0.01, sigma=1.0).attend([shifted(0.0), shifted(5.0)])
    assert torch.allclose(
        xi, torch.tensor([[0.99, 0.01], [0.01, 0.99]], dtype=torch.float64)
    )


def play_first() -> Params:
    return run_small(FedAMP(), rounds=1, norm="batch").runner.new(0)


def test_warnings() -> None:
    assert (
        FedAMP(lam=0.0, start="own").warnings()
        and not FedAMP().warnings()
        and not FedAMP(lam=0.0).warnings()
    )
