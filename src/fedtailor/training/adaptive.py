"""Optimisers with a rate of its own for every parameter: Adam, AdamW, RMSprop, Adagrad.

They round like ``torch.optim``'s (with its defaults) to a few units in the last place, and change
nothing in place, so that a step also runs under ``torch.func.vmap``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.core.tree import Params, Tree


@dataclass(frozen=True)
class Adam:
    """Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015.

    ``decoupled``: weight decay moves parameters and is no part of the gradient (AdamW; Loshchilov
    and Hutter, ICLR 2019).
    """

    lr: float
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decoupled: bool = False

    def init(self, w: Params) -> Tree:
        """No steps, and zeros for both moments."""
        count = next(iter(w.values())).new_zeros(()) if w else torch.zeros(())
        return {"count": count, "first": _zeros(w), "second": _zeros(w)}

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """One step along the first moment over the root of the second."""
        count = state["count"] + 1
        shrink = 1 - self.beta1**count
        root = (1 - self.beta2**count).sqrt()
        new: Params = {}
        first: Params = {}
        second: Params = {}
        for name, g in gradient.items():
            value = w[name]
            if self.decoupled:
                value = value * (1 - self.lr * self.weight_decay)
            elif self.weight_decay:
                g = torch.add(g, value, alpha=self.weight_decay)
            first[name] = torch.lerp(state["first"][name], g, 1 - self.beta1)
            second[name] = _mean_square(state["second"][name], g, self.beta2)
            size = second[name].sqrt() / root + self.eps
            new[name] = value - self.lr / shrink * (first[name] / size)
        return new, {"count": count, "first": first, "second": second}


@dataclass(frozen=True)
class RMSprop:
    """Tieleman and Hinton, lecture 6.5, 2012; with momentum where it is given."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    alpha: float = 0.99
    eps: float = 1e-8

    def init(self, w: Params) -> Tree:
        """Zeros for the mean square, and for the momentum if there is any."""
        state = {"second": _zeros(w)}
        if self.momentum:
            state["first"] = _zeros(w)
        return state

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """One step along the gradient over the root of its mean square."""
        new: Params = {}
        first: Params = {}
        second: Params = {}
        for name, g in gradient.items():
            if self.weight_decay:
                g = torch.add(g, w[name], alpha=self.weight_decay)
            second[name] = _mean_square(state["second"][name], g, self.alpha)
            direction = g / (second[name].sqrt() + self.eps)
            if self.momentum:
                direction = self.momentum * state["first"][name] + direction
                first[name] = direction
            new[name] = torch.add(w[name], direction, alpha=-self.lr)
        after: dict[str, Params] = {"second": second}
        if self.momentum:
            after["first"] = first
        return new, after


@dataclass(frozen=True)
class Adagrad:
    """Duchi et al., Adaptive Subgradient Methods, JMLR 2011."""

    lr: float
    weight_decay: float = 0.0
    eps: float = 1e-10

    def init(self, w: Params) -> Tree:
        """Zeros for the sum of squares."""
        return {"second": _zeros(w)}

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """One step along the gradient over the root of all squares so far."""
        new: Params = {}
        second: Params = {}
        for name, g in gradient.items():
            if self.weight_decay:
                g = torch.add(g, w[name], alpha=self.weight_decay)
            second[name] = state["second"][name] + g.square()
            direction = g / (second[name].sqrt() + self.eps)
            new[name] = torch.add(w[name], direction, alpha=-self.lr)
        return new, {"second": second}


def _zeros(w: Params) -> Params:
    return {name: torch.zeros_like(value) for name, value in w.items()}


def _mean_square(before: Tensor, g: Tensor, beta: float) -> Tensor:
    """The moving average of squares."""
    return torch.addcmul(before * beta, g, g, value=1 - beta)
