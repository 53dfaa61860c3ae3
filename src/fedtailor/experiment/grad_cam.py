"""Grad-CAM: where in an image a client's model looks, all of it or with one of its heads active.

Selvaraju et al., Grad-CAM, ICCV 2017: a class's gradient with respect to the maps of the last
convolution, averaged over places, weighs the maps; what is positive in their sum is the picture.
FedCP's Fig. 3 shows it with the global or the personal head alone. The head that is not active
gives zeros; as logits are the sum of both heads', the gradient is the other head's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.errors import UserError
from fedtailor.experiment.finished_run import PersonalModel
from fedtailor.experiment.personal_module import PersonalModule
from fedtailor.method_types import keep_type

WHOLE = "whole model"
GLOBAL = "global head"
PERSONAL = "personal head"


@dataclass(frozen=True)
class Maps:
    """What Grad-CAM found for some images."""

    classes: Tensor  # that the whole model predicts, and whose gradients these are
    maps: dict[str, Tensor]  # by active part: (images, height, width), from 0 to 1
    layer: str  # the convolution


def explain_images(model: PersonalModel, x: Tensor) -> Maps:
    """Grad-CAM of the class that the whole model predicts, for a batch of images."""
    module = model.module()
    network = module.network
    if x.dim() != 4:
        raise UserError("Grad-CAM needs images; these inputs have another shape")
    with watch_outputs(network) as seen:
        logits = module(x)
    layer = find_last_convolution(network, seen)
    classes = logits.argmax(-1)
    maps = {}
    for name, silent in name_heads(module, seen, logits).items():
        maps[name] = draw_maps(module, layer, silent, x, classes)
    return Maps(classes, maps, layer)


def draw_maps(
    module: PersonalModule, layer: str, silent: Sequence[str], x: Tensor, y: Tensor
) -> Tensor:
    """The maps of one class an image, while some heads give zeros."""
    network = module.network
    kept: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        kept.append(output)
        return output.clone()  # what follows may write into it

    handles = [network.get_submodule(layer).register_forward_hook(keep)]
    for name in silent:
        handles.append(network.get_submodule(name).register_forward_hook(give_zeros))
    try:
        logits = module(x)
    finally:
        for handle in handles:
            handle.remove()
    score = logits.gather(1, y[:, None]).sum()
    (gradient,) = torch.autograd.grad(score, kept[-1])
    weights = gradient.mean((2, 3), keepdim=True)
    rough = (weights * kept[-1]).sum(1, keepdim=True).relu()
    maps = F.interpolate(rough, x.shape[2:], mode="bilinear", align_corners=False)
    largest = maps.amax((1, 2, 3), keepdim=True).clamp(min=1e-12)
    return (maps / largest)[:, 0].detach()


def give_zeros(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    """What a head gives that is not active."""
    return torch.zeros_like(output)


# ---------------------------------------------------------------- which layer, which heads
@contextmanager
def watch_outputs(network: nn.Module) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """Names of the modules that run, in order, with the shapes of what they give."""
    seen: list[tuple[str, tuple[int, ...]]] = []

    def note(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                seen.append((name, tuple(output.shape)))

        return hook

    handles = [
        child.register_forward_hook(note(name))
        for name, child in network.named_modules()
        if name
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def find_last_convolution(
    network: nn.Module, seen: Sequence[tuple[str, tuple[int, ...]]]
) -> str:
    """The last convolution that gave maps with more than one place."""
    found = ""
    for name, shape in seen:
        layer = network.get_submodule(name)
        has_places = len(shape) == 4 and shape[2] * shape[3] > 1
        if isinstance(layer, nn.Conv2d) and has_places:
            found = name
    if not found:
        raise UserError(
            "Grad-CAM needs a convolution over images, and this network runs none;"
            " take a CNN (--model cnn, resnet18 ...)"
        )
    return found


def name_heads(
    module: PersonalModule,
    seen: Sequence[tuple[str, tuple[int, ...]]],
    logits: Tensor,
) -> dict[str, tuple[str, ...]]:
    """By what is active, the heads that are not.

    Heads are the parts of the network that give logits, each from features of its own. Where
    there are two, the personal one is the one that the method keeps at the client.
    """
    shape = tuple(logits.shape)
    heads = [name for name, given in seen if given == shape and "." not in name]
    private = set(getattr(keep_type(module.method), "_fields", ()))
    personal = [name for name in heads if name in private]
    shared = [name for name in heads if name not in private]
    if len(personal) != 1 or len(shared) != 1:
        return {WHOLE: ()}
    return {GLOBAL: tuple(personal), PERSONAL: tuple(shared), WHOLE: ()}
