"""Optimisers as values: a first state, and a step to new parameters and a new state.

Nothing is changed in place here, so a step also runs under ``torch.func.vmap``.
An optimiser of one's own is any class with these two functions: hand it to ``c.train(opt=...)``.
Wrappers change what an optimiser is given: ``pull(SGD(0.1), centre, 0.5)`` trains on a
loss plus a proximal term, ``clip(SGD(0.1), 10.0)`` shortens long gradients.
``training/fast_steps.py`` has faster forms of the same arithmetic; an optimiser that is
not known there runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedtailor.core.tree import Params, Tree, part
from fedtailor.training.adaptive import Adagrad, Adam, RMSprop
from fedtailor.training.schedule import Schedule, Scheduled


class Optimiser(Protocol):
    """Turns gradients into new parameters."""

    def init(self, w: Params) -> Tree:
        """The state before the first step (None where there is none)."""
        ...

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """New parameters and the new state; neither argument is changed."""
        ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent; rounds exactly like ``torch.optim.SGD``."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether a step is w - lr * gradient and nothing else."""
        return not self.momentum and not self.weight_decay

    def init(self, w: Params) -> Tree:
        """Zero momentum, where there is momentum."""
        if not self.momentum:
            return None
        return {name: torch.zeros_like(value) for name, value in w.items()}

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """One step of descent."""
        direction = gradient
        if self.weight_decay:
            direction = {
                name: torch.add(g, w[name], alpha=self.weight_decay)
                for name, g in direction.items()
            }
        if self.momentum:
            state = {
                name: self.momentum * state[name] + g for name, g in direction.items()
            }
            if self.nesterov:
                direction = {
                    name: torch.add(g, state[name], alpha=self.momentum)
                    for name, g in direction.items()
                }
            else:
                direction = state
        new = {
            name: torch.add(w[name], g, alpha=-self.lr) for name, g in direction.items()
        }
        return new, state


@dataclass(frozen=True)
class Pull:
    """An optimiser on a loss plus strength/2 ||w - centre||^2; made by ``pull``.

    The gradient of the second term is known, so autograd records nothing for it.
    """

    inner: Optimiser
    centre: Params
    strength: float | Tensor

    @property
    def is_lerp(self) -> bool:
        """Whether the pull can be a step of its own, straight towards the centre."""
        return type(self.inner) is SGD and self.inner.is_plain

    def lerp_weight(self) -> float | Tensor:
        """How far towards the centre one step of plain SGD goes."""
        assert isinstance(self.inner, SGD)
        return self.inner.lr * self.strength

    def whole_gradient(self, w: Params, gradient: Params) -> Params:
        """The gradient of the loss and of the pull."""
        return {
            name: self.strength * (w[name] - self.centre[name]) + g
            for name, g in gradient.items()
        }

    def init(self, w: Params) -> Tree:
        """The inner optimiser's first state."""
        return self.inner.init(w)

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """A step of the inner optimiser, and one towards the centre."""
        if not self.is_lerp:
            whole = self.whole_gradient(w, gradient)
            return self.inner.step(w, whole, state)
        weight = self.lerp_weight()
        pulled = {
            name: torch.lerp(w[name], self.centre[name], weight) for name in gradient
        }
        return self.inner.step(pulled, gradient, state)


@dataclass(frozen=True)
class Clip:
    """An optimiser whose gradients are shortened to a largest norm; made by ``clip``."""

    inner: Optimiser
    norm: float

    def init(self, w: Params) -> Tree:
        """The inner optimiser's first state."""
        return self.inner.init(w)

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """A step of the inner optimiser on the shortened gradient."""
        shortened = shorten(gradient, self.norm)
        return self.inner.step(w, shortened, state)


@dataclass(frozen=True)
class Groups:
    """A different optimiser for every submodule; the rest stays frozen."""

    by: Mapping[str, Optimiser]

    def init(self, w: Params) -> Tree:
        """The first states, by submodule."""
        return {
            prefix: inner.init(part(w, prefix)) for prefix, inner in self.by.items()
        }

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """A step of every submodule's optimiser."""
        new: Params = {}
        new_state: dict[str, Tree] = {}
        for prefix, inner in self.by.items():
            moved, new_state[prefix] = inner.step(
                part(w, prefix), part(gradient, prefix), state[prefix]
            )
            new |= moved
        return new, new_state


def pull(optimiser: Optimiser, centre: Params, strength: float | Tensor) -> Pull:
    """The same optimiser on a loss plus strength/2 ||w - centre||^2."""
    return Pull(optimiser, centre, strength)


