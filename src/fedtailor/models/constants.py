"""Tensors of an own network that are neither trained nor sent, and names of one shared tensor.

A constant is a frozen parameter, an index, or a buffer that no forward changes. It becomes a plain
attribute of its layer: every client has it, no message holds it, and no mean makes it drift. Of a
parameter that several layers share one layer keeps it, and the others remember whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedtailor.core.errors import Unsupported
from fedtailor.core.tree import Params

CONSTANTS = "_constants"  # in a layer's dict: names of its constants
TWINS = "_twins"  # in a layer's dict: name -> where the parameter is


class Twin(NamedTuple):
    """Where a parameter is that a layer shares."""

    owner: nn.Module
    name: str


def hold_constant(m: nn.Module, name: str) -> None:
    """Make a parameter or a buffer of a layer one of its constants."""
    value = getattr(m, name).detach()
    m._parameters.pop(name, None)
    m._buffers.pop(name, None)
    m._non_persistent_buffers_set.discard(name)
    # not by setattr, which would register it again
    m.__dict__[name] = value
    names = m.__dict__.get(CONSTANTS, ())
    m.__dict__[CONSTANTS] = (*names, name)


def hold_frozen(network: nn.Module) -> None:
    """Make constants of all frozen parameters and all indices."""
    for m in network.modules():
        for name, parameter in list(m.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                hold_constant(m, name)
        for name, buffer in list(m.named_buffers(recurse=False)):
            # an index has no mean over clients
            if not buffer.is_floating_point() and not isinstance(m, _NormBase):
                hold_constant(m, name)


def separate_twins(network: nn.Module) -> None:
    """Of a parameter that several layers share, let one layer have it."""
    first: dict[int, Twin] = {}
    for m in network.modules():
        for name, parameter in list(m.named_parameters(recurse=False)):
            twin = first.setdefault(id(parameter), Twin(m, name))
            if parameter.requires_grad and twin != Twin(m, name):
                del m._parameters[name]
                m.__dict__[name] = parameter.detach()
                m.__dict__[TWINS] = {**m.__dict__.get(TWINS, {}), name: twin}


def list_twins(network: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Layers that share a parameter of another: (layer, its name there, full name)."""
    paths = {m: path for path, m in network.named_modules()}
    for m in network.modules():
        for name, twin in m.__dict__.get(TWINS, {}).items():
            if twin.owner not in paths:
                raise Unsupported(
                    f"'{name}' of a {type(m).__name__} is the same tensor as a"
                    f" {type(twin.owner).__name__}'s, and the method takes them apart"
                )
            path = paths[twin.owner]
            yield m, name, f"{path}.{twin.name}" if path else twin.name


# ---------------------------------------------------------------- by name
def list_constants(network: nn.Module) -> Params:
    """All constants, by their full names."""
    found: Params = {}
    for path, m in network.named_modules():
        start = f"{path}." if path else ""
        for name in m.__dict__.get(CONSTANTS, ()):
            found[start + name] = m.__dict__[name]
    return found


def set_constants(network: nn.Module, values: Params) -> None:
    """Give a network the constants that another one of its class had."""
    for full_name, value in values.items():
        path, _, name = full_name.rpartition(".")
        m = network.get_submodule(path)
        if name not in m.__dict__.get(CONSTANTS, ()):
            hold_constant(m, name)
        m.__dict__[name] = value


def hold_buffers(network: nn.Module, names: Iterable[str]) -> None:
    """Make constants of the buffers with these full names."""
    for full_name in names:
        path, _, name = full_name.rpartition(".")
        hold_constant(network.get_submodule(path), name)


def move_constants(
    network: nn.Module, device: torch.device | str, dtype: torch.dtype
) -> None:
    """Put all constants on a device; those with fractions in this precision."""
    for m in network.modules():
        for name in m.__dict__.get(CONSTANTS, ()):
            value: Tensor = m.__dict__[name]
            wanted = dtype if value.is_floating_point() else value.dtype
            m.__dict__[name] = value.to(device=device, dtype=wanted)
