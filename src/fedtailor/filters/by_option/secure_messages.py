"""What clients and server tell one another for a secure sum, as trees of bytes and numbers.

Reading raises ValueError, KeyError or TypeError where an answer is not of its form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.tree import Tree
from fedtailor.maths.secure_sum.coordinator import Question
from fedtailor.maths.secure_sum.member import COMMITMENT, Circle, Revealed, Shared
from fedtailor.maths.secure_sum.primitives import KEY, NONCE, SEED, TAG, Numbers

# bytes of a number as it travels: masks wrap round at 2**64, whose lower 40 bits wrap
# round at 2**40, and no sum needs more
WIDTH = 5
MODULUS = 1 << (8 * WIDTH)
BOX = NONCE + 2 * SEED + TAG  # bytes of two sealed shares

Answer = TypeVar("Answer")
Said = dict[str, Any]  # tensors of bytes, and plain values


# ---------------------------------------------------------------- bytes
def to_tensor(rows: Sequence[bytes], width: int) -> Tensor:
    """Texts of one length as rows of bytes."""
    joined = bytearray(b"".join(rows))
    if not joined:
        return torch.zeros((0, width), dtype=torch.uint8)
    return torch.frombuffer(joined, dtype=torch.uint8).reshape(-1, width)


def to_rows(tensor: Any, width: int, count: int) -> list[bytes]:
    """So many texts of one length from their tensor."""
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.uint8:
        raise TypeError("no bytes where bytes should be")
    if tuple(tensor.shape) != (count, width):
        raise ValueError(f"bytes of shape {tuple(tensor.shape)}, not {(count, width)}")
    return [row.tobytes() for row in tensor.cpu().numpy()]


def pack_numbers(numbers: Numbers) -> bytes:
    """The lower 40 bits of every number."""
    split = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)
    return split[:, :WIDTH].tobytes()


def unpack_numbers(packed: bytes) -> Numbers:
    """Numbers of which the upper bits are zero."""
    rows = np.frombuffer(packed, np.uint8).reshape(-1, WIDTH)
    wide = np.zeros((len(rows), 8), np.uint8)
    wide[:, :WIDTH] = rows
    return wide.view("<u8").reshape(-1).astype(np.uint64)


# ---------------------------------------------------------------- of clients and their bytes
def write_rows(name: str, rows: Mapping[int, bytes], width: int) -> Said:
    """Bytes by client: the clients, and their rows."""
    clients = sorted(rows)
    return {
        f"{name} of": clients,
        name: to_tensor([rows[k] for k in clients], width),
    }


def read_rows(name: str, said: Mapping[str, Any], width: int) -> dict[int, bytes]:
    """Bytes by client, as ``write_rows`` wrote them."""
    clients = [int(k) for k in said[f"{name} of"]]
    rows = to_rows(said[name], width, len(clients))
    return dict(zip(clients, rows, strict=True))


# ---------------------------------------------------------------- questions
def write_circle(step: str, circle: Circle) -> Said:
    """A question of one step that says who is near."""
    keys = write_rows("keys", circle.keys, 2 * KEY)
    return {"step": step, "threshold": circle.threshold, **keys}


def read_circle(said: Mapping[str, Any]) -> Circle:
    """Who is near, as a question says."""
    return Circle(read_rows("keys", said, 2 * KEY), int(said["threshold"]))


def write_question(circle: Circle, question: Question) -> Said:
    """The question of the last phase."""
    return {
        **write_circle("reveal", circle),
        **write_rows("boxes", question.boxes, BOX),
        "arrived": question.arrived,
        "vanished": question.vanished,
    }


def read_question(said: Mapping[str, Any]) -> Question:
    """The question of the last phase."""
    arrived = [int(k) for k in said["arrived"]]
    vanished = [int(k) for k in said["vanished"]]
    return Question(read_rows("boxes", said, BOX), arrived, vanished)


# ---------------------------------------------------------------- answers
def write_keys(keys: bytes) -> Said:
    """Public keys that a client advertises."""
    return {"keys": to_tensor([keys], 2 * KEY)}


def read_keys(said: Mapping[str, Any]) -> bytes:
    """Public keys that a client advertised."""
    return to_rows(said["keys"], 2 * KEY, 1)[0]


def write_shares(shared: Shared) -> Said:
    """Sealed shares of a client."""
    return {
        **write_rows("boxes", shared.boxes, BOX),
        "commitment": to_tensor([shared.commitment], COMMITMENT),
    }


def read_shares(said: Mapping[str, Any]) -> Shared:
    """Sealed shares of a client."""
    commitment = to_rows(said["commitment"], COMMITMENT, 1)[0]
    return Shared(read_rows("boxes", said, BOX), commitment)


def write_revealed(revealed: Revealed) -> Said:
    """Shares that a client reveals."""
    return {
        **write_rows("own", revealed.own, SEED),
        **write_rows("pair", revealed.pair, SEED),
    }


def read_revealed(said: Mapping[str, Any]) -> Revealed:
    """Shares that a client revealed."""
    return Revealed(read_rows("own", said, SEED), read_rows("pair", said, SEED))


def read_all(
    answers: Mapping[int, Tree], read: Callable[[Tree], Answer]
) -> tuple[dict[int, Answer], list[int]]:
    """The answers that are of their form, and whose are not."""
    found: dict[int, Answer] = {}
    damaged: list[int] = []
    for k, said in answers.items():
        try:
            found[k] = read(said)
        except (ValueError, KeyError, TypeError):
            damaged.append(k)
    return found, damaged
