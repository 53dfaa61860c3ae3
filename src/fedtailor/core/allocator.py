"""The C library's allocator, told what training does: large tensors are freed and wanted again at every step."""

from __future__ import annotations

import ctypes
import platform
from functools import cache

TRIM, MAP = -1, -3  # glibc's names for the two thresholds
KEEP, LARGE = 256 << 20, 32 << 20  # bytes; a larger LARGE is refused


@cache
def retain() -> None:
    """Keep freed memory instead of giving it back and faulting it in again; without glibc nothing is done."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(MAP, LARGE)
        libc.mallopt(TRIM, KEEP)
