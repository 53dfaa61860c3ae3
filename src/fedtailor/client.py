"""What a method may see and do on one client.

A method is written for ONE client. Everything here works on plain tensors and, unchanged, on tensors that
``torch.func.vmap`` has given a hidden client axis. Where no vmap runs, training uses plain autograd on leaf tensors
and updates them in place; nobody outside can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.rng import Rng
from fedtailor.core.tensors import onehot
from fedtailor.core.tree import Params, Tree, tmap
from fedtailor.models.backbone import fresh
from fedtailor.models.factored_linear import Collector, FactoredGradient
from fedtailor.training.client_data import Batch, Examples
from fedtailor.training.net import Net, Template
from fedtailor.training.optim import SGD, Groups, Optimiser, Plan, names_under

GATHER = 1 << 21  # bytes of stored inputs fetched at once: few gathers, yet small beside a model
C = TypeVar("C")

__all__ = ["Batch", "Client", "Examples", "Loss", "onehot"]


Loss = Callable[[Params, Batch], Tensor]


class Client:
    """One client: its data, its model without parameters, its randomness."""

    def __init__(
        self,
        template: Template,
        net: Net,
        data: Examples,
        val: Examples,
        rng: Rng,
        plan: Plan,
        t: int,
        rounds: int,
        *,
        vmapped: bool = False,
        least: int | None = None,
    ) -> None:
        self._template, self._vmapped, self._least = template, vmapped, least
        self._epochs = 0  # begun so far: two calls of one epoch draw like one call of two
        self.model, self.data, self.val, self.rng, self.plan = net, data, val, rng, plan
        self.t, self.rounds = t, rounds  # this round and how many there will be
        self.n, self.classes, self.batch_size = data.n, data.classes, plan.batch

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
        """Training examples of every class."""
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
    def optimiser(self) -> SGD:
        """The experiment's optimiser in this round."""
        return self.plan.optimiser(self.t)

    def loss(self, w: Params, batch: Batch) -> Tensor:
        """The task's loss: cross entropy of the model's logits."""
        return F.cross_entropy(self.model(w, batch.x), batch.y)

    def train(
        self,
        loss: Loss,
        w: Params,
        *,
        epochs: int | None = None,
        opt: Optimiser | None = None,
        only: str | Sequence[str] = (),
    ) -> Params:
        """``epochs`` passes of ``opt`` on ``loss``, starting at ``w``, over the parameters of ``only`` (default: all).

        Epochs and optimiser are the experiment's unless the method says otherwise.
        """
        return self.train_with_state(loss, w, epochs=epochs, opt=opt, only=only)[0]

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
        """``train`` that takes and returns the optimiser's state, to go on where it stopped."""
        epochs, opt = self.plan.epochs if epochs is None else epochs, opt or self.optimiser
        if self._vmapped:

            def step(carry: tuple[Params, Tree], batch: Batch) -> tuple[Params, Tree]:
                return self.step(loss, carry[0], batch, opt, carry[1], only)

            state = opt.init(self._pick(w, opt, only)) if state is None else state
            return self.each_batch(step, (dict(w), state), epochs=epochs)

        trained = {
            k: v.detach().clone().requires_grad_() for k, v in self._pick(w, opt, only).items()
        }
        buffers = {k: v.clone() for k, v in w.items() if k in self._template.buffers}
        live, collector = w | trained | buffers, Collector(trained, opt.takes_factors)
        data = {k: v.detach() for k, v in trained.items()}  # the same memory, invisible to autograd
        moments = opt.init(data) if state is None else tmap(torch.clone, state)

        def update(_: None, batch: Batch) -> None:
            whole, thin = collector.grad(loss(live, batch))
            opt.step_(data, whole, moments)
            opt.step_by_(data, thin)

        if trained:
            t = self._template
            with t.train(buffers.values()), t.sparse(True), t.collect(collector):
                self.each_batch(update, None, epochs=epochs)
        else:
            self._epochs += epochs  # nothing to train; later epochs draw as if there had been
        return w | data | buffers, moments

    def step(
        self,
        loss: Loss,
        w: Params,
        batch: Batch,
        opt: Optimiser | None = None,
        state: Tree = None,
        only: str | Sequence[str] = (),
    ) -> tuple[Params, Tree]:
        """One optimiser step, for custom loops."""
        opt = opt or self.optimiser
        trained = self._pick(w, opt, only)
        g, thin, buffers = self._grad(loss, w, batch, trained, opt.takes_factors)
        state = opt.init(trained) if state is None else state
        new, state = opt.step(trained, g, state)
        changed = {k: w[k].clone() for k in thin}
        opt.step_by_(changed, thin)
        return {**w, **new, **changed, **buffers}, state

    def grad(self, loss: Loss, w: Params, batch: Batch, only: str | Sequence[str] = ()) -> Params:
        """The gradient of ``loss`` at ``w``; differentiable where it stands inside another loss."""
        return self._grad(loss, w, batch, self._pick(w, None, only), lambda name: False)[0]

    def each_batch(
        self,
        step: Callable[[C, Batch], C],
        carry: C,
        *,
        epochs: int | None = None,
        size: int | None = None,
    ) -> C:
        """Fold ``step`` over shuffled batches. An epoch's last batch is filled up from the epoch's own beginning."""
        size = size or self.batch_size
        for _ in range(self.plan.epochs if epochs is None else epochs):
            rng = self.rng.fold(self._epochs)
            self._epochs += 1
            for batch in self._batches(rng, size):
                new = step(carry, batch)
                if self._least is not None and batch.step >= self.plan.steps(self._least, size):
                    # a client that has run out of batches stands still
                    more = torch.as_tensor(batch.step < self.plan.steps(self.n, size))
                    new = tmap(lambda a, b, more=more: torch.where(more, a, b), new, carry)
                carry = new
        return carry

    def fresh(self, *parts: str) -> Params:
        """New random parameters of the named submodules, this client's own."""
        out: Params = {}
        for i, p in enumerate(parts):
            out |= fresh(self._template.blank.get_submodule(p), self.rng.fold(-1 - i), p + ".")
        return out

    # ---------------------------------------------------------------- inside
    def _batches(self, rng: Rng, size: int) -> Iterator[Batch]:
        """One epoch; inputs are fetched for many batches at once."""
        slots, data = self.data.index.shape[0], self.data
        if slots == 0:
            return
        order, plan = rng.permutation(slots, self.n), self.plan
        steps = int(plan.steps(slots, size))
        seats = torch.arange(steps * size, device=order.device)
        if plan.batching == "keep" and not self._vmapped:
            seats = seats[:slots]
        at = order[seats % self.n]
        index = data.index[at]
        many = max(1, GATHER // max(1, size * data._x[0].nbytes)) * size
        for i in range(0, len(seats), many):
            x, y = data.inputs(index[i : i + many]), data._y[index[i : i + many]]
            for j in range(0, y.shape[0], size):
                yield Batch(
                    x[j : j + size], y[j : j + size], at[i + j : i + j + size], rng, (i + j) // size
                )

    def _pick(self, w: Params, opt: Optimiser | None, only: str | Sequence[str]) -> Params:
        only = (only,) if isinstance(only, str) else tuple(only)
        if not only and isinstance(opt, Groups):
            only = tuple(opt.by)
        return {k: w[k] for k in names_under(w, only) if k not in self._template.buffers}

    def _grad(
        self, loss: Loss, w: Params, batch: Batch, trained: Params, thin: Callable[[str], bool]
    ) -> tuple[Params, dict[str, FactoredGradient], Params]:
        """Gradients, whole and in factors, and the new buffers."""
        if self._vmapped:

            def value(trained: Params) -> tuple[Tensor, Params]:
                buffers = {k: v.clone() for k, v in w.items() if k in self._template.buffers}
                with self._template.train(buffers.values()):
                    return loss({**w, **trained, **buffers}, batch), tmap(
                        torch.Tensor.detach, buffers
                    )

            grads, buffers = torch.func.grad(value, has_aux=True)(trained)
            return grads, {}, buffers
        inside = torch.is_grad_enabled() and any(v.requires_grad for v in trained.values())
        leaves = trained if inside else {k: v.detach().requires_grad_() for k, v in trained.items()}
        buffers = {k: v.clone() for k, v in w.items() if k in self._template.buffers}
        collector, t = Collector(leaves, thin), self._template
        with t.train(buffers.values()), t.sparse(False), t.collect(collector):
            result = loss({**w, **leaves, **buffers}, batch)
        if not inside:
            return *collector.grad(result), buffers
        g = torch.autograd.grad(
            result, list(leaves.values()), create_graph=True, materialize_grads=True
        )
        return dict(zip(leaves, g, strict=True)), {}, buffers
