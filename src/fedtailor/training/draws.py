"""Dropout and the like from the run's own random numbers, under every executor.

While an own network runs, PyTorch hands every call of its functions to ``RepeatableDraws``. Those
that drop at random get a mask of the batch's stream, so that the same seed drops the same, one
client at a time or many under ``vmap``; a network that predicts drops nothing. What draws in ways
that are not known here is refused by name.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Rng

DROPS = 0x44524F50  # keeps these streams apart from what a loss draws from batch.rng
# what a SELU tends to, -lambda alpha: Klambauer et al., Self-Normalizing Neural Networks, 2017
SELU_FLOOR = -1.0507009873554805 * 1.6732632423543772
# of torch, of Tensor or of torch.nn.functional: no run could repeat them
UNREPEATABLE = frozenset(
    (
        "bernoulli",
        "cauchy_",
        "exponential_",
        "fractional_max_pool2d",
        "fractional_max_pool3d",
        "geometric_",
        "gumbel_softmax",
        "log_normal_",
        "multinomial",
        "normal",
        "normal_",
        "poisson",
        "rand",
        "randint",
        "randint_like",
        "randn",
        "random_",
        "randperm",
        "rrelu",
        "rrelu_",
        "uniform_",
    )
)


class RepeatableDraws(TorchFunctionMode):
    """Replaces the random functions of PyTorch while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.is_training = False
        self._stream = Rng()
        self._drawn = 0
        self._known: dict[Any, Callable[..., Any]] = {
            F.dropout: self._drop,
            torch.dropout: self._drop,
            torch.dropout_: self._drop,
            F.dropout1d: self._drop_channels_1d,
            F.dropout2d: self._drop_channels,
            F.dropout3d: self._drop_channels_3d,
            F.alpha_dropout: self._drop_alpha,
            F.feature_alpha_dropout: self._drop_alpha_channels,
            F.scaled_dot_product_attention: self._attend,
            F.multi_head_attention_forward: self._attend_with_heads,
            Tensor.bernoulli_: self._bernoulli,
            torch.rand_like: self._rand_like,
            torch.randn_like: self._randn_like,
        }

    def begin(self, stream: Rng) -> None:
        """What is drawn from now on comes from this stream."""
        self._stream = stream.fold(DROPS)
        self._drawn = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> RepeatableDraws:
        """Another one: a mode holds nothing but the position in its stream."""
        return RepeatableDraws()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What PyTorch calls instead of a function of its own."""
        replacement = self._known.get(func)
        if replacement is not None:
            return replacement(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in UNREPEATABLE and _draws(name, args, kwargs or {}):
            raise UserError(
                f"the network draws with torch's '{name}', which no run could repeat:"
                " take nn.Dropout, torch.rand_like or torch.randn_like"
            )
        return func(*args, **(kwargs or {}))

    # ---------------------------------------------------------------- random numbers
    def _next(self) -> Rng:
        self._drawn += 1
        return self._stream.fold(self._drawn)

    def _mask(self, shape: Sequence[int], x: Tensor, p: float) -> Tensor:
        """1 where a value is kept, with probability 1 - p."""
        kept = self._next().uniform(*shape) >= p
        return kept.to(x.dtype)

    def _needs_training(self, name: str) -> None:
        if not self.is_training:
            raise UserError(
                f"the network draws with '{name}' when it predicts: let it draw in"
                " training only (if self.training)"
            )

    def _rand_like(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        self._needs_training("torch.rand_like")
        return self._next().uniform(*x.shape).to(x.dtype)

    def _randn_like(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        self._needs_training("torch.randn_like")
        return self._next().normal(*x.shape).to(x.dtype)

    def _bernoulli(self, x: Tensor, p: float = 0.5, **_: Any) -> Tensor:
        """1 with probability p: how stochastic depth is written."""
        self._needs_training("bernoulli_")
        return self._mask(x.shape, x, 1 - p)

    # ---------------------------------------------------------------- dropout
    def _drop(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        return self._drop_by(x.shape, x, p, training)

    def _drop_channels(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Whole channels of (N, C, ...)."""
        return self._drop_by(_channels(x, 2), x, p, training)

    def _drop_channels_1d(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Whole channels of (N, C, L) or (C, L)."""
        return self._drop_by(_channels(x, x.dim() - 1), x, p, training)

    def _drop_channels_3d(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Whole channels of (N, C, D, H, W) or (C, D, H, W)."""
        return self._drop_by(_channels(x, x.dim() - 3), x, p, training)

    def _drop_by(
        self, shape: Sequence[int], x: Tensor, p: float, training: bool
    ) -> Tensor:
        """Zero with probability p, and scaled so that the mean stays."""
        if not (training and self.is_training) or p == 0:
            return x
        if p == 1:
            return x * 0
        return x * (self._mask(shape, x, p) / (1 - p))

    def _drop_alpha(
        self, x: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
    ) -> Tensor:
        return self._drop_to_floor(x.shape, x, p, training)

    def _drop_alpha_channels(
        self, x: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
    ) -> Tensor:
        return self._drop_to_floor(_channels(x, 2), x, p, training)

    def _drop_to_floor(
        self, shape: Sequence[int], x: Tensor, p: float, training: bool
    ) -> Tensor:
        """Set to SELU's floor, then moved so that mean 0 and variance 1 stay."""
        if not (training and self.is_training) or p == 0:
            return x
        if p == 1:
            return x * 0
        kept = self._mask(shape, x, p)
        scale = 1 / math.sqrt((1 - p) * (1 + p * SELU_FLOOR**2))
        shift = -scale * SELU_FLOOR * p
        return (x * kept + SELU_FLOOR * (1 - kept)) * scale + shift

    # ---------------------------------------------------------------- attention
    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        """softmax(Q K^T / sqrt(d)) V; written out where weights are dropped, or clients mapped."""
        if not self.is_training:
            dropout_p = 0.0
        if not dropout_p and not is_batchedtensor(query):
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, 0.0, is_causal, **options
            )
        if options.get("enable_gqa"):
            groups = query.shape[-3] // key.shape[-3]
            key = key.repeat_interleave(groups, -3)
            value = value.repeat_interleave(groups, -3)
        scale = options.get("scale") or 1 / math.sqrt(query.shape[-1])
        scores = query @ key.transpose(-2, -1) * scale
        if is_causal:
            attn_mask = torch.ones_like(scores, dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        weights = self._drop(scores.softmax(-1), dropout_p)
        return weights @ value

    def _attend_with_heads(self, *args: Any, **kwargs: Any) -> Any:
        """PyTorch's own function, in which dropout and attention are those of this class."""
        original = F.multi_head_attention_forward
        replaced = {
            "dropout": self._drop,
            "scaled_dot_product_attention": self._attend,
            "has_torch_function": _none_of,
        }
        function = types.FunctionType(
            original.__code__,
            {**original.__globals__, **replaced},
            argdefs=original.__defaults__,
        )
        return function(*args, **kwargs)


def _none_of(_: Any) -> bool:
    """No argument brings a function of its own."""
    return False


def _channels(x: Tensor, leading: int) -> list[int]:
    """The shape of a mask of whole channels: the leading sizes of x, then ones."""
    others = x.dim() - leading
    return [*x.shape[:leading], *[1] * others]


def _draws(name: str, args: Sequence[Any], options: dict[str, Any]) -> bool:
    """Whether a call draws: rrelu does in training only."""
    if not name.startswith("rrelu"):
        return True
    place = 3
    return bool(args[place] if len(args) > place else options.get("training"))
