"""One forward of an own network on a few of the data: whether they fit, and what it writes."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedtailor.core.errors import UserError


def try_network(network: nn.Module, x: Tensor, classes: int, name: str) -> list[str]:
    """Refuse a network that does not fit the data; gives the buffers that no forward changes.

    Args:
        network: it stays as it is.
        x: a few inputs, as the network is given them.
        classes: outputs that it must have.
        name: what the user calls it.
    """
    trial = copy.deepcopy(network).to(torch.get_default_dtype())
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        out = _run(trial.eval(), x, name)
        _check_output(out, x, classes, name)
        return _find_unchanged_buffers(trial.train(), x)


def _run(network: nn.Module, x: Tensor, name: str) -> Tensor:
    try:
        out: Tensor = network(x)
    except Exception as error:
        shape = tuple(x.shape[1:])
        dtype = str(x.dtype).removeprefix("torch.")
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"network {name} cannot take the data's inputs, of shape {shape} ({dtype}):"
            f" {type(error).__name__}: {reason}"
        ) from error
    return out


def _check_output(out: Tensor, x: Tensor, classes: int, name: str) -> None:
    if not isinstance(out, Tensor):
        raise UserError(
            f"network {name} gives a {type(out).__name__}, not a tensor of logits:"
            " wrap it in a module that returns them"
        )
    is_wrong = out.dim() != 2 or len(out) != len(x)
    if is_wrong or out.shape[1] < classes:
        raise UserError(
            f"network {name} makes {tuple(out.shape)} of {len(x)} inputs, and the data"
            f" have {classes} classes: its output must be ({len(x)}, {classes})"
        )


def _find_unchanged_buffers(network: nn.Module, x: Tensor) -> list[str]:
    """Names of the buffers, but those of normalising layers, that training leaves as they are."""
    names: list[str] = []
    for path, m in network.named_modules():
        if isinstance(m, _NormBase):
            continue
        start = f"{path}." if path else ""
        names += [start + name for name, _ in m.named_buffers(recurse=False)]
    before = {name: network.get_buffer(name).clone() for name in names}
    try:
        network(x)
    except Exception:  # the first round will tell
        return []
    return [
        name for name in names if torch.equal(network.get_buffer(name), before[name])
    ]
