"""A module without its parameters: ``net(w, x)`` runs it with those in ``w``."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.core.tree import Params
from fedtailor.models.constants import list_twins, move_constants
from fedtailor.models.factored_linear import Collector, replace_linear_layers
from fedtailor.models.layers import drop_counters, is_own
from fedtailor.training.client_data import Batch
from fedtailor.training.draws import RepeatableDraws


class Template:
    """A module on the meta device, where a forgotten parameter fails loudly.

    It knows whether it trains or predicts, and which buffers a training forward may write:
    those of the
    model being trained, known by identity. The statistics of a frozen or borrowed model stay as
    they
    are.

    Attributes:
        module: the module that runs, with parameters bound into it for every call.
        blank: a copy into which nothing is ever bound, for shapes.
        buffers, parameters, parts: names.
        layout: how images should lie in memory.
        draws: gives an own network's dropout the run's random numbers.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        module = copy.deepcopy(module)  # the caller's stays as it is
        drop_counters(module)
        move_constants(module, device, dtype or torch.get_default_dtype())
        # how an own network draws random numbers
        self.draws = RepeatableDraws() if is_own(module) else None
        self.module = module.to("meta")
        self.blank = copy.deepcopy(self.module)
        self.buffers = frozenset(name for name, _ in module.named_buffers())
        self.parameters = frozenset(name for name, _ in module.named_parameters())
        self.parts = frozenset(name for name, _ in module.named_modules() if name)
        self.layout = choose_layout(module)
        self.training = False
        self.writable = frozenset[int]()  # ids of the buffers that training may write
        self._modules = list(module.modules())
        self._linear = replace_linear_layers(self.module)
        self._embeddings = [m for m in self._modules if isinstance(m, nn.Embedding)]
        self._set_training(False)

    def _set_training(self, training: bool) -> None:
        self.training = training
        for module in self._modules:
            # nn.Module.__setattr__ would look for parameters first, every time
            module.__dict__["training"] = training

    @contextmanager
    def train(self, buffers: Iterable[Tensor]) -> Iterator[None]:
        """Training mode, in which the given buffers are updated."""
        was_training = self.training
        was_writable = self.writable
        self._set_training(True)
        self.writable = frozenset(map(id, buffers))
        try:
            yield
        finally:
            if not was_training:
                self._set_training(False)
            self.writable = was_writable

    def begin_step(self, batch: Batch) -> None:
        """What a forward draws at random from now on belongs to this batch."""
        if self.draws is not None:
            self.draws.begin(batch.rng)

    @contextmanager
    def differentiate(
        self, buffers: Iterable[Tensor], collector: Collector, *, sparse: bool
    ) -> Iterator[None]:
        """Training mode for plain autograd: with ``collector``, and sparse gradients."""
        with self.train(buffers), self.sparse(sparse), self.collect(collector):
            yield

    @contextmanager
    def sparse(self, wanted: bool) -> Iterator[None]:
        """Whether gradients of word vectors are sparse; gradients of gradients cannot be."""
        before = [embedding.sparse for embedding in self._embeddings]
        for embedding in self._embeddings:
            embedding.sparse = wanted
        try:
            yield
        finally:
            for embedding, was_sparse in zip(self._embeddings, before, strict=True):
                embedding.sparse = was_sparse

    @contextmanager
    def collect(self, collector: Collector) -> Iterator[None]:
        """Gradients of large linear layers go to ``collector``, in factors."""
        before = [layer.collector for layer in self._linear]
        for layer in self._linear:
            layer.__dict__["collector"] = collector
        try:
            yield
        finally:
            for layer, previous in zip(self._linear, before, strict=True):
                layer.__dict__["collector"] = previous


def choose_layout(module: nn.Module) -> torch.memory_format:
    """How images lie in memory: channels last with 2-D convolutions and no normalisation, where
    it pays.

    A function of the network alone, so that executors that promise equal bits compute alike.
    Parameters
    stay as they are: convolutions follow their input.
    """
    kinds = {type(m) for m in module.modules()}
    normalises = bool(kinds & {nn.BatchNorm2d, nn.GroupNorm})
    if nn.Conv2d in kinds and not normalises:
        return torch.channels_last
    return torch.contiguous_format


# a layer's own dict, the key in it, the full name
Binding = tuple[dict[str, Any], str, str]


class Net:
    """One module of a template, or a part of it."""

    def __init__(self, template: Template, name: str = "") -> None:
        self._template = template
        self._name = name
        self._module = template.module.get_submodule(name)
        self._parts: dict[str, Net] = {}
        self._parameters: list[Binding] = []
        self._buffers: list[Binding] = []
        prefix = name + "." if name else ""
        for path, module in self._module.named_modules():
            start = f"{prefix}{path}." if path else prefix
            self._parameters += _bindings(module._parameters, start)
            self._buffers += _bindings(module._buffers, start)
        mine = set(self._module.modules())
        for layer, key, full_name in list_twins(template.module):
            if layer in mine:
                self._parameters.append((layer.__dict__, key, full_name))

    def __getattr__(self, name: str) -> Net:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._parts:
            full_name = f"{self._name}.{name}" if self._name else name
            self._parts[name] = Net(self._template, full_name)
        return self._parts[name]

    def __call__(self, w: Params, *inputs: Any) -> Any:
        """Run it with the parameters in ``w``.

        Parameters are bound by name straight into the module: ``torch.func.functional_call``
        without its
        overhead.
        """
        template = self._template
        try:
            for owner, key, name in self._parameters:
                owner[key] = w[name]
            for owner, key, name in self._buffers:
                value = w[name]
                is_read_only = template.training and id(value) not in template.writable
                owner[key] = value.clone() if is_read_only else value
        except KeyError as missing:
            raise KeyError(
                f"the network needs {missing}, which is not among the given parameters"
            ) from None
        draws = template.draws
        if draws is None:
            return self._module(*inputs)
        draws.is_training = template.training
        with draws:
            return self._module(*inputs)


def _bindings(owned: dict[str, Any], start: str) -> list[Binding]:
    """Where the values of one layer are bound, and their full names."""
    return [
        (owned, key, start + key) for key, value in owned.items() if value is not None
    ]
