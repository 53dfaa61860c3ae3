"""A user's own network as a backbone."""

from __future__ import annotations

import copy
from itertools import chain

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from fedtailor.core.errors import UserError, unknown
from fedtailor.models.backbone import Backbone


def adopt(module: nn.Module, last: str | None = None) -> Backbone:
    """A backbone from a network with the parts ``base`` and ``head``, or from any network and its last linear layer.

    The network is copied. Its architecture counts, not its values: first parameters are drawn anew, except those for
    which PyTorch has no rule (a bare ``nn.Parameter``, a buffer). Registration is taken for forward order.
    """
    if isinstance(module, type):
        raise UserError(
            f"{module.__name__} is a class, not a network: give an instance, {module.__name__}(...)"
        )
    if not isinstance(module, nn.Module):
        raise UserError(f"a network is an instance of torch.nn.Module, not of {_class(module)}")
    try:
        net = copy.deepcopy(module)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"network {_class(module)} cannot be copied, build it from copyable parts: {reason}"
        ) from error
    _check_parameters(net)
    _check_layers(net)
    _settle(net)
    if isinstance(net, Backbone) and last is None:
        return net
    base, head, path = _split_parts(net) if last is None else _split_layer(net, last)
    features = next(m.in_features for m in head.modules() if isinstance(m, nn.Linear))
    return Backbone(base, head, features=features, last=path)


def _split_layer(net: nn.Module, last: str) -> tuple[nn.Module, nn.Module, str]:
    """The network without its last layer, that layer, and its new name."""
    modules = {name: m for name, m in net.named_modules() if name}
    if last not in modules:
        raise unknown(f"layer in network {_class(net)} named", last, modules)
    head = modules[last]
    if not isinstance(head, nn.Linear):
        raise UserError(
            f"layer '{last}' of network {_class(net)} is a {_class(head)}: name the last Linear layer"
        )
    end = _read_end(net, (last,), 1)
    if end and end != [last]:
        mend = "name the layer whose output is returned, and leave softmax to the loss"
        raise UserError(
            f"network {_class(net)} ends with '{end[0]}', not with layer '{last}': {mend}"
        )
    net.set_submodule(last, nn.Identity())
    return net, head, "head"


def _split_parts(net: nn.Module) -> tuple[nn.Module, nn.Module, str]:
    """Base, head, and the name of the last linear layer."""
    linears = [name for name, m in net.named_modules() if isinstance(m, nn.Linear)]
    if isinstance(net, nn.Linear):
        return nn.Identity(), net, "head"
    base, head = getattr(net, "base", None), getattr(net, "head", None)
    if not isinstance(base, nn.Module) or not isinstance(head, nn.Module):
        example = f", such as '{linears[-1]}'" if linears else ""
        raise UserError(
            f"network {_class(net)} has no parts 'base' and 'head': name its last linear layer{example}"
        )
    outside = [k for k in net.state_dict() if not k.startswith(("base.", "head."))]
    if outside:
        raise UserError(
            f"network {_class(net)} has '{outside[0]}' outside of 'base' and 'head': move it into one"
        )
    inside = [name for name in linears if name == "head" or name.startswith("head.")]
    if not inside:
        raise UserError(
            f"the head of network {_class(net)} has no Linear layer: let it end with one"
        )
    end = _read_end(net, ("base", "head"), 3)
    if end and end != ["head", "base", "input"]:
        stray = next((a for a, b in zip(end, ["head", "base"], strict=False) if a != b), end[-1])
        raise UserError(
            f"network {_class(net)} is not head(base(x)): move '{stray}' into its base or head"
        )
    return base, head, inside[-1]


def _check_parameters(net: nn.Module) -> None:
    """Refuse parameters that cannot be values of their own."""
    first: dict[int, str] = {}
    for name, p in net.named_parameters(remove_duplicate=False):
        what = f"parameter '{name}' of network {_class(net)}"
        if is_lazy(p):
            raise UserError(f"{what} has no shape yet: run the network once on an example before")
        if not p.requires_grad:
            raise UserError(
                f"{what} is frozen: make it a buffer (register_buffer) or set its requires_grad to True"
            )
        if first.setdefault(id(p), name) != name:
            raise UserError(f"{what} is the same tensor as '{first[id(p)]}': give each its own")


def _check_layers(net: nn.Module) -> None:
    """Refuse layers whose behaviour hangs on more than parameters, buffers and input."""
    for name, m in net.named_modules():
        what = f"layer '{name}' of network {_class(net)}"
        if isinstance(m, _BatchNorm) and m.momentum is None and m.track_running_stats:
            raise UserError(f"{what} counts its batches: give {_class(m)} a momentum, such as 0.1")
        if isinstance(m, _DropoutNd) and m.p:
            raise UserError(f"{what} drops at random, which no run could repeat: set its p to 0")
        if isinstance(m, nn.RNNBase | nn.MultiheadAttention) and m.dropout:
            raise UserError(
                f"{what} drops at random, which no run could repeat: set its dropout to 0"
            )


def _settle(net: nn.Module) -> None:
    """Make every value a parameter, a buffer that travels, or a constant; and no layer write into its input."""
    for m in net.modules():
        m._non_persistent_buffers_set.clear()
        for key, buffer in list(m.named_buffers(recurse=False)):
            if not buffer.is_floating_point() and not isinstance(
                m, _NormBase
            ):  # an index has no mean over clients
                delattr(m, key)
                setattr(m, key, buffer)
        if (
            getattr(m, "inplace", False) is True
        ):  # features are read again after the head has seen them
            m.__dict__["inplace"] = False


class _Tracer(fx.Tracer):
    """Records a forward down to the named parts, without looking into them."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        super().__init__()
        self.parts = parts

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.parts or super().is_leaf_module(
            m, module_qualified_name
        )


def _read_end(net: nn.Module, parts: tuple[str, ...], steps: int) -> list[str]:
    """The last steps of the forward, backwards; nothing if it cannot be read without values."""
    try:
        *_, output = _Tracer(parts).trace(net).nodes
    except Exception:  # a forward that looks at values: the user's word has to do
        return []
    names: list[str] = []
    node: object = output.args[0]
    while len(names) < steps and isinstance(node, fx.Node):
        target = "input" if node.op == "placeholder" else node.target
        names.append(target if isinstance(target, str) else target.__name__)
        node = next(chain(node.all_input_nodes, [None]))
    return names or [_class(node)]


def _class(thing: object) -> str:
    return type(thing).__name__
