"""Which of a client's samples train, which validate and which test.

``merged:S``: the official parts are merged and S of every client's samples train. ``official``: the official test part
tests. ``ordered:S``: the first S of every client's samples train, for data in the order of time: what was tells of what
comes. ``block:S``: the same within every recording, and windows that would reach into both parts are dropped.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError, unknown
from fedtailor.data.partition.laws import Integers

KINDS = ("merged", "official", "ordered", "block")


class Rule(NamedTuple):
    """A split as the user wrote it, understood."""

    kind: str
    share: float  # of a client's own samples, for training


def parse_split(text: str) -> Rule:
    """The split named by ``text``; every mistake in it is one clear line."""
    kind, _, word = text.partition(":")
    if kind not in KINDS:
        raise unknown("split", kind, KINDS)
    if kind == "official":
        if word:
            raise UserError(f"split '{text}': official takes no number, write official")
        return Rule(kind, 1.0)
    try:
        share = float(word)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise UserError(
            f"split '{text}': the training share must be between 0 and 1, e.g. {kind}:0.75"
        )
    return Rule(kind, share)


class Cut(NamedTuple):
    """One client's samples, or places among them."""

    train: Integers
    val: Integers
    test: Integers


def cut_random(
    y: Integers, share: float, validation: float, stratify: bool, rng: np.random.Generator
) -> Cut:
    """A random cut of samples with labels ``y``: at least one trains, and from two samples on at least one tests.

    With a ``share`` of 1 none tests.
    """
    trains = choose(y, count_training(len(y), share), stratify, rng)
    train, test = np.flatnonzero(trains), np.flatnonzero(~trains)
    held = choose(y[train], count_validation(len(train), validation), stratify, rng)
    return Cut(train[~held], train[held], test)


def cut_ordered(samples: Integers, share: float, validation: float) -> Cut:
    """A cut of samples with these numbers: the first train, the last of them validate, and those after them test."""
    order = np.argsort(samples, kind="stable")
    trained = count_training(len(order), share)
    train, val, test = np.split(order, [trained - count_validation(trained, validation), trained])
    return Cut(np.sort(train), np.sort(val), np.sort(test))


def cut_blocks(
    segment: Integers, place: Integers, share: float, validation: float, gap: int
) -> Cut:
    """A cut in time of windows from these recordings: the end of each tests, and the end of what is left validates."""
    train, test = cut_ends(segment, place, 1 - share, gap)
    wanted = count_validation(len(train), validation)
    a, b = cut_ends(segment[train], place[train], wanted / len(train), gap, wanted > 0)
    return Cut(train[a], train[b], test)


def count_training(n: int, share: float) -> int:
    """How many of n samples train: at least one, and one fewer than all at most, unless the share is all."""
    return min(max(round(share * n), 1), n if share == 1 else max(n - 1, 1))


def count_validation(n: int, share: float) -> int:
    """How many of n training samples validate: a share, at least one out of five, never all."""
    return min(max(round(share * n), int(n >= 5)), n - 1) if share else 0


def choose(
    y: Integers, m: int, stratify: bool, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark m places of ``y`` at random; stratified, every class gives its share of m, rounded up or down.

    The samples stand in line, class after class, and from a random start every (n/m)-th is marked. A class of one
    sample so falls to either side by lot.
    """
    n = len(y)
    line = rng.permutation(n)
    if stratify:
        line = line[np.argsort(y[line], kind="stable")]
    steps = (np.arange(n + 1) * m + rng.integers(n)) // n
    marked = np.zeros(n, np.bool_)
    marked[line] = np.diff(steps) > 0
    return marked


def locate(segment: Integers) -> Integers:
    """The place of every window in its recording: 0, 1, 2 ..."""
    order = np.argsort(segment, kind="stable")
    _, first, length = np.unique(segment[order], return_index=True, return_counts=True)
    place = np.empty(len(segment), np.int64)
    place[order] = np.arange(len(segment)) - np.repeat(first, length)
    return place


def measure_overlap(
    x: Tensor, segment: Integers, row: Tensor | None = None, pairs: int = 256
) -> int:
    """How many of the windows after a window share raw values with it (1 at 50 % overlap).

    Found by sliding windows over their successors; 1 when they match nowhere, as after a normalisation by window.
    """
    follows = np.flatnonzero(np.diff(segment) == 0)
    if x.dim() < 2 or not len(follows):
        return 1
    i = torch.from_numpy(
        follows[np.linspace(0, len(follows) - 1, min(pairs, len(follows))).astype(np.int64)]
    )
    before, after, length = *(x[j if row is None else row[j]] for j in (i, i + 1)), x.shape[-1]
    for stride in range(1, length):
        if torch.equal(before[..., stride:], after[..., : length - stride]):
            return (length - 1) // stride
    return 1


def cut_ends(
    segment: Integers, place: Integers, share: float, gap: int, needed: bool = True
) -> tuple[Integers, Integers]:
    """Cut the last ``share`` off every recording: what stays before the cut, and what comes after it.

    ``place`` is each window's place in its recording. Windows less than ``gap`` + 1 places before the cut are dropped,
    for they overlap what comes after it. Fractions of a window carry over to the next recording; recordings too short
    to be cut stay whole. Where something is ``needed`` after the cut and the share is too small for any, it is the end
    of the longest recording, or the last recording where none can be cut.
    """
    order = np.lexsort((place, segment))
    runs = np.split(order, np.flatnonzero(np.diff(segment[order])) + 1)
    sizes = [_list_cuts(place[run], gap) for run in runs]
    ends, carry = [], 0.0
    for run, size in zip(runs, sizes, strict=True):
        kept = size + np.arange(1, len(size) + 1)
        fits = np.flatnonzero(np.arange(1, len(size) + 1) <= carry + share * kept + 0.5)
        end = int(fits[-1]) + 1 if len(fits) else 0
        carry += share * (kept[end - 1] if end else len(run)) - end
        ends.append(end)
    if needed and not any(ends):
        longest = max(range(len(runs)), key=lambda i: len(sizes[i]))
        if len(sizes[longest]):
            ends[longest] = 1
        elif len(runs) > 1:
            return np.sort(np.concatenate(runs[:-1])), np.sort(runs[-1])
    before = [
        run[: size[end - 1]] if end else run
        for run, size, end in zip(runs, sizes, ends, strict=True)
    ]
    after = [run[len(run) - end :] for run, end in zip(runs, ends, strict=True)]
    return np.sort(np.concatenate(before)), np.sort(np.concatenate(after))


def _list_cuts(place: Integers, gap: int) -> Integers:
    """How many windows stay before a cut when 1, 2, 3 ... come after it, as long as any stay."""
    stay = np.searchsorted(place, place[::-1] - gap)
    return stay[stay > 0]
