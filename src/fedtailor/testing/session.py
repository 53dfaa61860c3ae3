"""Small runs of one method; a run that several checks need is made once."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedtailor.executors.world import AnyMethod
from fedtailor.filters.tap import Tap, Traffic
from fedtailor.testing.small_world import (
    SmallRun,
    run_one_by_one,
    run_small,
    vectorise_in_blocks,
)


@dataclass(frozen=True)
class Tried:
    """A small run and what was heard of it."""

    run: SmallRun
    traffic: list[Traffic]
    notices: list[str]  # of the executor


class Session:
    """Tries one method, with one set of hyper-parameters.

    Attributes:
        method: the method.
        is_variant: whether its hyper-parameters are not the defaults; then fewer runs are made.
        drew_globally: whether any run has drawn from the global random generators.
    """

    def __init__(self, method: AnyMethod, is_variant: bool = False) -> None:
        self.method = method
        self.is_variant = is_variant
        self.drew_globally = False
        self._tried: dict[tuple[Any, ...], Tried] = {}

    def run(self, **options: Any) -> SmallRun:
        """A run one client after another, with options of ``run_small``."""
        tried = self.try_out(**options)
        return tried.run

    def try_out(self, block: int = 0, **options: Any) -> Tried:
        """A run in this process; under vmap where the size of a block is given."""
        key = (block, *sorted(options.items()))
        if key not in self._tried:
            self._tried[key] = self._try_out(block, options)
        return self._tried[key]

    def _try_out(self, block: int, options: dict[str, Any]) -> Tried:
        executor = vectorise_in_blocks(block) if block else run_one_by_one
        tap = Tap()
        before = read_global_randomness()
        run = run_small(self.method, executor=executor, filters=[tap], **options)
        if read_global_randomness() != before:
            self.drew_globally = True
        return Tried(run, tap.traffic, run.executor.notices())

    def hash_in_processes(self, **options: Any) -> str:
        """The digest of all states after a run in two worker processes."""
        run = run_small(self.method, executor="processes", **options)
        digest = run.hash  # private states are deleted with the executor
        run.executor.close()
        return digest


def read_global_randomness() -> tuple[Any, ...]:
    """The states of the global generators of torch, NumPy and Python."""
    torch_state = torch.get_rng_state()
    numpy_state: Any = np.random.get_state(legacy=False)
    words = numpy_state["state"]["key"].tolist()
    position = numpy_state["state"]["pos"]
    python_state = random.getstate()
    return torch_state.tolist(), words, position, python_state
