"""Linear layers that leave the gradient of a large weight in factors.

The gradient of a weight is a product of two thin matrices: the gradient of a batch's outputs and
the batch's inputs. Written out it is as large as the weight, and with small batches writing and
reading it takes longer than computing it. So the factors are handed to the optimiser, which adds
their product to the weight while it is computed.

This is the only file that replaces layers. With ``FEDTAILOR_PLAIN=1`` in the environment none is
replaced: layers stay ``nn.Linear`` and gradients are written out. Results are the same up to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.torch_settings import plain_wanted
from fedtailor.core.tree import Params

# Elements of a weight from which on factors are faster; below, the calls cost more than they save.
LARGE_WEIGHT = 1 << 17
ALL = slice(None)
# (W x^T)^T instead of x W^T: with AVX-512 it was measured to be faster, the more so the smaller the
# batch; with AVX2 it takes twice the time (benchmarks/linear_forward.py). It depends on the
# machine alone,
# so that its executors compute alike.
TRANSPOSED = torch.backends.cpu.get_cpu_capability() == "AVX512"


class Block(NamedTuple):
    """Some rows (outputs) and columns (inputs) of a weight."""

    rows: slice
    columns: slice


WHOLE = Block(ALL, ALL)


class Factors(NamedTuple):
    """``output_grad``^T ``inputs`` is the gradient of a block of a weight."""

    output_grad: Tensor
    inputs: Tensor
    block: Block


class FactoredGradient(NamedTuple):
    """The gradient of a weight: a sum of products of factors, and a rest that is written out."""

    products: list[Factors]
    rest: Tensor | None

    def add_to_(self, w: Tensor, scale: float, factor: float) -> None:
        """w = scale w + factor gradient, in place.

        One pass over memory where there is one product, of all rows and columns.
        """
        if scale != 1 and self.products[0].block != WHOLE:
            w.mul_(scale)
            scale = 1
        for output_grad, inputs, block in self.products:
            part = _cut(w, block)
            part.addmm_(output_grad.t(), inputs, beta=scale, alpha=factor)
            scale = 1
        if self.rest is not None:
            w.add_(self.rest, alpha=factor)


class Collector:
    """Computes gradients of losses, those of some large weights in factors.

    ``leaves``: parameters by name. ``factored``: whether the gradient of a parameter, given by its
    name, may come in factors.
    """

    def __init__(self, leaves: Params, factored: Callable[[str], bool]) -> None:
        self._leaves = leaves
        self._open = False
        self._products: dict[int, list[Factors]] = {}  # by identity of the weight
        for name, leaf in leaves.items():
            if is_large(leaf) and factored(name):
                self._products[id(leaf)] = []

    def grad(self, loss: Tensor) -> tuple[Params, dict[str, FactoredGradient]]:
        """Gradients that are written out, and those in factors.

        They are zeros where the loss does not depend on a leaf.
        """
        self._open = True
        try:
            found = torch.autograd.grad(
                loss, list(self._leaves.values()), allow_unused=True
            )
        finally:
            self._open = False
        dense: Params = {}
        factored: dict[str, FactoredGradient] = {}
        for (name, leaf), gradient in zip(self._leaves.items(), found, strict=True):
            products = self._products.get(id(leaf))
            if products:
                factored[name] = FactoredGradient(products, gradient)
                self._products[id(leaf)] = []
            elif gradient is None:
                dense[name] = torch.zeros_like(leaf)
            else:
                dense[name] = gradient
        return dense, factored

    def accept(self, weight: Tensor, product: Factors) -> bool:
        """Take the factors of a weight's gradient, if they are wanted.

        They are not where a gradient is part of the loss: that one must be written out.
        """
        if not self._open:
            return False
        products = self._products.get(id(weight))
        if products is None:
            return False
        products.append(product)
        return True


class FactoredLinear(nn.Linear):
    """``nn.Linear`` that hands factors of gradients to a collector, if there is one."""

    collector: Collector | None = None

    def forward(self, x: Tensor) -> Tensor:
        """All outputs from all inputs."""
        return self._apply_block(x, WHOLE)

    def forward_block(self, x: Tensor, rows: slice, columns: slice) -> Tensor:
        """Some outputs from some inputs: the layer with these rows and columns of its weight."""
        return self._apply_block(x, Block(rows, columns))

    def _apply_block(self, x: Tensor, block: Block) -> Tensor:
        weight = self.weight
        bias: Tensor | None = self.bias
        if bias is not None and block.rows != ALL:
            bias = bias[block.rows]
        if self.collector is None or not is_large(weight) or x.dim() != 2:
            return F.linear(x, _cut(weight, block), bias)
        affine: Callable[..., Tensor] = _FactoredAffine.apply
        return affine(x, weight, bias, self.collector, block)


def is_large(weight: Tensor) -> bool:
    """Whether a weight's gradient is left in factors.

    A function of the shape alone, so that all executors that promise equal bits compute alike.
    """
    return weight.dim() == 2 and weight.numel() >= LARGE_WEIGHT


def replace_linear_layers(module: nn.Module) -> list[FactoredLinear]:
    """Make all linear layers of a module ``FactoredLinear`` ones, in place; returns them.

    Subclasses of ``nn.Linear`` stay what they are. Where plain layers are wanted, none is replaced.
    """
    if plain_wanted():
        return []
    for m in module.modules():
        if type(m) is nn.Linear:
            m.__class__ = FactoredLinear
    return [m for m in module.modules() if isinstance(m, FactoredLinear)]


class _FactoredAffine(torch.autograd.Function):
    """x W^T + b, whose backward offers the factors of W's gradient to a collector."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        collector: Collector,
        block: Block,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.collector = collector
        ctx.block = block
        part = _cut(weight, block)
        if not (TRANSPOSED and x.is_cpu):
            return F.linear(x, part, bias)
        columns = x.t().contiguous()
        if bias is None:
            return (part @ columns).t()
        return torch.addmm(bias[:, None], part, columns).t()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (output_grad,) = grads
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _, _ = ctx.needs_input_grad
        x_grad = None
        weight_grad = None
        bias_grad = None
        if needs_weight:
            factors = Factors(output_grad.detach(), x.detach(), ctx.block)
            if not ctx.collector.accept(weight, factors):
                weight_grad = _pad(output_grad.t() @ x, weight, ctx.block)
        if needs_x:
            x_grad = output_grad @ _cut(weight, ctx.block)
        if needs_bias:
            bias_grad = output_grad.sum(0)
        return x_grad, weight_grad, bias_grad, None, None


def _cut(weight: Tensor, block: Block) -> Tensor:
    """A block of a weight."""
    if block == WHOLE:
        return weight
    return weight[block.rows, block.columns]


def _pad(part: Tensor, weight: Tensor, block: Block) -> Tensor:
    """A block of a weight with zeros around it."""
    if block == WHOLE:
        return part
    height, width = weight.shape
    top, bottom, _ = block.rows.indices(height)
    left, right, _ = block.columns.indices(width)
    return F.pad(part, (left, width - right, top, height - bottom))
