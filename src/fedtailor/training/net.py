"""A module without its parameters: ``net(w, x)`` runs it with those in ``w``, ``net.base(w, x)`` a part of it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.core.tree import Params
from fedtailor.models.factored_linear import Collector, replace_linear_layers
from fedtailor.models.layers import drop_counters


class Template:
    """A module used as a template: it is on the meta device, so that a forgotten parameter fails loudly.

    It knows whether it trains or predicts, and which buffers a training forward may write: those of the model being
    trained (told by identity). The statistics of a frozen or borrowed model stay as they are.
    """

    def __init__(self, module: nn.Module) -> None:
        module = copy.deepcopy(
            module
        )  # the caller's is never run, so it can be made into a template again
        drop_counters(module)
        self.module = module.to("meta")
        self.blank = copy.deepcopy(
            self.module
        )  # nothing is ever bound into this one: shapes as they were built
        self.buffers = frozenset(k for k, _ in module.named_buffers())
        self.parameters = frozenset(k for k, _ in module.named_parameters())
        self._all = list(module.modules())
        self.layout = layout(module)
        self._dense = replace_linear_layers(self.module)
        self._tables = [m for m in self._all if isinstance(m, nn.Embedding)]
        self.training, self.live = False, frozenset[int]()
        self._set(False)

    def _set(self, training: bool) -> None:
        self.training = training
        for m in self._all:
            m.__dict__["training"] = (
                training  # nn.Module.__setattr__ looks for parameters first, every time
            )

    @contextmanager
    def sparse(self, wanted: bool) -> Iterator[None]:
        """Whether gradients of word vectors name only the words that occur; a gradient of a gradient cannot."""
        before = [m.sparse for m in self._tables]
        for m in self._tables:
            m.sparse = wanted
        try:
            yield
        finally:
            for m, was in zip(self._tables, before, strict=True):
                m.sparse = was

    @contextmanager
    def collect(self, collector: Collector) -> Iterator[None]:
        """Gradients of large linear layers go to ``collector``."""
        before = [m.collector for m in self._dense]
        for m in self._dense:
            m.__dict__["collector"] = collector
        try:
            yield
        finally:
            for m, was in zip(self._dense, before, strict=True):
                m.__dict__["collector"] = was

    @contextmanager
    def train(self, buffers: Iterable[Tensor]) -> Iterator[None]:
        """Training mode, in which the given buffers are updated."""
        before = self.training, self.live
        self._set(True)
        self.live = frozenset(map(id, buffers))
        try:
            yield
        finally:
            if before[0] is not True:
                self._set(before[0])
            self.live = before[1]


def layout(module: nn.Module) -> torch.memory_format:
    """How images lie in memory: channels last where that is faster: with 2-D convolutions and no normalisation.

    A function of the network alone, so that all executors that promise equal bits compute alike. The parameters stay
    as they are: convolutions follow their input.
    """
    kinds = {type(m) for m in module.modules()}
    last = nn.Conv2d in kinds and not kinds & {nn.BatchNorm2d, nn.GroupNorm}
    return torch.channels_last if last else torch.contiguous_format


class Net:
    """One (sub)module of a template."""

    def __init__(self, template: Template, name: str = "") -> None:
        self._template, self._name = template, name
        self._module = template.module.get_submodule(name)
        prefix = name + "." if name else ""
        self._slots: list[tuple[dict[str, Any], str, str]] = []
        self._stats: list[tuple[dict[str, Any], str, str]] = []
        for path, m in self._module.named_modules():
            full = prefix + path + "." if path else prefix
            self._slots += [
                (m._parameters, k, full + k) for k, p in m._parameters.items() if p is not None
            ]
            self._stats += [
                (m._buffers, k, full + k) for k, b in m._buffers.items() if b is not None
            ]
        self._parts: dict[str, Net] = {}

    def __getattr__(self, name: str) -> Net:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._parts:
            self._parts[name] = Net(self._template, f"{self._name}.{name}" if self._name else name)
        return self._parts[name]

    def __call__(self, w: Params, *args: Any) -> Any:
        """Run it. Parameters are bound by name straight into the module: functional_call, minus its overhead."""
        template = self._template
        try:
            for store, key, full in self._slots:
                store[key] = w[full]
            for store, key, full in self._stats:
                b = w[full]
                store[key] = b.clone() if template.training and id(b) not in template.live else b
        except KeyError as missing:
            raise KeyError(
                f"the network needs {missing}, which is not among the given parameters"
            ) from None
        return self._module(*args)
