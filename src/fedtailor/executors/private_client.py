"""A client whose data reach what it sends through noisy gradients only (``--dp sample``).

Whatever else a method would ask of the data is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from fedtailor.client import Batch, Client, Examples, Loss, RunSettings
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, Tree
from fedtailor.training.loss_meter import LossSums
from fedtailor.training.optim import Optimiser
from fedtailor.training.private_gradient import SampleNoise, compute_private_gradient

LOOKS_AT_DATA = ("data", "val")


class NotPrivate(Exception):
    """A method asked for something of the data that no noise covers."""


class PrivateClient(Client):
    """A client that trains by DP-SGD. Only ``c.train`` may see the data."""

    def __init__(
        self,
        settings: RunSettings,
        data: Examples,
        val: Examples,
        rng: Rng,
        t: int,
        privacy: SampleNoise,
        *,
        vmapped: bool = False,
        fewest: int | None = None,
    ) -> None:
        super().__init__(settings, data, val, rng, t, vmapped=vmapped, fewest=fewest)
        self._privacy = privacy
        self._passes = 0
        self._device = data.index.device
        del self.data
        del self.val

    def train_with_state(
        self,
        loss: Loss,
        w: Params,
        *,
        epochs: int | None = None,
        opt: Optimiser | None = None,
        only: str | Sequence[str] = (),
        state: Tree = None,
    ) -> tuple[Params, Tree]:
        """Train by noisy gradients of shortened length."""
        epochs = self.plan.epochs if epochs is None else epochs
        self._count_passes(epochs)
        optimiser = opt or self.optimiser
        names = self._trained_names(w, optimiser, only)
        if not names:
            return dict(w), state

        def step(carry: tuple[Params, Tree], batch: Batch) -> tuple[Params, Tree]:
            now, memory = carry
            gradient = compute_private_gradient(
                self._template, loss, now, names, batch, self._privacy
            )
            trained = {name: now[name] for name in names}
            new, memory = optimiser.step(trained, gradient, memory)
            return now | new, memory

        if state is None:
            state = optimiser.init({name: w[name] for name in names})
        return super().each_batch(step, (dict(w), state), epochs=epochs)

    def _count_passes(self, epochs: int) -> None:
        self._passes += epochs
        if self._passes > self._privacy.passes:
            raise NotPrivate(
                f"the method makes {self._passes} passes over the data in a round and"
                f" {self._privacy.passes} are counted; give --dp-passes {self._passes}"
            )

    def training_losses(self) -> LossSums:
        """None: they are told to the server, and the noise does not cover them."""
        nothing = torch.zeros(0, device=self._device)
        return LossSums(nothing, nothing)

    # ---------------------------------------------------------------- refused
    def grad(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        _refuse("takes gradients of its own (c.grad)")

    def step(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        _refuse("has a training loop of its own (c.step)")

    def step_with_aux(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        _refuse("has a training loop of its own (c.step_with_aux)")

    def each_batch(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        _refuse("has a training loop of its own (c.each_batch)")

    def __getattr__(self, name: str) -> NoReturn:
        if name in LOOKS_AT_DATA:
            _refuse(f"looks at the data itself (c.{name})")
        super().__getattr__(name)


def _refuse(what: str) -> NoReturn:
    raise NotPrivate(
        f"the method {what}, which the noise of --dp sample does not cover"
    )
