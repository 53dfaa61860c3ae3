"""Tensors in a file that several processes map: what goes to workers and back is written once."""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core.errors import writing
from fedtailor.core.wire import Flat, split

ALIGN = 64  # bytes
# Containers often have 64 MB of shared memory, which the messages of one round fill.
ENOUGH_SHARED_MEMORY = 1 << 30  # bytes


class TensorSlot(NamedTuple):
    """Where one tensor lies."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class SharedMessage(NamedTuple):
    """A flat tree in an arena: cheap to send through a pipe."""

    path: str
    length: int
    slots: list[TensorSlot]
    plain: dict[str, object]
    order: list[str]


def shared_folder() -> Path:
    """A folder in memory if the system has one with room in it, else the temporary folder."""
    memory = Path("/dev/shm")
    has_room = (
        os.access(memory, os.W_OK)
        and shutil.disk_usage(memory).free >= ENOUGH_SHARED_MEMORY
    )
    return Path(tempfile.mkdtemp(prefix="fedtailor-", dir=memory if has_room else None))


class Arena:
    """A growing file of messages; ``write`` starts at the beginning again after ``reset``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = 0
        self._size = 0
        self._map: mmap.mmap | None = None
        # by id: tensors written since ``forget``
        self._offsets: dict[int, tuple[int, Tensor]] = {}

    def reset(self) -> None:
        """Forget what was written; readers must have copied it."""
        self._end = 0
        self.forget()

    def forget(self) -> None:
        """Write tensors anew in the next message: they may have changed in the meantime."""
        self._offsets.clear()

    def write(self, flat: Flat) -> SharedMessage:
        """Copy a flat tree in; a tensor that several messages share is written once."""
        named, plain = split(flat)
        new = [x for x in named.values() if id(x) not in self._offsets]
        needed = sum(_padded_size(x) for x in new)
        self._reserve(self._end + needed)
        slots = []
        for name, x in named.items():
            if id(x) not in self._offsets:
                self._append(x)
            offset, _ = self._offsets[id(x)]
            slots.append(_slot(name, x, offset))
        return SharedMessage(
            path=str(self.path),
            length=self._size,
            slots=slots,
            plain=plain,
            order=list(flat),
        )

    def _append(self, x: Tensor) -> None:
        """Copy one tensor to the end of the file."""
        if x.nbytes:
            _view(self._map, _slot("", x, self._end)).copy_(x.detach())
        # holding the tensor keeps its id from being reused
        self._offsets[id(x)] = (
            self._end,
            x,
        )
        self._end += _padded_size(x)

    def _reserve(self, size: int) -> None:
        if size <= self._size and self._map is not None:
            return
        grown = max(size, self._size * 5 // 4, 1 << 16)
        with writing(self.path), self.path.open("ab") as file:
            if hasattr(os, "posix_fallocate"):
                # space that is only promised: SIGBUS
                os.posix_fallocate(file.fileno(), 0, grown)
            else:
                file.truncate(grown)
        with self.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), grown)
        self._size = grown


class Reader:
    """Maps other processes' arenas."""

    def __init__(self) -> None:
        self._maps: dict[str, tuple[int, mmap.mmap]] = {}

    def read(self, message: SharedMessage, copy: bool) -> Flat:
        """The flat tree; without ``copy`` its tensors are views until a reset."""
        mapped = self._map(message)
        values: Flat = dict(message.plain)
        for slot in message.slots:
            view = _view(mapped, slot)
            values[slot.name] = view.clone() if copy else view
        return {name: values[name] for name in message.order}

    def _map(self, message: SharedMessage) -> mmap.mmap | None:
        """The writer's file, mapped again if it has grown."""
        length, mapped = self._maps.get(message.path, (0, None))
        if message.length and (mapped is None or length != message.length):
            with open(message.path, "r+b") as file:
                mapped = mmap.mmap(file.fileno(), message.length)
            self._maps[message.path] = (message.length, mapped)
        return mapped


def _slot(name: str, x: Tensor, offset: int) -> TensorSlot:
    dtype = str(x.dtype).removeprefix("torch.")
    return TensorSlot(name, dtype, tuple(x.shape), offset)


def _padded_size(x: Tensor) -> int:
    """Bytes of a tensor, rounded up to the alignment."""
    return -(-x.nbytes // ALIGN) * ALIGN


def _view(mapped: mmap.mmap | None, slot: TensorSlot) -> Tensor:
    """A tensor on top of mapped memory."""
    dtype: torch.dtype = getattr(torch, slot.dtype)
    count = math.prod(slot.shape)
    if count == 0 or mapped is None:
        return torch.empty(slot.shape, dtype=dtype)
    flat = torch.frombuffer(
        mapped,
        dtype=dtype,
        count=count,
        offset=slot.offset,
    )
    return flat.view(slot.shape)
