"""First values of parameters and buffers, distributed as PyTorch's own defaults but drawn from an Rng."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fedtailor.core.rng import Rng
from fedtailor.models.layers import COUNTER

Rule: TypeAlias = Callable[[tuple[int, ...], Rng], Tensor]

WEIGHTED = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
NORMALISING = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.GroupNorm, nn.LayerNorm, nn.RMSNorm),
)
GIVEN = "_given"  # attribute under which a module carries its own first values


def own_tensors(m: nn.Module) -> dict[str, Tensor]:
    """What ``m`` itself adds to ``state_dict``, without BatchNorm's counter of batches."""
    buffers = {
        k: b for k, b in m.named_buffers(recurse=False) if k not in m._non_persistent_buffers_set
    }
    return {
        k: v
        for k, v in {**dict(m.named_parameters(recurse=False)), **buffers}.items()
        if k != COUNTER
    }


def remember(module: nn.Module) -> None:
    """Let all submodules carry the values that no rule can draw, safe from a later move to the meta device."""
    for m in module.modules():
        values = {
            k: v.detach().clone()
            for k, v in own_tensors(m).items()
            if rule(m, k) is None and v.device.type != "meta"
        }
        if values:
            m.__dict__[GIVEN] = m.__dict__.get(GIVEN, {}) | values


def draw(m: nn.Module, key: str, tensor: Tensor, rng: Rng) -> Tensor:
    """The first value of parameter or buffer ``key`` of ``m``: the module's wish, PyTorch's rule or the given value."""
    shape = tuple(tensor.shape)
    wish: Callable[[str, tuple[int, ...], Rng], Tensor | None] | None = getattr(m, "fresh", None)
    if wish is not None and (wanted := wish(key, shape, rng)) is not None:
        return wanted
    if (stock := rule(m, key)) is not None:
        return stock(shape, rng)
    value: Tensor = m.__dict__.get(GIVEN, {}).get(key, tensor).detach()
    if value.device.type == "meta":
        raise TypeError(
            f"no rule for the first value of '{key}' in {type(m).__name__}: give it a method 'fresh'"
        )
    dtype = torch.get_default_dtype() if value.is_floating_point() else value.dtype
    return value.to(device=rng.device, dtype=dtype, copy=True)


def rule(m: nn.Module, key: str) -> Rule | None:
    """How PyTorch draws ``key`` of ``m``; None where the layer is not PyTorch's."""
    if (
        isinstance(m, NonDynamicallyQuantizableLinear) and key == "bias"
    ):  # the way out of MultiheadAttention
        return _constant(0.0)
    if isinstance(m, WEIGHTED) and key in ("weight", "bias"):  # kaiming_uniform with a = sqrt(5)
        return _uniform(1 / math.sqrt(math.prod(m.weight.shape[1:])))
    if isinstance(m, nn.Bilinear) and key in ("weight", "bias"):
        return _uniform(1 / math.sqrt(m.in1_features))
    if isinstance(m, nn.RNNBase | nn.RNNCellBase) and key.startswith(("weight_", "bias_")):
        return _uniform(1 / math.sqrt(m.hidden_size))
    if isinstance(m, nn.Embedding | nn.EmbeddingBag) and key == "weight":
        return _embedding(m.padding_idx)
    if isinstance(m, NORMALISING) and key in ("weight", "bias", "running_mean", "running_var"):
        return _constant(1.0 if key in ("weight", "running_var") else 0.0)
    if isinstance(m, nn.PReLU) and key == "weight":
        return _constant(m.init)
    if isinstance(m, nn.MultiheadAttention):
        return _attention(key)
    return None


def _constant(value: float) -> Rule:
    return lambda shape, rng: torch.full(
        shape, value, device=rng.device, dtype=torch.get_default_dtype()
    )


def _uniform(bound: float) -> Rule:
    return lambda shape, rng: (rng.uniform(*shape) * 2 - 1) * bound


def _embedding(padding: int | None) -> Rule:
    if padding is None:
        return lambda shape, rng: rng.normal(*shape)
    return lambda shape, rng: rng.normal(*shape).index_fill(
        0, torch.tensor([padding], device=rng.device), 0.0
    )


def _attention(key: str) -> Rule | None:
    if key.endswith("proj_weight"):  # xavier_uniform
        return lambda shape, rng: (
            (rng.uniform(*shape) * 2 - 1) * math.sqrt(6 / (shape[0] + shape[1]))
        )
    if key in ("bias_k", "bias_v"):  # xavier_normal of a (1, 1, K) tensor
        return lambda shape, rng: rng.normal(*shape) / math.sqrt(shape[2])
    return _constant(0.0) if key == "in_proj_bias" else None
