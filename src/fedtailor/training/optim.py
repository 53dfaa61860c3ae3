"""Optimisers, and the plan of local training that an experiment fixes for every method alike.

``step`` is a pure function of (parameters, gradients, state); ``step_`` does the same arithmetic in place, for the
paths where no ``vmap`` runs. Both round exactly like ``torch.optim.SGD``; ``step_by_``, for gradients in factors,
rounds once less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedtailor.core.tree import Params, Tree, part
from fedtailor.models.factored_linear import FactoredGradient


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def towards(self, centre: Params, strength: float | Tensor) -> Pulled:
        """The same for a loss plus strength/2 ||w - centre||^2."""
        return Pulled(self.lr, self.momentum, self.weight_decay, self.nesterov, centre, strength)

    def init(self, w: Params) -> Tree:
        """The state before the first step."""
        return {k: torch.zeros_like(v) for k, v in w.items()} if self.momentum else None

    def step(self, w: Params, g: Params, m: Tree) -> tuple[Params, Tree]:
        """New parameters and state."""
        if self.weight_decay:
            g = {k: torch.add(g[k], w[k], alpha=self.weight_decay) for k in g}
        if self.momentum:
            m = {k: self.momentum * m[k] + g[k] for k in g}
            g = {k: torch.add(g[k], m[k], alpha=self.momentum) for k in g} if self.nesterov else m
        return {k: torch.add(w[k], g[k], alpha=-self.lr) for k in g}, m

    def step_(self, w: Params, g: Params, m: Tree) -> None:
        """``step``, written into ``w`` and ``m`` (and ``g`` used up)."""
        names = list(g)
        if any(g[k].is_sparse for k in names):
            names = [k for k in names if not self._step_sparse(w[k], g, k)]
        params, grads = [w[k] for k in names], [g[k] for k in names]
        if not names:
            return
        if (
            self.weight_decay
            and not self.momentum
            and all(t.is_contiguous() for t in (*params, *grads))
        ):
            # decay and update in one pass over memory; with momentum this rounds differently
            torch._fused_sgd_(
                params,
                grads,
                [],
                weight_decay=self.weight_decay,
                momentum=0.0,
                lr=self.lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )
            return
        if self.weight_decay and _stand_alone(grads):
            torch._foreach_add_(grads, params, alpha=self.weight_decay)
        elif self.weight_decay:
            grads = list(torch._foreach_add(grads, params, alpha=self.weight_decay))
        if self.momentum:
            moments = [m[k] for k in names]
            torch._foreach_mul_(moments, self.momentum)
            torch._foreach_add_(moments, grads)
            grads = (
                list(torch._foreach_add(grads, moments, alpha=self.momentum))
                if self.nesterov
                else moments
            )
        torch._foreach_add_(params, grads, alpha=-self.lr)

    def takes_factors(self, name: str) -> bool:
        """Whether ``step_by_`` may be asked to change this parameter: not by a subclass that does not know of it."""
        return type(self) is SGD and not self.momentum

    def step_by_(self, w: Params, g: Mapping[str, FactoredGradient]) -> None:
        """``step_`` for gradients in factors: each is added to its parameter while it is computed."""
        for k, gradient in g.items():
            gradient.add_to_(w[k], 1 - self.lr * self.weight_decay, -self.lr)

    def _step_sparse(self, param: Tensor, g: Params, name: str) -> bool:
        """Change only the rows that have a gradient; where every row changes, the gradient is made whole instead."""
        if not g[name].is_sparse:
            return False
        if self.weight_decay or self.momentum:
            g[name] = g[name].to_dense()
            return False
        param.add_(g[name], alpha=-self.lr)
        return True


@dataclass(frozen=True)
class Pulled(SGD):
    """SGD on a loss plus strength/2 ||w - centre||^2.

    The gradient of the second is known, so nothing need be recorded for it: one pass through memory instead of eight,
    and the first one's gradient stays sparse where it is.
    """

    centre: Params = field(default_factory=dict)
    strength: float | Tensor = 0.0

    def step(self, w: Params, g: Params, m: Tree) -> tuple[Params, Tree]:
        if self.momentum or self.weight_decay:
            return super().step(w, self._whole(w, g), m)
        return super().step(
            {k: torch.lerp(w[k], self.centre[k], self.lr * self.strength) for k in g}, g, m
        )

    def step_(self, w: Params, g: Params, m: Tree) -> None:
        if self.momentum or self.weight_decay:
            super().step_(w, self._whole(w, g), m)
            return
        for k in g:
            w[k].lerp_(self.centre[k], self.lr * self.strength)
        super().step_(w, g, m)

    def takes_factors(self, name: str) -> bool:
        return type(self) is Pulled and not self.momentum and not self.weight_decay

    def step_by_(self, w: Params, g: Mapping[str, FactoredGradient]) -> None:
        for k in g:
            w[k].lerp_(self.centre[k], self.lr * self.strength)
        super().step_by_(w, g)

    def _whole(self, w: Params, g: Params) -> Params:
        """The gradient of both."""
        return {k: self.strength * (w[k] - self.centre[k]) + g[k] for k in g}


def _stand_alone(grads: Sequence[Tensor]) -> bool:
    """Whether every gradient has memory of its own, so that one can be changed without changing another."""
    return all(g.is_contiguous() for g in grads) and len({g.data_ptr() for g in grads}) == len(
        grads
    )


@dataclass(frozen=True)
class Groups:
    """A different optimiser for every submodule, like torch's parameter groups; the rest stays frozen."""

    by: dict[str, SGD]

    def init(self, w: Params) -> Tree:
        """The state before the first step."""
        return {p: o.init(part(w, p)) for p, o in self.by.items()}

    def step(self, w: Params, g: Params, m: Tree) -> tuple[Params, Tree]:
        """New parameters and state."""
        out: Params = {}
        state: dict[str, Tree] = {}
        for p, o in self.by.items():
            new, state[p] = o.step(part(w, p), part(g, p), m[p])
            out |= new
        return out, state

    def step_(self, w: Params, g: Params, m: Tree) -> None:
        """``step``, in place."""
        for p, o in self.by.items():
            o.step_(part(w, p), part(g, p), m[p])

    def takes_factors(self, name: str) -> bool:
        """Whether ``step_by_`` may be asked to change this parameter."""
        return any(
            o.takes_factors(name) for p, o in self.by.items() if name in names_under([name], [p])
        )

    def step_by_(self, w: Params, g: Mapping[str, FactoredGradient]) -> None:
        """``step_`` for gradients in factors."""
        for p, o in self.by.items():
            o.step_by_(w, {k: g[k] for k in names_under(g, [p])})


Optimiser = SGD | Groups


@dataclass(frozen=True)
class Plan:
    """How clients train locally; belongs to the experiment, so that methods are compared on equal terms."""

    lr: float = 0.005
    lr_decay: float = 1.0  # factor per round
    epochs: int = 1
    batch: int = 10
    momentum: float = 0.0
    weight_decay: float = 0.0
    batching: str = "fill"  # the last batch of an epoch: fill it up, drop it, or keep it short

    def optimiser(self, t: int) -> SGD:
        """The optimiser of round t = 1, 2, ..."""
        return SGD(self.lr * self.lr_decay ** max(t - 1, 0), self.momentum, self.weight_decay)

    def steps(self, n: int | Tensor, size: int) -> int | Tensor:
        """Batches in one epoch over n examples: at least one, so that a small client trains too."""
        if self.batching == "drop":
            return (n // size).clamp(min=1) if isinstance(n, Tensor) else max(n // size, 1)
        return (n + size - 1) // size


def names_under(w: Iterable[str], prefixes: Sequence[str]) -> list[str]:
    """Names below any of the prefixes; all of them where there is none."""
    starts = tuple(p + "." for p in prefixes)
    return [k for k in w if not starts or k.startswith(starts) or k in prefixes]
