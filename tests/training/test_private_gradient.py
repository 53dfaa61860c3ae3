"""Per-sample clipping equals a loop over samples; what a private client refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.private_client import NotPrivate, PrivateClient
from fedtailor.executors.world import World
from fedtailor.methods.fedavg import FedAvg
from fedtailor.storage.private_state import MemoryStore
from fedtailor.testing.small_world import digits, small
from fedtailor.training.client_data import Batch
from fedtailor.training.optim import Plan
from fedtailor.training.private_gradient import (
    SampleNoise,
    compute_private_gradient,
    sum_clipped_gradients,
)

PLAN = Plan(lr=0.05, batch=10, batching="drop")


def make_runner(noise: SampleNoise) -> ClientRunner:
    """Clients of the small world that train by DP-SGD."""
    federation = digits(sizes=(30, 20, 24))
    world = World(FedAvg(), small(), federation, PLAN, 0, 5)
    return ClientRunner(replace(world, sample_noise=noise), MemoryStore())


def private_client(runner: ClientRunner, k: int = 0) -> PrivateClient:
    client = runner.client(k, 1, Purpose.CALL, 1, 1)
    assert isinstance(client, PrivateClient)
    return client


@pytest.mark.parametrize("clip", [0.1, 1.0, 100.0])
def test_clipping_equals_a_loop_over_samples(clip):
    with torch_settings(torch.float64):
        runner = make_runner(SampleNoise(clip, 0.0, 1))
        c = private_client(runner)
        w = runner.new()
        names = list(w)
        batch = next(iter(c._epoch(Rng.seed(3), 10)))
        ours = sum_clipped_gradients(runner.template, c.loss, w, names, batch, clip)
        expected = {name: torch.zeros_like(x) for name, x in w.items()}
        lengths = []
        for i in range(10):
            one = slice(i, i + 1)
            sample = Batch(batch.x[one], batch.y[one], batch.index[one], batch.stream)
            leaves = {name: x.clone().requires_grad_() for name, x in w.items()}
            loss = c.loss(leaves, sample)
            found = torch.autograd.grad(loss, list(leaves.values()))
            norm = torch.cat([g.flatten() for g in found]).norm()
            lengths.append(float(norm))
            for name, g in zip(names, found, strict=True):
                expected[name] += g * min(1.0, clip / float(norm))
        for name in names:
            assert torch.allclose(ours[name], expected[name], rtol=0, atol=1e-12)
        assert (max(lengths) > clip) == (clip < 100)


def test_the_noise_of_a_step_has_the_promised_variance():
    with torch_settings(torch.float64):
        runner = make_runner(SampleNoise(0.5, 2.0, 1))
        c = private_client(runner)
        w = runner.new()
        arguments = (runner.template, c.loss, w, list(w))
        gaps = []
        for i in range(6):
            batch = next(iter(c._epoch(Rng.seed(3, i), 10)))
            noisy = compute_private_gradient(
                *arguments, batch, SampleNoise(0.5, 2.0, 1)
            )
            exact = compute_private_gradient(
                *arguments, batch, SampleNoise(0.5, 0.0, 1)
            )
            gaps += [(noisy[n] - exact[n]).flatten() for n in w]
        noise = torch.cat(gaps)
        wanted = 2.0 * 0.5 / 10
        # relative standard error of a deviation: 1 / sqrt(2 N)
        error = 4 / (2 * len(noise)) ** 0.5
        assert float(noise.std()) == pytest.approx(wanted, rel=error)
        assert abs(float(noise.mean())) < 4 * wanted / len(noise) ** 0.5


def test_training_equals_steps_on_clipped_gradients():
    with torch_settings(torch.float64):
        runner = make_runner(SampleNoise(0.5, 0.0, 1))
        w = runner.new()
        trained = private_client(runner).train(private_client(runner).loss, w)
        c = private_client(runner)
        expected = dict(w)
        for batch in c._batches_of(1):
            g = compute_private_gradient(
                runner.template,
                c.loss,
                expected,
                list(w),
                batch,
                SampleNoise(0.5, 0, 1),
            )
            expected = {name: x - 0.05 * g[name] for name, x in expected.items()}
        for name, x in trained.items():
            assert torch.allclose(x, expected[name], rtol=0, atol=1e-14)


def test_no_sample_is_twice_in_a_pass():
    runner = make_runner(SampleNoise(1.0, 1.0, 1))
    for k in range(3):
        c = private_client(runner, k)
        seen = torch.cat([batch.index for batch in c._batches_of(1)])
        assert len(seen) == len(seen.unique())


@pytest.mark.parametrize("name", ["data", "val", "x", "y", "counts"])
def test_data_cannot_be_looked_at(name):
    c = private_client(make_runner(SampleNoise(1.0, 1.0, 1)))
    with pytest.raises(NotPrivate, match="looks at the data itself"):
        getattr(c, name)


@pytest.mark.parametrize("name", ["grad", "step", "step_with_aux", "each_batch"])
def test_other_training_is_refused(name):
    c = private_client(make_runner(SampleNoise(1.0, 1.0, 1)))
    with pytest.raises(NotPrivate):
        getattr(c, name)()


def test_more_passes_than_are_counted_are_refused():
    runner = make_runner(SampleNoise(1.0, 1.0, 2))
    c = private_client(runner)
    w = c.train(c.loss, runner.new(), epochs=2)
    with pytest.raises(NotPrivate, match="give --dp-passes 3"):
        c.train(c.loss, w, epochs=1)


def test_evaluation_is_not_noisy():
    runner = make_runner(SampleNoise(1.0, 1.0, 1))
    assert not isinstance(runner.client(0, 1, Purpose.EVALUATE, 1), PrivateClient)
