"""A user's own network as a backbone."""

from __future__ import annotations

import copy
from typing import NamedTuple

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from fedtailor.core.errors import UserError, unknown
from fedtailor.models.backbone import Backbone
from fedtailor.models.constants import hold_frozen, separate_twins
from fedtailor.models.initial_values import start_from_given_values
from fedtailor.models.layers import mark_as_own


class _Parts(NamedTuple):
    """The two parts of a network, and the name of its last linear layer."""

    base: nn.Module
    head: nn.Module
    last: str
    own_names: dict[str, str]  # what prefixes of names were before


def wrap_own_network(
    module: nn.Module, last: str | None = None, init: str = "given"
) -> Backbone:
    """A backbone from any network and the name of its last linear layer.

    A network with the parts ``base`` and ``head`` needs no name. The network is copied. The order
    of registration is taken for that of the forward. Frozen parameters and indices become constants
    (``models/constants.py``).

    Args:
        module: the network.
        last: the name of its last linear layer.
        init: ``given`` starts from the network's values; ``fresh`` draws anew what PyTorch has a
            rule for (no bare ``nn.Parameter``, no buffer).
    """
    network = _copy_network(module)
    _check_parameters(network)
    _check_layers(network)
    separate_twins(network)
    hold_frozen(network)
    _make_buffers_travel(network)
    _forbid_inplace(network)
    backbone = _make_backbone(network, last)
    if init == "given" and not backbone.kind:
        start_from_given_values(backbone)
    mark_as_own(backbone)
    return backbone


def _make_backbone(network: nn.Module, last: str | None) -> Backbone:
    if isinstance(network, Backbone) and last is None:
        return network
    parts = _split_parts(network) if last is None else _split_layer(network, last)
    first_linear = next(m for m in parts.head.modules() if isinstance(m, nn.Linear))
    return Backbone(
        parts.base,
        parts.head,
        features=first_linear.in_features,
        last=parts.last,
        own_names=parts.own_names,
    )


def _copy_network(module: nn.Module) -> nn.Module:
    if isinstance(module, type):
        name = module.__name__
        raise UserError(
            f"{name} is a class, not a network: give an instance, {name}(...)"
        )
    if not isinstance(module, nn.Module):
        kind = _class_name(module)
        raise UserError(f"a network is an instance of torch.nn.Module, not of {kind}")
    try:
        return copy.deepcopy(module)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"network {_class_name(module)} cannot be copied,"
            f" build it from copyable parts: {reason}"
        ) from error


# ---------------------------------------------------------------- base and head
def _split_layer(network: nn.Module, last: str) -> _Parts:
    """The network without its last layer, and that layer."""
    name = _class_name(network)
    layers = {path: m for path, m in network.named_modules() if path}
    if last not in layers:
        raise unknown(f"layer in network {name} named", last, layers)
    head = layers[last]
    if not isinstance(head, nn.Linear):
        raise UserError(
            f"layer '{last}' of network {name} is a {_class_name(head)}: name the last Linear layer"
        )
    end = _trace_end(network, (last,), steps=1)
    if end and end != [last]:
        raise UserError(
            f"network {name} ends with '{end[0]}', not with layer '{last}':"
            " name the layer whose output is returned, and leave softmax to the loss"
        )
    network.set_submodule(last, nn.Identity())
    return _Parts(network, head, "head", {"base.": "", "head.": f"{last}."})


