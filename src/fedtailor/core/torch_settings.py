"""The arithmetic of torch as every executor wants it, and as it was afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedtailor.core.allocator import retain


@contextmanager
def settings(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Iterator[None]:
    """One thread (results depend on how many), a default dtype, and no time wasted on denormal numbers."""
    before = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(dtype)
    if device == "cpu":
        torch.set_num_threads(1)
        retain()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_default_dtype(before[0])
        torch.set_num_threads(before[1])
        torch.set_flush_denormal(False)
