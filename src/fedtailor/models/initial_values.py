"""First values of parameters and buffers, drawn from an Rng.

They are distributed as PyTorch's defaults, and where an architecture asks for it as He et al.'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fedtailor.core.rng import Rng
from fedtailor.models.layers import COUNTER

Shape: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[Shape, Rng], Tensor]

WEIGHTED = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMALISING = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)
ONES = ("weight", "running_var")  # of a normalising layer
ZEROS = ("bias", "running_mean")
GIVEN = "_given"  # attribute under which a module carries values that no rule can draw
STARTS_GIVEN = "_starts_given"  # attribute: the values it carries are the first ones
OWN_RULE = "fresh"  # method by which a module draws its own first values


def own_tensors(m: nn.Module) -> dict[str, Tensor]:
    """What ``m`` itself adds to ``state_dict``, without BatchNorm's counter of batches."""
    found: dict[str, Tensor] = dict(m.named_parameters(recurse=False))
    for name, buffer in m.named_buffers(recurse=False):
        if name not in m._non_persistent_buffers_set and name != COUNTER:
            found[name] = buffer
    return found


def keep_given_values(module: nn.Module) -> None:
    """Let submodules carry the values that no rule can draw.

    A later move to the meta device does not lose them.
    """
    for m in module.modules():
        values: dict[str, Tensor] = {}
        for name, tensor in own_tensors(m).items():
            if find_rule(m, name) is None and tensor.device.type != "meta":
                values[name] = tensor.detach().clone()
        if values:
            m.__dict__[GIVEN] = m.__dict__.get(GIVEN, {}) | values


def start_from_given_values(network: nn.Module) -> None:
    """Let all layers carry their present values, as the first ones of every run."""
    for m in network.modules():
        values = {name: tensor.detach() for name, tensor in own_tensors(m).items()}
        if values:
            m.__dict__[GIVEN] = m.__dict__.get(GIVEN, {}) | values
            m.__dict__[STARTS_GIVEN] = True


def use_he_values(module: nn.Module) -> None:
    """Let all convolutions in ``module`` draw He's first values, by fan-out.

    He et al., Delving Deep into Rectifiers, ICCV 2015, Eq. (14), as torchvision's ResNets do.
    """
    for m in module.modules():
        if isinstance(m, CONVOLUTIONS):
            m.__dict__[OWN_RULE] = draw_he_normal


def draw_he_normal(name: str, shape: Shape, rng: Rng) -> Tensor | None:
    """Weights of a convolution with variance 2 / fan-out; nothing else is decided here."""
    if name != "weight":
        return None
    outputs, _, *kernel = shape
    fan_out = outputs * math.prod(kernel)
    return rng.normal(*shape) * math.sqrt(2 / fan_out)


def draw_value(
    m: nn.Module, name: str, tensor: Tensor, rng: Rng, *, anew: bool = False
) -> Tensor:
    """The first value of parameter or buffer ``name`` of ``m``.

    It is the given one in a network that starts from its values (but for what is drawn ``anew``),
    else what the module's own method ``fresh`` gives, else drawn by PyTorch's rule, else the value
    that the module had when it was built.
    """
    if m.__dict__.get(STARTS_GIVEN) and not anew:
        return _given_value(m, name, tensor, rng)
    shape = tuple(tensor.shape)
    own: Callable[[str, Shape, Rng], Tensor | None] | None = getattr(m, OWN_RULE, None)
    if own is not None:
        wanted = own(name, shape, rng)
        if wanted is not None:
            return wanted
    rule = find_rule(m, name)
    if rule is not None:
        return rule(shape, rng)
    return _given_value(m, name, tensor, rng)


def _given_value(m: nn.Module, name: str, tensor: Tensor, rng: Rng) -> Tensor:
    """The value that a module had when it was built, in the run's precision."""
    given: dict[str, Tensor] = m.__dict__.get(GIVEN, {})
    value = given.get(name, tensor).detach()
    if value.device.type == "meta":
        raise TypeError(
            f"no rule for the first value of '{name}' in {type(m).__name__}:"
            " give it a method 'fresh'"
        )
    dtype = torch.get_default_dtype() if value.is_floating_point() else value.dtype
    return value.to(device=rng.device, dtype=dtype, copy=True)


def find_rule(m: nn.Module, name: str) -> Rule | None:
    """How PyTorch draws ``name`` of ``m``; None where the layer is not PyTorch's."""
    if isinstance(m, NonDynamicallyQuantizableLinear) and name == "bias":
        return _constant(0.0)  # the output layer of MultiheadAttention
    if isinstance(m, WEIGHTED) and name in ("weight", "bias"):
        fan_in = math.prod(m.weight.shape[1:])
        return _uniform(1 / math.sqrt(fan_in))  # kaiming_uniform with a = sqrt(5)
    if isinstance(m, nn.Bilinear) and name in ("weight", "bias"):
        return _uniform(1 / math.sqrt(m.in1_features))
    if isinstance(m, nn.RNNBase | nn.RNNCellBase) and name.startswith(
        ("weight_", "bias_")
    ):
        return _uniform(1 / math.sqrt(m.hidden_size))
    if isinstance(m, nn.Embedding | nn.EmbeddingBag) and name == "weight":
        return _embedding(m.padding_idx)
    if isinstance(m, NORMALISING) and name in ONES:
        return _constant(1.0)
    if isinstance(m, NORMALISING) and name in ZEROS:
        return _constant(0.0)
    if isinstance(m, nn.PReLU) and name == "weight":
        return _constant(m.init)
    if isinstance(m, nn.MultiheadAttention):
        return _attention(name)
    return None


def _constant(value: float) -> Rule:
    def fill(shape: Shape, rng: Rng) -> Tensor:
        return torch.full(
            shape, value, device=rng.device, dtype=torch.get_default_dtype()
        )

    return fill


def _uniform(bound: float) -> Rule:
    def draw(shape: Shape, rng: Rng) -> Tensor:
        return (rng.uniform(*shape) * 2 - 1) * bound

    return draw


def _embedding(padding: int | None) -> Rule:
    def draw(shape: Shape, rng: Rng) -> Tensor:
        vectors = rng.normal(*shape)
        if padding is None:
            return vectors
        row = torch.tensor([padding], device=rng.device)
        return vectors.index_fill(0, row, 0.0)

    return draw


def _attention(name: str) -> Rule | None:
    """Rules of MultiheadAttention's own parameters."""
    if name.endswith("proj_weight"):
        return _draw_xavier_uniform
    if name in ("bias_k", "bias_v"):
        return _draw_attention_bias
    if name == "in_proj_bias":
        return _constant(0.0)
    return None


def _draw_xavier_uniform(shape: Shape, rng: Rng) -> Tensor:
    bound = math.sqrt(6 / (shape[0] + shape[1]))
    return (rng.uniform(*shape) * 2 - 1) * bound


def _draw_attention_bias(shape: Shape, rng: Rng) -> Tensor:
    """Xavier's normal distribution for a tensor of shape (1, 1, K)."""
    return rng.normal(*shape) / math.sqrt(shape[2])
