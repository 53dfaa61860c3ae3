"""Files of flat trees, written whole or not at all, and digests of what is in them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes

from fedtailor.core.errors import UserError, writing
from fedtailor.core.wire import Flat, split


def dump(flat: Flat) -> bytes:
    """A flat tree as the bytes of a safetensors file; plain values go into its header."""
    named, plain = split(flat)
    named = {k: v.detach().cpu().contiguous() for k, v in named.items()}
    seen: set[int] = set()
    for k, v in named.items():  # safetensors refuses tensors that share memory
        if v.data_ptr() in seen:
            named[k] = v.clone()
        seen.add(v.data_ptr())
    about = json.dumps(
        {"plain": plain, "order": list(flat)}
    )  # safetensors sorts; a tree has an order
    return bytes(
        save_bytes(named, {"tree": about})
    )  # one key: of several it writes now this, now that one first


def parse(data: bytes, what: str) -> Flat:
    """The flat tree in the bytes of a file; ``what`` names it when it is damaged."""
    try:
        length = int.from_bytes(data[:8], "little")
        about = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["tree"])
        values: Flat = {**load_bytes(data), **about["plain"]}
        return {name: values[name] for name in about["order"]}
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{what} is damaged ({error})") from None


def write(path: Path, flat: Flat) -> str:
    """Write a flat tree atomically; gives its digest."""
    return write_bytes(path, dump(flat), lasting=False)


def write_bytes(path: Path, data: bytes, lasting: bool = True) -> str:
    """Write a file so that it is there whole or not at all, and ``lasting`` a power cut; gives its digest."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        try:
            with temporary.open("wb") as f:
                f.write(data)
                if lasting:
                    f.flush()
                    os.fsync(f.fileno())
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()  # half a file would keep a full disk full
            raise
    if lasting:
        _flush_folder(path.parent)
    return hashlib.sha256(data).hexdigest()


def _flush_folder(folder: Path) -> None:
    """Make a renaming in it last, too, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read(path: Path, digest: str | None = None) -> Flat:
    """Read a flat tree, checking its digest where one is given."""
    data = path.read_bytes()
    if digest is not None and hashlib.sha256(data).hexdigest() != digest:
        raise UserError(f"{path} is damaged: its checksum is not the recorded one")
    return parse(data, str(path))


def digest(flat: Flat) -> str:
    """A digest of one state: names, types, shapes and values."""
    seen = hashlib.sha256()
    for key in sorted(flat):
        value = flat[key]
        seen.update(key.encode())
        if isinstance(value, torch.Tensor):
            seen.update(f"{value.dtype}{tuple(value.shape)}".encode())
            seen.update(value.detach().cpu().contiguous().numpy().tobytes())
        else:
            seen.update(json.dumps(value, sort_keys=True).encode())
    return seen.hexdigest()


def fingerprint(server: Flat, states: Iterable[tuple[int, Flat | str]]) -> str:
    """A digest of the server's state and of every private state (or of its digest, where it is somewhere else)."""
    seen = hashlib.sha256(digest(server).encode())
    for k, state in states:
        seen.update(f" {k}:{state if isinstance(state, str) else digest(state)}".encode())
    return seen.hexdigest()
