"""Sealed leaves of a flat tree as tensors of bytes and plain values, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedtailor.core.sealed import Block, Sealed
from fedtailor.core.wire import Flat

MARK = "#sealed"  # begins the names of what is added; no path begins like this


def pack_sealed(flat: Flat) -> Flat:
    """The flat tree with plain values for sealed leaves, and every block's bytes once."""
    numbers: dict[int, int] = {}  # of blocks, by id
    blocks: list[Block] = []
    packed: Flat = {}
    for path, value in flat.items():
        if not isinstance(value, Sealed):
            packed[path] = value
            continue
        if id(value.block) not in numbers:
            numbers[id(value.block)] = len(blocks)
            blocks.append(value.block)
        packed[path] = describe_leaf(value, numbers[id(value.block)])
    for i, block in enumerate(blocks):
        joined = bytearray(b"".join(block.parts))
        packed[f"{MARK}-{i}"] = torch.frombuffer(joined, dtype=torch.uint8)
    if blocks:
        packed[MARK] = [describe_block(block) for block in blocks]
    return packed


def describe_leaf(leaf: Sealed, number: int) -> dict[str, Any]:
    """A sealed leaf as a plain value; ``number`` is that of its block."""
    return {
        MARK: number,
        "start": leaf.start,
        "shape": list(leaf.shape),
        "dtype": str(leaf.dtype).removeprefix("torch."),
        "is_mean": leaf.is_mean,
    }


def describe_block(block: Block) -> dict[str, Any]:
    """A block without its bytes."""
    return {
        "scheme": block.scheme,
        "key": block.key,
        "clients": block.clients,
        "values": block.values,
        "lengths": [len(part) for part in block.parts],
        "checksum": block.checksum,
        "seconds": list(block.seconds),
    }


def unpack_sealed(packed: Flat) -> Flat:
    """What ``pack_sealed`` was given; ValueError where it could not have written this."""
    if MARK not in packed:
        return packed
    blocks: list[Block] = []
    for i, about in enumerate(packed[MARK]):
        blocks.append(rebuild_block(about, packed[f"{MARK}-{i}"]))
    flat: Flat = {}
    for path, value in packed.items():
        if path.startswith(MARK):
            continue
        is_leaf = isinstance(value, dict) and MARK in value
        flat[path] = rebuild_leaf(value, blocks) if is_leaf else value
    return flat


def rebuild_block(about: dict[str, Any], data: Tensor) -> Block:
    """A block from its description and its bytes."""
    joined = data.numpy().tobytes()
    lengths = [int(length) for length in about["lengths"]]
    if sum(lengths) != len(joined) or any(length < 0 for length in lengths):
        raise ValueError("sealed bytes of another length than was told")
    parts: list[bytes] = []
    start = 0
    for length in lengths:
        parts.append(joined[start : start + length])
        start += length
    seal, unseal = (float(second) for second in about["seconds"])
    return Block(
        scheme=str(about["scheme"]),
        key=str(about["key"]),
        clients=int(about["clients"]),
        values=int(about["values"]),
        parts=tuple(parts),
        checksum=str(about["checksum"]),
        seconds=(seal, unseal),
    )


def rebuild_leaf(about: dict[str, Any], blocks: list[Block]) -> Sealed:
    """A sealed leaf from its description."""
    number = int(about[MARK])
    if not 0 <= number < len(blocks):
        raise ValueError(f"there is no sealed block {number}")
    dtype = getattr(torch, str(about["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no type of numbers '{about['dtype']}'")
    leaf = Sealed(
        block=blocks[number],
        start=int(about["start"]),
        shape=tuple(int(length) for length in about["shape"]),
        dtype=dtype,
        is_mean=bool(about["is_mean"]),
    )
    is_within = 0 <= leaf.start <= leaf.block.values - leaf.count
    if min(leaf.shape, default=0) < 0 or not is_within:
        raise ValueError("a sealed tensor is not within its block")
    return leaf
