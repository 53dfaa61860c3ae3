"""What a method may see and do on one client.

A method is written for ONE client, with plain tensors. The same code also runs on
tensors to which ``torch.func.vmap`` has given a hidden client axis; then training goes
through ``training/functional.py``, otherwise through ``training/in_place.py``. A method
cannot tell which.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from fedtailor.core.errors import unknown
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, Tree, tmap
from fedtailor.models.backbone import fresh
from fedtailor.training import functional, in_place
from fedtailor.training.client_data import Batch, Examples
from fedtailor.training.in_place import Loss, Training
from fedtailor.training.kept_state import KeptStates
from fedtailor.training.loss_meter import LossMeter, LossSums
from fedtailor.training.net import Net, Template
from fedtailor.training.optim import Groups, Optimiser, Plan, names_under
from fedtailor.training.private_gradient import SampleNoise
from fedtailor.training.task import Task

__all__ = ["Batch", "Client", "Examples", "Loss", "RunSettings"]

Carry = TypeVar("Carry")
RENAMED = {"fit": "train_with_state", "sgd": "optimiser"}


@dataclass(frozen=True)
class RunSettings:
    """What all clients of a run have in common."""

    template: Template  # the network, without parameters
    net: Net
    plan: Plan
    task: Task
    rounds: int
    # noise on every sample's gradient, for executors/private_client.py
    sample_noise: SampleNoise | None = None


class Client:
    """One client in one round: its data, its network without parameters, its randomness.

    Attributes:
        model: the network; ``c.model(w, x)`` runs it, ``c.model.base(w, x)`` a part of it.
        task: the loss and the measures of what is learned.
        data, val: its training and validation examples.
        n, classes, batch_size: number of training examples, of classes, examples in a batch.
        rng: its randomness of this call.
        plan: the experiment's plan of local training.
        t, rounds: this round, and how many there will be.

    Example:
        w = c.train(c.loss, down.w)
    """

    def __init__(
        self,
        settings: RunSettings,
        data: Examples,
        val: Examples,
        rng: Rng,
        t: int,
        *,
        vmapped: bool = False,
        fewest: int | None = None,
    ) -> None:
        self._template = settings.template
        self._vmapped = vmapped
        # under vmap: examples of the block's smallest client, if sizes differ
        self._fewest = fewest
        # epochs begun: two calls of one epoch draw like one call of two
        self._epochs = 0
        self.model = settings.net
        self.task = settings.task
        self.plan = settings.plan
        self.rounds = settings.rounds
        self.data = data
        self.val = val
        self._examples = data
        self.rng = rng
        self.t = t
        self.n = data.n
        self.classes = data.classes
        self.batch_size = settings.plan.batch
        self._meter = LossMeter()
        # states of its optimisers that outlive the round, if they are to
        self.kept_states: KeptStates | None = None

    # ---------------------------------------------------------------- data
    @property
    def x(self) -> Tensor:
        """All training inputs (padded under vmap)."""
        return self.data.x

    @property
    def y(self) -> Tensor:
        """All training labels (padded under vmap)."""
        return self.data.y

    @property
    def counts(self) -> Tensor:
        """Number of training examples of every class."""
        return self.data.counts

    def mean(self, per_example: Tensor) -> Tensor:
        """The mean over all training examples."""
        return self.data.mean(per_example)

    def class_sums(self, per_example: Tensor) -> tuple[Tensor, Tensor]:
        """Per class, the sum of the values and the number of training examples."""
        return self.data.class_sums(per_example)

    def steps(self, epochs: int) -> int | Tensor:
        """Optimiser steps that ``train`` takes in so many epochs."""
        return epochs * self.plan.steps(self.n, self.batch_size)

    # ---------------------------------------------------------------- training
    @property
    def optimiser(self) -> Optimiser:
        """The experiment's optimiser in this round: ``init(w)`` and ``step(w, gradient, state)``.

        Wrap it (``pull(c.optimiser, centre, 0.1)``), or hand ``train`` another of one's own.
        """
        return self.plan.optimiser(self.t, self.steps(self.plan.epochs))

    def loss(self, w: Params, batch: Batch) -> Tensor:
        """The task's loss of model ``w`` on a batch."""
        return self.task.loss(self.model(w, batch.x), batch.y)

    def with_stream(self, *words: int) -> Client:
        """This client with other randomness, named by ``words``."""
        other = copy.copy(self)
        for word in words:
            other.rng = other.rng.fold(word)
        return other

    def losses(self, w: Params, examples: Examples) -> Tensor:
        """The task's loss of every example, computed in chunks."""
        if self.task.needs_all_examples and examples.index.shape[0]:
            outputs = examples.map(lambda x: self.model(w, x))
            return self.task.losses(outputs, examples.y, examples.mask)
        chunks = [
            self.task.losses(self.model(w, x), y) for x, y, _ in examples.chunks()
        ]
        return torch.cat(chunks)

    def train(
        self,
        loss: Loss,
        w: Params,
        *,
        epochs: int | None = None,
        opt: Optimiser | None = None,
        only: str | Sequence[str] = (),
    ) -> Params:
        """Train a model on this client's data.

        Args:
            loss: function of a model and a batch, for example ``c.loss``.
            w: the model to start from; it stays as it is.
            epochs: passes over the data; the experiment's unless given.
            opt: the optimiser; the experiment's unless given.
            only: submodules to train, by name (``"head"``); all unless given.

        Returns:
            The trained model, with what was not trained as it was in ``w``.
        """
        trained, _ = self.train_with_state(loss, w, epochs=epochs, opt=opt, only=only)
        return trained

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
        """``train`` that takes and gives the optimiser's state (momentum), to continue later."""
        epochs = self.plan.epochs if epochs is None else epochs
        opt = opt or self.optimiser
        names = self._trained_names(w, opt, only)
        states = self.kept_states
        if states is None or state is not None or not names:
            return self._train(loss, w, epochs, opt, only, state)
        first = opt.init({name: w[name] for name in names})
        w, after = self._train(loss, w, epochs, opt, only, states.resume(first))
        states.keep(after)
        return w, after

    def _train(
        self,
        loss: Loss,
        w: Params,
        epochs: int,
        opt: Optimiser,
        only: str | Sequence[str],
        state: Tree,
    ) -> tuple[Params, Tree]:
        names = self._trained_names(w, opt, only)
        if not self._vmapped:
            batches = self._batches_of(epochs)
            if not names:
                # later epochs draw as if this one had trained something
                self._epochs += epochs
                batches = iter(())
            self._meter.begin_training()
            training = Training(self._template, names, opt, self._meter.add)
            with self._meter.inside_step():
                return in_place.train(training, loss, w, state, batches)

        def step(carry: tuple[Params, Tree], batch: Batch) -> tuple[Params, Tree]:
            return self.step(loss, carry[0], batch, opt, carry[1], only)

        if state is None:
            state = opt.init({name: w[name] for name in names})
        return self.each_batch(step, (dict(w), state), epochs=epochs)

    def step(
        self,
        loss: Loss,
        w: Params,
        batch: Batch,
        opt: Optimiser | None = None,
        state: Tree = None,
        only: str | Sequence[str] = (),
    ) -> tuple[Params, Tree]:
        """One optimiser step, for training loops of a method's own: gives (model, state)."""
        new, state, _ = self._step(loss, w, batch, opt, state, only, has_aux=False)
        return new, state

    def step_with_aux(
        self,
        loss: Callable[[Params, Batch], tuple[Tensor, Tree]],
        w: Params,
        batch: Batch,
        opt: Optimiser | None = None,
        state: Tree = None,
        only: str | Sequence[str] = (),
    ) -> tuple[Params, Tree, Any]:
        """``step`` for a loss that also gives an auxiliary output: gives (model, state, output)."""
        return self._step(loss, w, batch, opt, state, only, has_aux=True)

    def grad(
        self, loss: Loss, w: Params, batch: Batch, only: str | Sequence[str] = ()
    ) -> Params:
        """The gradient of ``loss`` at ``w``; differentiable where it is part of another loss."""
        names = self._trained_names(w, None, only)
        if self._vmapped:
            return functional.gradient(self._template, loss, w, names, batch)
        return in_place.gradient(self._template, loss, w, names, batch)

    def each_batch(
        self,
        step: Callable[[Carry, Batch], Carry],
        carry: Carry,
        *,
        epochs: int | None = None,
        size: int | None = None,
    ) -> Carry:
        """Fold ``step`` over shuffled batches, like ``functools.reduce``."""
        size = size or self.batch_size
        epochs = self.plan.epochs if epochs is None else epochs
        self._meter.begin_training()
        for batch in self._batches_of(epochs, size):
            has_batch = self._has_batch(batch, size)
            self._meter.weight = has_batch
            new = step(carry, batch)
            if has_batch is not None:
                new = _choose(has_batch, new, carry)
            carry = new
        self._meter.weight = None
        return carry

    def training_losses(self) -> LossSums:
        """The sums of the losses of all steps so far: what evaluation reports of them."""
        return self._meter.sum_up(self.data.index.device)

    def fresh(self, *parts: str) -> Params:
        """New random parameters for the named submodules, drawn from this client's randomness."""
        w: Params = {}
        for i, name in enumerate(parts):
            module = self._template.blank.get_submodule(name)
            w |= fresh(module, self.rng.fold(-1 - i), name + ".")
        return w

    # ---------------------------------------------------------------- inside
    def _step(
        self,
        loss: Loss,
        w: Params,
        batch: Batch,
        opt: Optimiser | None,
        state: Tree,
        only: str | Sequence[str],
        has_aux: bool,
    ) -> tuple[Params, Tree, Any]:
        opt = opt or self.optimiser
        names = self._trained_names(w, opt, only)
        step = functional.step if self._vmapped else in_place.step
        training = Training(self._template, names, opt, self._meter.add)
        with self._meter.inside_step():
            return step(training, loss, w, state, batch, has_aux)

    def _has_batch(self, batch: Batch, size: int) -> Tensor | None:
        """Under vmap, whether this client still has batches; None where all have.

        One that has run out of them keeps what it has.
        """
        if self._fewest is None or batch.step < self.plan.steps(self._fewest, size):
            return None
        return torch.as_tensor(batch.step < self.plan.steps(self.n, size))

    def _batches_of(self, epochs: int, size: int | None = None) -> Iterator[Batch]:
        """Shuffled batches of some epochs."""
        for _ in range(epochs):
            rng = self.rng.fold(self._epochs)
            self._epochs += 1
            yield from self._epoch(rng, size or self.batch_size)

    def _epoch(self, rng: Rng, size: int) -> Iterator[Batch]:
        """One epoch; its last batch is filled up from the epoch's own beginning."""
        slots = self._examples.index.shape[0]
        if slots == 0:
            return
        shuffled = rng.permutation(slots, self.n)
        positions = torch.arange(
            int(self.plan.steps(slots, size)) * size, device=shuffled.device
        )
        if self.plan.batching == "keep" and not self._vmapped:
            positions = positions[:slots]
        yield from self._examples.batches(shuffled[positions % self.n], size, rng)

    def _trained_names(
        self, w: Params, opt: Optimiser | None, only: str | Sequence[str]
    ) -> list[str]:
        """Names of the parameters to train: those below ``only``, without buffers."""
        prefixes = (only,) if isinstance(only, str) else tuple(only)
        for prefix in prefixes:
            self._check_part(w, prefix)
        if not prefixes and isinstance(opt, Groups):
            prefixes = tuple(opt.by)  # of parts that an ablation may have left out
        names = names_under(w, prefixes)
        return [name for name in names if name not in self._template.buffers]

    def _check_part(self, w: Params, prefix: str) -> None:
        """Refuse the name of a part that neither the network nor the model has."""
        parts = self._template.parts
        if prefix in parts or names_under(w, [prefix]):
            return
        raise unknown("part of the network named", prefix, [*parts, *w])

    def __getattr__(self, name: str) -> NoReturn:
        if name in RENAMED:
            raise AttributeError(f"c.{name} is now c.{RENAMED[name]}")
        raise AttributeError(f"a client has no '{name}'")


def _choose(condition: Tensor, new: Any, old: Any) -> Any:
    """The new tree where the condition holds, the old one elsewhere."""
    return tmap(lambda a, b: torch.where(condition, a, b), new, old)
