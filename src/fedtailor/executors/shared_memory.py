"""Tensors in a file that several processes map: what goes to workers and back is written once, never pickled."""

from __future__ import annotations

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

ALIGN = 64
ROOM = (
    1 << 30
)  # bytes: containers often have 64 MB of shared memory, which the messages of one round fill


class Seat(NamedTuple):
    """Where one tensor lies."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class Parcel(NamedTuple):
    """A flat tree in an arena: cheap to send through a pipe."""

    path: str
    length: int
    seats: list[Seat]
    plain: dict[str, object]


def shared_folder() -> Path:
    """A folder in memory where the system has one with room in it, else the temporary folder."""
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= ROOM
    return Path(tempfile.mkdtemp(prefix="fedtailor-", dir=memory if roomy else None))


class Arena:
    """A growing file; ``write`` starts at the beginning again after ``reset``."""

    def __init__(self, path: Path) -> None:
        self.path, self._end, self._size = path, 0, 0
        self._map: mmap.mmap | None = None
        self._known: dict[
            int, tuple[int, Tensor]
        ] = {}  # tensors already written since the last reset

    def reset(self) -> None:
        """Forget what was written: readers must have taken it."""
        self._end = 0
        self.forget()

    def forget(self) -> None:
        """Tensors that were written may have changed since: the next message writes them anew."""
        self._known.clear()

    def write(self, flat: Flat) -> Parcel:
        """Copy the tensors in; one that several messages share is written once."""
        named, plain = split(flat)
        fresh = [x for x in named.values() if id(x) not in self._known]
        self._reserve(self._end + sum(-(-x.nbytes // ALIGN) * ALIGN for x in fresh))
        seats = []
        for name, x in named.items():
            if id(x) not in self._known:
                if x.nbytes:
                    seat = Seat(name, str(x.dtype)[6:], tuple(x.shape), self._end)
                    _view(self._map, seat).copy_(x.detach())
                self._known[id(x)] = (
                    self._end,
                    x,
                )  # holding the tensor keeps its id from being used again
                self._end += -(-x.nbytes // ALIGN) * ALIGN
            seats.append(Seat(name, str(x.dtype)[6:], tuple(x.shape), self._known[id(x)][0]))
        return Parcel(str(self.path), self._size, seats, plain)

    def _reserve(self, size: int) -> None:
        if size <= self._size and self._map is not None:
            return
        grown = max(size, self._size * 5 // 4, 1 << 16)
        with writing(self.path), self.path.open("ab") as f:
            if hasattr(
                os, "posix_fallocate"
            ):  # what is only promised and then not there kills: SIGBUS
                os.posix_fallocate(f.fileno(), 0, grown)
            else:
                f.truncate(grown)
        with self.path.open("r+b") as f:
            self._map, self._size = mmap.mmap(f.fileno(), grown), grown


class Reader:
    """Maps other processes' arenas."""

    def __init__(self) -> None:
        self._maps: dict[str, tuple[int, mmap.mmap]] = {}

    def read(self, parcel: Parcel, copy: bool) -> Flat:
        """The flat tree; without ``copy`` its tensors are views that live until the writer resets."""
        length, mapped = self._maps.get(parcel.path, (0, None))
        if parcel.length and (mapped is None or length != parcel.length):
            with open(parcel.path, "r+b") as f:
                mapped = mmap.mmap(f.fileno(), parcel.length)
            self._maps[parcel.path] = parcel.length, mapped
        views = {seat.name: _view(mapped, seat) for seat in parcel.seats}
        return {**({k: v.clone() for k, v in views.items()} if copy else views), **parcel.plain}


def _view(mapped: mmap.mmap | None, seat: Seat) -> Tensor:
    dtype: torch.dtype = getattr(torch, seat.dtype)
    count = 1
    for d in seat.shape:
        count *= d
    if count == 0 or mapped is None:
        return torch.empty(seat.shape, dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=seat.offset).view(seat.shape)