def clip(optimiser: Optimiser, norm: float) -> Clip:
    """The same optimiser on gradients no longer than ``norm``."""
    return Clip(optimiser, norm)


def shorten(gradient: Params, norm: float) -> Params:
    """The gradient, at most ``norm`` long, measured as ``torch.nn.utils.clip_grad_norm_`` does."""
    squares = [g.square().sum() for g in gradient.values()]
    length = torch.stack(squares).sum().sqrt()
    scale = norm / (length + 1e-6)
    scale = scale.clamp(max=1)
    return {name: scale * g for name, g in gradient.items()}


def add_weight_decay(optimiser: Optimiser, amount: float) -> Optimiser:
    """The same optimiser with so much more weight decay."""
    if isinstance(optimiser, SGD):
        return replace(optimiser, weight_decay=optimiser.weight_decay + amount)
    return Decay(optimiser, amount)


@dataclass(frozen=True)
class Decay:
    """An optimiser on a loss plus amount/2 ||w||^2; made by ``add_weight_decay``."""

    inner: Optimiser
    amount: float

    def init(self, w: Params) -> Tree:
        """The inner optimiser's first state."""
        return self.inner.init(w)

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """A step of the inner optimiser on the gradient of the loss and of the decay."""
        whole = {
            name: torch.add(g, w[name], alpha=self.amount)
            for name, g in gradient.items()
        }
        return self.inner.step(w, whole, state)


@dataclass(frozen=True)
class Plan:
    """How clients train locally: the same for all methods of an experiment."""

    lr: float = 0.005
    lr_decay: float = 1.0  # factor on the learning rate per round
    epochs: int = 1
    batch: int = 10
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    # an epoch's last, short batch: fill it up, drop it, or keep it short
    batching: str = "fill"
    kind: str = "sgd"  # a key of OPTIMISERS
    # of the rate over the rounds, or over the steps of every round
    schedule: Schedule = Schedule()
    is_within_rounds: bool = False
    rounds: int = 1  # of the run, for schedules that end with it
    clip: float | None = None  # the longest gradient
    # whether a client's training goes on with the state that its last one ended with
    keeps_state: bool = False

    @property
    def depends_on_rounds(self) -> bool:
        """Whether a round's rate depends on how many there will be."""
        return self.schedule.kind == "cosine" and not self.is_within_rounds

    def lr_in_round(self, t: int) -> float:
        """The learning rate of round t = 1, 2, ..."""
        rate = self.lr * self.lr_decay ** max(t - 1, 0)
        if self.is_within_rounds:
            return rate
        factor: float = self.schedule.at(max(t - 1, 0), self.rounds)
        return rate * factor

    def optimiser(self, t: int, steps: int | Tensor = 1) -> Optimiser:
        """The optimiser of round t = 1, 2, ..., in which a training has so many steps."""
        found = OPTIMISERS[self.kind](self, self.lr_in_round(t))
        if self.clip is not None:
            found = clip(found, self.clip)
        if self.is_within_rounds:
            found = Scheduled(found, self.schedule, steps)
        return found

    def steps(self, n: int | Tensor, size: int) -> int | Tensor:
        """Batches in one epoch over n examples: at least one, so that a small client trains too."""
        if self.batching != "drop":
            return (n + size - 1) // size
        if isinstance(n, Tensor):
            return (n // size).clamp(min=1)
        return max(n // size, 1)


# What an experiment may train with: name -> (plan, learning rate) -> optimiser.
OPTIMISERS: dict[str, Callable[[Plan, float], Optimiser]] = {
    "sgd": lambda plan, lr: SGD(
        lr, plan.momentum, plan.weight_decay, nesterov=plan.nesterov
    ),
    "momentum": lambda plan, lr: SGD(
        lr, plan.momentum or 0.9, plan.weight_decay, nesterov=plan.nesterov
    ),
    "adam": lambda plan, lr: Adam(lr, plan.weight_decay),
    "adamw": lambda plan, lr: Adam(lr, plan.weight_decay, decoupled=True),
    "rmsprop": lambda plan, lr: RMSprop(lr, plan.momentum, plan.weight_decay),
    "adagrad": lambda plan, lr: Adagrad(lr, plan.weight_decay),
}
# the rate where none is given: that of a network is for SGD
ADAPTIVE_RATES = {"adam": 1e-3, "adamw": 1e-3, "rmsprop": 1e-3, "adagrad": 1e-2}


def names_under(names: Iterable[str], prefixes: Sequence[str]) -> list[str]:
    """The names at or below any of the prefixes; all names where there is no prefix."""
    if not prefixes:
        return list(names)
    starts = tuple(prefix + "." for prefix in prefixes)
    return [name for name in names if name.startswith(starts) or name in prefixes]
