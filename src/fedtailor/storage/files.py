"""Files of flat trees, written completely or not at all, and digests of what is in them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from fedtailor.core.errors import UserError, writing
from fedtailor.core.sealed import Sealed
from fedtailor.core.wire import Flat, split
from fedtailor.storage.sealed_bytes import pack_sealed, unpack_sealed

# what reading damaged bytes may raise
DAMAGES = (
    safetensors.SafetensorError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
)


def dump_flat(flat: Flat) -> bytes:
    """A flat tree as the bytes of a safetensors file; plain values go into its header."""
    flat = pack_sealed(flat)
    named, plain = split(flat)
    # safetensors sorts names, but a tree has an order
    about = {"plain": plain, "order": list(flat)}
    # a single key: the order in which safetensors writes several changes from call to call
    header = {"tree": json.dumps(about)}
    data = save_safetensors(_separate_tensors(named), header)
    return bytes(data)


def _separate_tensors(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, each with memory of its own: safetensors refuses shared memory."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in named.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.data_ptr()
        separate[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return separate


def parse_flat(data: bytes, what: str) -> Flat:
    """The flat tree in the bytes of a file; ``what`` names it in the error if it is damaged."""
    try:
        header_length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + header_length])
        about = json.loads(header["__metadata__"]["tree"])
        values: Flat = {**load_safetensors(data), **about["plain"]}
        return unpack_sealed({name: values[name] for name in about["order"]})
    except DAMAGES as error:
        raise UserError(f"{what} is damaged ({error})") from None


def read_flat_file(path: Path) -> Flat:
    """The flat tree in a file."""
    return parse_flat(path.read_bytes(), str(path))


def write_flat_file(path: Path, flat: Flat) -> str:
    """Write a flat tree atomically; returns the digest of the file."""
    return write_bytes(path, dump_flat(flat), lasting=False)


def write_bytes(path: Path, data: bytes, lasting: bool = True) -> str:
    """Write a file so that it is there completely or not at all; returns its digest.

    A ``lasting`` file also survives a power cut once this has returned.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        try:
            _write_synced(temporary, data, lasting)
            temporary.replace(path)
        except OSError:
            # half a file would keep a full disk full
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    if lasting:
        _sync_folder(path.parent)
    return hashlib.sha256(data).hexdigest()


def _write_synced(path: Path, data: bytes, lasting: bool) -> None:
    """Write a file and, if it has to last, wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        if lasting:
            file.flush()
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Wait until a renaming in a folder is on the disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest_flat(flat: Flat) -> str:
    """A digest of one state: names, types, shapes and values; of what is sealed no values."""
    hashed = hashlib.sha256()
    for name in sorted(flat):
        hashed.update(name.encode())
        value = flat[name]
        if isinstance(value, torch.Tensor):
            array = value.detach().cpu().contiguous().numpy()
            hashed.update(f"{value.dtype}{tuple(value.shape)}".encode())
            hashed.update(array.tobytes())
        elif isinstance(value, Sealed):
            # ciphertexts are random: two runs that are equal have others
            hashed.update(str(value.layout()).encode())
        else:
            hashed.update(json.dumps(value, sort_keys=True).encode())
    return hashed.hexdigest()


def fingerprint(server: Flat, states: Iterable[tuple[int, Flat | str]]) -> str:
    """A digest of the server's state and of every client's private state.

    A private state that is kept elsewhere is given by its digest.
    """
    hashed = hashlib.sha256(digest_flat(server).encode())
    for k, state in states:
        digest = state if isinstance(state, str) else digest_flat(state)
        hashed.update(f" {k}:{digest}".encode())
    return hashed.hexdigest()
