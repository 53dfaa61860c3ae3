"""Linear layers that leave the gradient of a large weight in factors, for the optimiser to add up as it is computed.

That gradient is a product of two thin matrices: what came back to a batch's outputs, and what went in. Written out it
is as large as the weight, and a small batch takes longer to write and read it than to compute it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.tree import Params

LARGE = (
    1 << 17
)  # weights of a layer from which on factors are faster; below, a call costs more than it saves
ALL = slice(None)
# (W x^T)^T instead of x W^T: with AVX-512 it was measured to be the faster the smaller the batch, with AVX2 it takes
# twice the time (benchmarks/linear_forward.py). A matter of the machine alone, so that its executors compute alike.
TURNED = torch.backends.cpu.get_cpu_capability() == "AVX512"


class Product(NamedTuple):
    """back^T into, the gradient of the given rows and columns of a weight."""

    back: Tensor
    into: Tensor
    rows: slice
    columns: slice


class Factored(NamedTuple):
    """A weight's gradient: the sum of the products and of what else there is."""

    products: list[Product]
    rest: Tensor | None

    def add_to_(self, w: Tensor, scale: float, factor: float) -> None:
        """w = scale w + factor gradient, in place, in one pass where there is one product of all rows and columns."""
        first = self.products[0]
        if scale != 1 and not first.rows == first.columns == ALL:
            w.mul_(scale)
            scale = 1
        for product in self.products:
            _cut(w, product.rows, product.columns).addmm_(
                product.back.t(), product.into, beta=scale, alpha=factor
            )
            scale = 1
        if self.rest is not None:
            w.add_(self.rest, alpha=factor)


class Collector:
    """Gradients of losses at some leaves, of the large matrices among the ``thin`` ones in factors."""

    def __init__(self, leaves: Params, thin: Callable[[str], bool]) -> None:
        self._leaves, self._open = leaves, False
        self._products = {
            id(v): list[Product]() for k, v in leaves.items() if is_large(v) and thin(k)
        }

    def grad(self, loss: Tensor) -> tuple[Params, dict[str, Factored]]:
        """Those that are whole, zeros where the loss does not depend on a leaf, and those in factors."""
        self._open = True
        try:
            found = torch.autograd.grad(loss, list(self._leaves.values()), allow_unused=True)
        finally:
            self._open = False
        whole: Params = {}
        thin: dict[str, Factored] = {}
        for (name, leaf), g in zip(self._leaves.items(), found, strict=True):
            if products := self._products.get(id(leaf)):
                thin[name] = Factored(products, g)
                self._products[id(leaf)] = []
            else:
                whole[name] = torch.zeros_like(leaf) if g is None else g
        return whole, thin

    def offer(self, weight: Tensor, product: Product) -> bool:
        """Whether a product is taken; it is not where a gradient is part of the loss, for that one must be whole."""
        products = self._products.get(id(weight)) if self._open else None
        if products is None:
            return False
        products.append(product)
        return True


class Dense(nn.Linear):
    """``nn.Linear`` that hands factors to a collector, if there is one."""

    collector: Collector | None = None

    def forward(self, x: Tensor) -> Tensor:
        """All outputs from all inputs."""
        return self.between(x, ALL, ALL)

    def between(self, x: Tensor, rows: slice, columns: slice) -> Tensor:
        """Some outputs from some inputs: the layer with these rows and columns of its weight."""
        weight, bias = (
            self.weight,
            self.bias if self.bias is None or rows == ALL else self.bias[rows],
        )
        if self.collector is None or not is_large(weight) or x.dim() != 2:
            return F.linear(x, _cut(weight, rows, columns), bias)
        y: Tensor = _Affine.apply(x, weight, bias, self.collector, rows, columns)  # type: ignore[no-untyped-call]
        return y


def is_large(weight: Tensor) -> bool:
    """A function of the shape alone, so that all executors that promise equal bits compute alike."""
    return weight.dim() == 2 and weight.numel() >= LARGE


def find_dense(module: nn.Module) -> list[Dense]:
    """All linear layers of a module, made ``Dense`` ones; subclasses stay what they are."""
    found = [m for m in module.modules() if type(m) is nn.Linear]
    for m in found:
        m.__class__ = Dense
    return [m for m in module.modules() if isinstance(m, Dense)]


class _Affine(torch.autograd.Function):
    """x W^T + b."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        collector: Collector,
        rows: slice,
        columns: slice,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.collector, ctx.place = collector, (rows, columns)
        part = _cut(weight, rows, columns)
        if not (TURNED and x.is_cpu):
            return F.linear(x, part, bias)
        turned = x.t().contiguous()
        return (part @ turned if bias is None else torch.addmm(bias[:, None], part, turned)).t()

    @staticmethod
    def backward(ctx: Any, *backs: Tensor) -> tuple[Tensor | None, ...]:
        (back,), (x, weight), place = backs, ctx.saved_tensors, ctx.place
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        g = None
        if needs_weight and not ctx.collector.offer(
            weight, Product(back.detach(), x.detach(), *place)
        ):
            g = _pad(back.t() @ x, weight, *place)
        return (
            back @ _cut(weight, *place) if needs_x else None,
            g,
            back.sum(0) if needs_bias else None,
            *[None] * 3,
        )


def _cut(weight: Tensor, rows: slice, columns: slice) -> Tensor:
    return weight if rows == columns == ALL else weight[rows, columns]


def _pad(part: Tensor, weight: Tensor, rows: slice, columns: slice) -> Tensor:
    """A part of a weight with zeros around it."""
    if rows == columns == ALL:
        return part
    (top, bottom, _), (left, right, _) = (
        s.indices(n) for s, n in zip((rows, columns), weight.shape, strict=True)
    )
    return F.pad(part, (left, weight.shape[1] - right, top, weight.shape[0] - bottom))