def _split_parts(network: nn.Module) -> _Parts:
    """The network's own parts ``base`` and ``head``."""
    if isinstance(network, nn.Linear):
        return _Parts(nn.Identity(), network, "head", {"head.": ""})
    name = _class_name(network)
    base = getattr(network, "base", None)
    head = getattr(network, "head", None)
    linears = [path for path, m in network.named_modules() if isinstance(m, nn.Linear)]
    if not isinstance(base, nn.Module) or not isinstance(head, nn.Module):
        example = f", such as '{linears[-1]}'" if linears else ""
        raise UserError(
            f"network {name} has no parts 'base' and 'head': name its last linear layer{example}"
        )
    for key in network.state_dict():
        if not key.startswith(("base.", "head.")):
            raise UserError(
                f"network {name} has '{key}' outside of 'base' and 'head': move it into one"
            )
    in_head = [path for path in linears if path == "head" or path.startswith("head.")]
    if not in_head:
        raise UserError(
            f"the head of network {name} has no Linear layer: let it end with one"
        )
    _check_forward(network)
    return _Parts(base, head, in_head[-1], {})


def _check_forward(network: nn.Module) -> None:
    """Refuse a network whose forward is not ``head(base(x))``, as far as it can be traced."""
    end = _trace_end(network, ("base", "head"), steps=3)
    if not end or end == ["head", "base", "input"]:
        return
    stray = end[-1]
    for step, expected in zip(end, ["head", "base"], strict=False):
        if step != expected:
            stray = step
            break
    raise UserError(
        f"network {_class_name(network)} is not head(base(x)): move '{stray}' into its base or head"
    )


# ---------------------------------------------------------------- what cannot be trained here
def _check_parameters(network: nn.Module) -> None:
    """Refuse parameters without a shape, and a network in which nothing can be trained."""
    name = _class_name(network)
    for path, p in network.named_parameters():
        if is_lazy(p):
            raise UserError(
                f"parameter '{path}' of network {name} has no shape yet:"
                " run the network once on an example before"
            )
    if not any(p.requires_grad for p in network.parameters()):
        raise UserError(
            f"all parameters of network {name} are frozen: there is nothing to train"
        )


def _check_layers(network: nn.Module) -> None:
    """Refuse layers whose behaviour depends on more than parameters, buffers and input."""
    for name, m in network.named_modules():
        what = f"layer '{name}' of network {_class_name(network)}"
        if isinstance(m, _BatchNorm) and m.momentum is None and m.track_running_stats:
            kind = _class_name(m)
            raise UserError(
                f"{what} counts its batches: give {kind} a momentum, such as 0.1"
            )
        if isinstance(m, nn.RNNBase) and m.dropout:
            raise UserError(
                f"{what} drops between its layers, which no run could repeat: set its"
                " dropout to 0, and put nn.Dropout between layers of their own"
            )


# ---------------------------------------------------------------- changes to the copy
def _make_buffers_travel(network: nn.Module) -> None:
    """Make every buffer that is no constant one that is sent and averaged."""
    for m in network.modules():
        m._non_persistent_buffers_set.clear()


def _forbid_inplace(network: nn.Module) -> None:
    """Let no layer write into its input: features are read again after the head has seen them."""
    for m in network.modules():
        if getattr(m, "inplace", False) is True:
            m.__dict__["inplace"] = False


# ---------------------------------------------------------------- how the forward ends
class _Tracer(fx.Tracer):
    """Records a forward down to the named parts, without looking into them."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        super().__init__()
        self.parts = parts

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self.parts:
            return True
        return super().is_leaf_module(m, module_qualified_name)


def _trace_end(network: nn.Module, parts: tuple[str, ...], steps: int) -> list[str]:
    """Names of the forward's last steps, the last first; empty if it cannot be traced.

    A forward that depends on values cannot: then the user is taken at their word.
    """
    try:
        graph = _Tracer(parts).trace(network)
    except Exception:
        return []
    *_, output = graph.nodes
    node: object = output.args[0]
    names: list[str] = []
    while len(names) < steps and isinstance(node, fx.Node):
        names.append(_name_step(node))
        inputs = node.all_input_nodes
        node = inputs[0] if inputs else None
    return names or [_class_name(node)]


def _name_step(node: fx.Node) -> str:
    if node.op == "placeholder":
        return "input"
    return node.target if isinstance(node.target, str) else node.target.__name__


def _class_name(thing: object) -> str:
    return type(thing).__name__
