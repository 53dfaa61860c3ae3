"""Settings of torch and of the C library's memory under which every executor computes.

They are one thread (the number of threads changes how results round), the run's dtype, no denormal
numbers (which are slow), and freed memory kept for the next batch.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

# glibc's mallopt: https://man7.org/linux/man-pages/man3/mallopt.3.html
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEPT_BYTES = 256 << 20  # free memory above this goes back to the system
# larger blocks are mapped one by one; glibc refuses a higher threshold
MAPPED_BYTES = 32 << 20


@contextmanager
def torch_settings(
    dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Iterator[None]:
    """Compute with these settings inside the block; the caller's own come back after it."""
    dtype_before = torch.get_default_dtype()
    threads_before = torch.get_num_threads()
    torch.set_default_dtype(dtype)
    if device == "cpu":
        torch.set_num_threads(1)
        keep_freed_memory()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype_before)
        torch.set_num_threads(threads_before)
        torch.set_flush_denormal(False)


def apply_worker_settings() -> None:
    """Settings of a worker process, for its whole life; its dtype comes with the work."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()


@cache
def keep_freed_memory() -> None:
    """Let malloc keep freed memory: giving it back and faulting it in again costs every batch.

    Does nothing where the C library is not glibc.
    """
    library, _ = platform.libc_ver()
    if library != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def plain_wanted() -> bool:
    """Whether plain code is to run where there is a faster one that computes the same.

    Asked for by ``FEDTAILOR_PLAIN=1`` in the environment. Results are equal up to rounding.
    """
    return os.environ.get("FEDTAILOR_PLAIN") == "1"
