"""Which of a client's samples train, which validate and which test.

``merged:S``: the official parts are merged, and S of every client's samples train.
``official``: the official test part tests.
``ordered:S``: the first S of every client's samples train, for data in the order of time.
``block:S``: the same within every recording; windows that would reach into both parts are dropped.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor.core.errors import UserError, unknown
from fedtailor.data.partition.laws import Integers

SPLIT_KINDS = ("merged", "official", "ordered", "block")
Booleans: TypeAlias = NDArray[np.bool_]


class SplitSpec(NamedTuple):
    """A split as the user wrote it, parsed."""

    kind: str
    share: float  # of a client's own samples, for training


def parse_split(text: str) -> SplitSpec:
    """The split named by ``text``."""
    kind, _, word = text.partition(":")
    if kind not in SPLIT_KINDS:
        raise unknown("split", kind, SPLIT_KINDS)
    if kind == "official":
        if word:
            raise UserError(f"split '{text}': official takes no number, write official")
        return SplitSpec(kind, 1.0)
    try:
        share = float(word)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise UserError(
            f"split '{text}': the training share must be between 0 and 1, e.g. {kind}:0.75"
        )
    return SplitSpec(kind, share)


class ClientSplit(NamedTuple):
    """Indices of one client's training, validation and test samples."""

    train: Integers
    val: Integers
    test: Integers


def split_randomly(
    y: Integers,
    share: float,
    validation: float,
    stratify: bool,
    rng: np.random.Generator,
) -> ClientSplit:
    """A random split of samples with labels ``y``.

    At least one sample trains, and from two samples on at least one tests, unless ``share`` is 1:
    then none tests.
    """
    training = count_training(len(y), share)
    trains = choose_samples(y, training, stratify, rng)
    train = np.flatnonzero(trains)
    test = np.flatnonzero(~trains)
    validating = count_validation(len(train), validation)
    validates = choose_samples(y[train], validating, stratify, rng)
    return ClientSplit(train[~validates], train[validates], test)


def split_in_order(samples: Integers, share: float, validation: float) -> ClientSplit:
    """A split of samples by their numbers.

    The first ones train, the last of these validate, and those after them test.
    """
    order = np.argsort(samples, kind="stable")
    training = count_training(len(order), share)
    validating = count_validation(training, validation)
    train, val, test = np.split(order, [training - validating, training])
    return ClientSplit(np.sort(train), np.sort(val), np.sort(test))


def split_recordings(
    segment: Integers, place: Integers, share: float, validation: float, gap: int
) -> ClientSplit:
    """A split in time of windows from these recordings.

    The end of each recording tests, and the end of what is left validates.
    """
    train, test = cut_off_ends(segment, place, 1 - share, gap)
    wanted = count_validation(len(train), validation)
    before, after = cut_off_ends(
        segment[train], place[train], wanted / len(train), gap, needed=wanted > 0
    )
    return ClientSplit(train[before], train[after], test)


def count_training(n: int, share: float) -> int:
    """How many of n samples train: at least one, and at most all but one unless ``share`` is 1."""
    most = n if share == 1 else max(n - 1, 1)
    return min(max(round(share * n), 1), most)


def count_validation(n: int, share: float) -> int:
    """How many of n training samples validate: a share, at least one out of five, never all."""
    if not share:
        return 0
    least = 1 if n >= 5 else 0
    return min(max(round(share * n), least), n - 1)


def choose_samples(
    y: Integers, m: int, stratify: bool, rng: np.random.Generator
) -> Booleans:
    """Mark m samples at random; stratified, every class gives its share of m, rounded up or down.

    The samples stand in line, class after class, and from a random start every (n/m)-th is marked.
    So a class of one sample falls to either side at random.
    """
    n = len(y)
    line = rng.permutation(n)
    if stratify:
        line = line[np.argsort(y[line], kind="stable")]
    start = rng.integers(n)
    steps = (np.arange(n + 1) * m + start) // n
    marked = np.zeros(n, np.bool_)
    marked[line] = np.diff(steps) > 0
    return marked


def number_windows(segment: Integers) -> Integers:
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

    Found by sliding windows over their successors. It is 1 when they match nowhere, as after a
    normalisation by window.
    """
    has_successor = np.flatnonzero(np.diff(segment) == 0)
    if x.dim() < 2 or not len(has_successor):
        return 1
    count = len(has_successor)
    spread = np.linspace(0, count - 1, min(pairs, count)).astype(np.int64)
    window = torch.from_numpy(has_successor[spread])
    if row is None:
        row = torch.arange(len(segment))
    before = x[row[window]]
    after = x[row[window + 1]]
    length = x.shape[-1]
    for stride in range(1, length):
        if torch.equal(before[..., stride:], after[..., : length - stride]):
            return (length - 1) // stride
    return 1


def cut_off_ends(
    segment: Integers, place: Integers, share: float, gap: int, needed: bool = True
) -> tuple[Integers, Integers]:
    """Cut the last ``share`` off every recording: the windows before the cuts, and those after.

    Fractions of a window carry over to the next recording; recordings too short to be cut stay
    whole.

    Args:
        segment: the recording of every window.
        place: the place of every window in its recording.
        share: of the windows, to come after the cut.
        gap: windows this close before the cut are dropped, for they overlap what comes after it.
        needed: whether something must come after the cut. If the share is too small for any window,
            it is then the end of the longest recording, or the last recording if none can be cut.
    """
    order = np.lexsort((place, segment))
    recordings = np.split(order, np.flatnonzero(np.diff(segment[order])) + 1)
    possible_cuts = [_list_cuts(place[recording], gap) for recording in recordings]
    ends = _choose_ends(recordings, possible_cuts, share)
    if needed and not any(ends):
        longest = max(range(len(recordings)), key=lambda i: len(possible_cuts[i]))
        if len(possible_cuts[longest]):
            ends[longest] = 1
        elif len(recordings) > 1:
            *first, last = recordings
            return np.sort(np.concatenate(first)), np.sort(last)
    before = []
    after = []
    for recording, cuts, end in zip(recordings, possible_cuts, ends, strict=True):
        before.append(recording[: cuts[end - 1]] if end else recording)
        after.append(recording[len(recording) - end :])
    return np.sort(np.concatenate(before)), np.sort(np.concatenate(after))


def _choose_ends(
    recordings: list[Integers], possible_cuts: list[Integers], share: float
) -> list[int]:
    """How many windows come after the cut in every recording; 0 where there is no cut."""
    ends = []
    carry = 0.0
    for recording, cuts in zip(recordings, possible_cuts, strict=True):
        after = np.arange(1, len(cuts) + 1)
        kept = cuts + after
        fits = after <= carry + share * kept + 0.5
        end = int(np.max(after[fits], initial=0))
        used = kept[end - 1] if end else len(recording)
        carry += share * used - end
        ends.append(end)
    return ends


def _list_cuts(place: Integers, gap: int) -> Integers:
    """How many windows stay before a cut when 1, 2, 3 ... come after it, as long as any stay."""
    stay = np.searchsorted(place, place[::-1] - gap)
    return stay[stay > 0]
