"""Checks of every upload: bytes, shapes, numbers, distance from what was sent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.tensors import finite
from fedtailor.core.tree import Params, Tree, leaves
from fedtailor.core.wire import encode, flat_size, outlines
from fedtailor.executors.world import AnyMethod
from fedtailor.method import Method

# numbers of a large tensor that are subtracted at once: they fit a core's cache
CACHED = 1 << 18
OUTLIER = 100.0  # times the cohort's median distance from the download: such uploads are refused
# numbers of small tensors, of several clients together, subtracted at once
TOGETHER = 1 << 22


class CheckedUpload(NamedTuple):
    """What one upload is like."""

    bytes: int
    fault: str  # empty where there is none
    distance: float  # from the download, over the tensors whose values are comparable


class _Download(NamedTuple):
    """What is known of a download, found once for all clients that are sent the same."""

    bytes: int
    # field of the upload -> name -> a tensor of the expected shape
    expected: dict[str, Params]


class UploadChecker:
    """Checks the uploads of one call."""

    def __init__(
        self,
        method: AnyMethod,
        function: str,
        t: int,
        withheld: frozenset[str] = frozenset(),
    ) -> None:
        self._method = method
        self._function = function
        self._t = t
        self._withheld = withheld  # names of tensors that stay with the client
        self._by_content: dict[tuple[Any, ...], _Download] = {}
        self._by_identity: dict[Any, tuple[Tree, _Download]] = {}
        self._expected: dict[tuple[int, type], Params] = {}

    def count_bytes(self, down: Tree) -> int:
        """Bytes of a download."""
        return self._download(down).bytes

    def check(
        self, ups: Mapping[int, Tree], downs: Mapping[int, Tree]
    ) -> dict[int, CheckedUpload]:
        """Check every upload against what its client was sent."""
        bytes_up: dict[int, int] = {}
        faults: dict[int, str] = {}
        pairs: dict[int, list[tuple[Tensor, Tensor]]] = {}
        others: dict[int, list[Tensor]] = {}
        for k, up in ups.items():
            flat = encode(up)
            bytes_up[k] = flat_size(flat)
            sent = outlines(flat)
            expected = self._expected_tensors(self._download(downs[k]), type(up))
            fault, expected = self._compare_names(downs[k], sent, expected)
            fault = fault or _find_wrong_shape(sent, expected)
            faults[k] = fault
            if not fault:
                pairs[k] = [(sent[name], wanted) for name, wanted in expected.items()]
                unnamed = [x for name, x in sent.items() if name not in expected]
                others[k] = [x for x in unnamed if not x.is_meta]
        distances = measure_distances(pairs)
        for k, distance in distances.items():
            if math.isfinite(distance) and finite(others[k]):
                continue
            if not finite(ups[k]):
                faults[k] = "its upload holds NaN or infinity"
        return {
            k: CheckedUpload(bytes_up[k], faults[k], distances.get(k, 0.0)) for k in ups
        }

    def _compare_names(
        self, down: Tree, sent: Params, expected: Params
    ) -> tuple[str, Params]:
        """A missing or additional tensor, if any, and what is expected without withheld tensors."""
        if sent.keys() == expected.keys():
            return "", expected
        expected = {
            name: x for name, x in expected.items() if not self._is_withheld(name)
        }
        fields = self._download(down).expected
        # other fields may hold anything
        comparable = {
            name: x
            for name, x in sent.items()
            if name.split("/", 1)[0] in fields and not self._is_withheld(name)
        }
        different = sorted(expected.keys() ^ comparable.keys())
        if not different:
            return "", expected
        name = different[0]
        return _describe_misfit(
            name, expected.get(name), comparable.get(name)
        ), expected

    def _is_withheld(self, name: str) -> bool:
        return name.rsplit("/", 1)[-1] in self._withheld

    def _expected_tensors(self, download: _Download, kind: type) -> Params:
        """The tensors that an upload of this type must hold."""
        key = (id(download), kind)
        if key not in self._expected:
            expected: Params = {}
            for field, tensors in download.expected.items():
                if field in getattr(kind, "_fields", ()):
                    expected |= tensors
            self._expected[key] = expected
        return self._expected[key]

    def _download(self, down: Tree) -> _Download:
        """What is known of a download; many clients are sent the very same objects."""
        identity = tuple(map(id, down)) if isinstance(down, tuple) else id(down)
        if identity not in self._by_identity:
            # holding the download keeps its ids from being used again
            self._by_identity[identity] = (down, self._examine(down))
        return self._by_identity[identity][1]

    def _examine(self, down: Tree) -> _Download:
        content = tuple(id(x) if isinstance(x, Tensor) else x for x in leaves(down))
        if content not in self._by_content:
            fields = {}
            if self._function != Method.receive.__name__:
                fields = self._method.expected_upload(down, self._t)
            expected = {
                field: outlines(encode(tree, field)) for field, tree in fields.items()
            }
            self._by_content[content] = _Download(flat_size(encode(down)), expected)
        return self._by_content[content]


def _find_wrong_shape(sent: Params, expected: Params) -> str:
    """The first tensor of another shape than expected."""
    for name, wanted in expected.items():
        if wanted.shape != sent[name].shape:
            return _describe_misfit(name, wanted, sent[name])
    return ""


def _describe_misfit(name: str, wanted: Tensor | None, given: Tensor | None) -> str:
    """One line on a tensor that is missing, additional, or of the wrong shape."""
    found = "missing" if given is None else f"of shape {tuple(given.shape)}"
    if wanted is None:
        return f"its upload's {name} is {found}"
    return f"its upload's {name} is {found}, not {tuple(wanted.shape)}"


def measure_distances(
    pairs: Mapping[int, list[tuple[Tensor, Tensor]]],
) -> dict[int, float]:
    """The distance between what each client sent and received, in few passes through memory."""
    squares = dict.fromkeys(pairs, 0.0)
    # small tensors of several clients that received the very same tensor are subtracted together
    alike: dict[int, tuple[Tensor, list[tuple[int, Tensor]]]] = {}
    for k, mine in pairs.items():
        for sent, received in mine:
            if not sent.is_floating_point() or received.is_meta or sent.is_meta:
                continue
            if sent.numel() > CACHED:
                squares[k] += _square_distance(sent, received)
            else:
                alike.setdefault(id(received), (received, []))[1].append((k, sent))
    for received, senders in alike.values():
        many = max(1, TOGETHER // max(1, received.numel()))
        for i in range(0, len(senders), many):
            few = senders[i : i + many]
            stacked = torch.stack([sent for _, sent in few])
            gaps = (stacked - received).reshape(len(few), -1).norm(dim=1)
            for (k, _), gap in zip(few, gaps.tolist(), strict=True):
                squares[k] += gap * gap
    return {k: math.sqrt(square) for k, square in squares.items()}


def _square_distance(a: Tensor, b: Tensor) -> float:
    """||a - b||^2 of two large tensors, piece by piece."""
    pieces = zip(
        torch.split(a.reshape(-1), CACHED),
        torch.split(b.reshape(-1), CACHED),
        strict=True,
    )
    return sum(float((x - y).norm()) ** 2 for x, y in pieces)


def find_outliers(distances: Mapping[int, float]) -> dict[int, str]:
    """Uploads absurdly far from what their clients were sent, with the reason to refuse them."""
    middle = statistics.median(distances.values()) if distances else 0.0
    if middle == 0 or len(distances) < 3:
        return {}
    return {
        k: (
            f"its upload is {distance / middle:.0f} times further from the download "
            "than the cohort's median"
        )
        for k, distance in distances.items()
        if distance > OUTLIER * middle
    }
