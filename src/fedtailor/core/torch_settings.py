"""The arithmetic of torch as every executor wants it, and as it was afterwards."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

TRIM, MAP = -1, -3  # glibc's names for the two thresholds
KEEP, LARGE = 256 << 20, 32 << 20  # bytes; a larger LARGE is refused


@contextmanager
def torch_settings(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Iterator[None]:
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


def prefer_one_thread() -> None:
    """The arithmetic of every worker: one thread, no time wasted on denormal numbers."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    retain()


@cache
def retain() -> None:
    """Keep freed memory instead of giving it back and faulting it in again; without glibc nothing is done."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(MAP, LARGE)
        libc.mallopt(TRIM, KEEP)
