"""A noisy gradient that no single sample moves far (DP-SGD).

Abadi et al., Deep Learning with Differential Privacy, CCS 2016, Algorithm 1: the
gradient of every sample is shortened to the norm C, and their sum gets Gaussian noise.
By ``torch.func``, so that it also runs under ``vmap``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core.tree import Params
from fedtailor.training.client_data import Batch
from fedtailor.training.in_place import Loss
from fedtailor.training.net import Template

NOISE = 0x4450  # keeps the noise's stream apart from what a loss draws from batch.rng
SMALLEST = 1e-12  # norm, so that a zero gradient does not divide by zero


class SampleNoise(NamedTuple):
    """How the gradients of a client are made private."""

    clip: float  # largest norm of one sample's gradient
    noise: float  # standard deviation of the noise, by ``clip``
    passes: int  # over its data that a client may make in a round


def compute_private_gradient(
    template: Template,
    loss: Loss,
    w: Params,
    names: Sequence[str],
    batch: Batch,
    privacy: SampleNoise,
) -> Params:
    """The sum of the samples' shortened gradients, with noise, by the batch's size."""
    total = sum_clipped_gradients(template, loss, w, names, batch, privacy.clip)
    rng = batch.rng.fold(NOISE)
    many = len(batch.y)
    noisy: Params = {}
    for i, (name, value) in enumerate(total.items()):
        noise = rng.fold(i).normal(*value.shape).to(value.dtype)
        noisy[name] = (value + privacy.noise * privacy.clip * noise) / many
    return noisy


def sum_clipped_gradients(
    template: Template,
    loss: Loss,
    w: Params,
    names: Sequence[str],
    batch: Batch,
    clip: float,
) -> Params:
    """The sum over a batch of every sample's gradient, each at most ``clip`` long.

    A sample's loss is that of a batch of one.
    """
    trained = {name: w[name] for name in names}

    def differentiate(x: Tensor, y: Tensor, index: Tensor) -> Params:
        sample = Batch(x[None], y[None], index[None], batch.stream, batch.step)

        def value(trained: Params) -> Tensor:
            template.begin_step(sample)
            with template.train(()):
                number: Tensor = loss(w | trained, sample)
            return number

        found: Params = torch.func.grad(value)(trained)
        return found

    gradients = torch.func.vmap(differentiate)(batch.x, batch.y, batch.index)
    squares = [value.flatten(1).square().sum(1) for value in gradients.values()]
    norms = torch.stack(squares).sum(0).sqrt()
    factors = (clip / norms.clamp(min=SMALLEST)).clamp(max=1.0)
    return {
        name: torch.tensordot(factors, value, dims=1)
        for name, value in gradients.items()
    }
