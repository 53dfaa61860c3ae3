"""Splits: random and stratified, and cuts in time on drawn recordings and on the real HAR data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.data import load_dataset
from fedtailor.data.partition.build import build_federation
from fedtailor.data.partition.laws import Integers
from fedtailor.data.partition.split import (
    ClientSplit,
    choose_samples,
    count_validation,
    cut_off_ends,
    measure_overlap,
    number_windows,
    parse_split,
    split_in_order,
    split_randomly,
    split_recordings,
)

laws = settings(deadline=None, max_examples=100, derandomize=True, database=None)
seeds = st.integers(0, 2**32 - 1)
shares = st.floats(0.05, 0.95)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_sound(cut: ClientSplit, n: int) -> None:
    """No sample twice, none lost."""
    assert np.array_equal(np.sort(np.concatenate(cut)), np.arange(n))


@laws
@given(
    st.sets(st.integers(0, 999), min_size=1, max_size=200).map(list).map(np.array),
    shares,
    shares,
)
def test_an_ordered_cut_trains_on_what_was_and_tests_on_what_comes(
    samples: Integers, share: float, validation: float
) -> None:
    cut, n = split_in_order(samples, share, validation), len(samples)
    assert_sound(cut, n)
    assert list(np.concatenate([np.sort(samples[part]) for part in cut])) == sorted(
        samples
    )
    random = split_randomly(samples % 2, share, validation, False, rng())
    assert [len(part) for part in cut] == [len(part) for part in random]


@laws
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=200).map(np.array),
    shares,
    shares,
    st.booleans(),
    seeds,
)
def test_a_random_cut_has_the_asked_sizes(
    y: Integers, share: float, validation: float, stratify: bool, seed: int
) -> None:
    cut, n = split_randomly(y, share, validation, stratify, rng(seed)), len(y)
    assert_sound(cut, n)
    train = n - len(cut.test)
    assert len(cut.train) >= 1 and (len(cut.test) >= 1 if n > 1 else len(cut.test) == 0)
    assert abs(train - share * n) <= 0.5 or train in (1, n - 1)
    assert len(cut.val) == count_validation(train, validation)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(
            cut, split_randomly(y, share, validation, stratify, rng(seed)), strict=True
        )
    )


@laws
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.data(), seeds)
def test_stratified_every_class_gives_its_share(
    sizes: list[int], data: st.DataObject, seed: int
) -> None:
    y = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    m = data.draw(st.integers(0, len(y)))
    marked = choose_samples(y, m, True, rng(seed))
    assert marked.sum() == m
    for c, size in enumerate(sizes):
        assert abs(marked[y == c].sum() - size * m / len(y)) < 1


def test_unstratified_is_a_plain_draw() -> None:
    """A class gives a hypergeometric number, not a rounded one; all samples are equally likely."""
    y = np.repeat([0, 1], 50)
    given_by_class = np.array(
        [choose_samples(y, 75, False, rng(s))[:50].sum() for s in range(2000)]
    )
    assert given_by_class.mean() == pytest.approx(37.5, abs=0.2)
    assert given_by_class.var() == pytest.approx(75 * 0.25 * 25 / 99, rel=0.15)
    often = np.mean([choose_samples(y, 75, True, rng(s)) for s in range(2000)], 0)
    assert np.abs(often - 0.75).max() < 0.05


def test_a_class_of_one_sample_falls_by_lot() -> None:
    y = np.array([0] * 11 + [1])
    sides = [split_randomly(y, 0.75, 0, True, rng(s)) for s in range(400)]
    assert np.mean([11 in cut.test for cut in sides]) == pytest.approx(0.25, abs=0.07)


@pytest.mark.parametrize(
    ("n", "share", "expected"),
    [
        (100, 0.1, 10),
        (5, 0.1, 1),
        (4, 0.1, 0),
        (1, 0.9, 0),
        (2, 0.9, 1),
        (14, 0.1, 1),
        (16, 0.1, 2),
        (50, 0.0, 0),
    ],
)
def test_validation_samples(n: int, share: float, expected: int) -> None:
    assert count_validation(n, share) == expected


@st.composite
def recordings(draw: st.DrawFn) -> tuple[Integers, Integers]:
    """Windows of some recordings, shuffled, with their places; some windows may be absent."""
    lengths = draw(st.lists(st.integers(1, 25), min_size=1, max_size=8))
    segment = np.repeat(np.arange(len(lengths)) * 3, lengths)
    place = number_windows(segment)
    order = rng(draw(seeds)).permutation(len(segment))
    order = order[: max(1, round(draw(st.sampled_from([1.0, 1.0, 0.6])) * len(order)))]
    return segment[order], place[order]


@laws
@given(recordings(), shares, st.integers(0, 4), st.booleans())
def test_a_cut_in_time_leaks_nothing(
    windows: tuple[Integers, Integers], share: float, gap: int, needed: bool
) -> None:
    segment, place = windows
    before, after = cut_off_ends(segment, place, share, gap, needed)
    assert len(before) and not set(before) & set(after)
    kept = np.zeros(len(segment), bool)
    kept[before], kept[after] = True, True
    for s in np.unique(segment):
        early, late = (place[part[segment[part] == s]] for part in (before, after))
        if len(early) and len(late):
            assert late.min() - early.max() > gap
            dropped = place[~kept & (segment == s)]
            assert ((dropped >= late.min() - gap) & (dropped < late.min())).all()
        else:
            assert kept[segment == s].all()
    longest = np.unique(segment, return_counts=True)[1].max()
    if needed and (longest >= gap + 2 or len(np.unique(segment)) > 1):
        assert len(after)


def test_a_cut_in_time_has_the_asked_share_over_all_recordings() -> None:
    segment = np.repeat(np.arange(40), 11)
    before, after = cut_off_ends(segment, number_windows(segment), 0.25, 1)
    # ten of each recording's eleven windows count
    assert (len(before), len(after)) == (
        300,
        100,
    )
    train, val, test = split_recordings(segment, number_windows(segment), 0.75, 0.1, 1)
    assert (
        len(test) == 100
        and 24 <= len(val) <= 30
        and len(train) + len(val) + 40 + len(np.unique(segment[val])) == 340
    )


def test_recordings_too_short_to_be_cut_stay_whole() -> None:
    segment = np.array([4, 4, 7, 7, 9])
    before, after = cut_off_ends(segment, number_windows(segment), 0.25, 1)
    assert before.tolist() == [0, 1, 2, 3] and after.tolist() == [4]
    before, after = cut_off_ends(segment[:2], number_windows(segment[:2]), 0.25, 1)
    assert before.tolist() == [0, 1] and not len(after)


@pytest.mark.parametrize(
    ("stride", "gap"), [(64, 1), (32, 3), (50, 2), (127, 1), (128, 0), (200, 0)]
)
def test_overlap_is_found_in_the_signals(stride: int, gap: int) -> None:
    signal = torch.from_numpy(rng().normal(size=(3, 6000)).astype(np.float32))
    starts = range(0, 6000 - 128, stride)
    x = torch.stack([signal[:, a : a + 128] for a in starts])
    segment = np.repeat([0, 1], [len(x) // 2, len(x) - len(x) // 2])
    # at least one, where nothing matches
    assert measure_overlap(x, segment) == max(gap, 1)
    row = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert measure_overlap(x[row], segment, torch.argsort(row)) == max(gap, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("merge:0.75", "no split 'merge'; did you mean merged"),
        ("merged", "training share must be between 0 and 1, e.g. merged:0.75"),
        ("merged:1", "between 0 and 1"),
        ("block:75", "e.g. block:0.75"),
        ("order:0.75", "no split 'order'; did you mean ordered"),
        ("official:0.5", "official takes no number"),
    ],
)
def test_a_misspelt_split_is_one_clear_line(text: str, says: str) -> None:
    assert says in refusal(parse_split, text)


@pytest.mark.real
@pytest.mark.parametrize("limit", [None, 3000])
def test_no_raw_half_window_of_har_is_in_two_parts(
    real_data: Callable[[str], Path], limit: int | None
) -> None:
    data = load_dataset("har", real_data("har"))
    # (windows, halves, channels, time)
    halves = data.x.unflatten(2, (2, 64)).transpose(1, 2)
    federation = build_federation(data, split="block:0.75", limit=limit)
    assert federation.clients == 30

    def raw(indices: torch.Tensor) -> set[bytes]:
        return {half.numpy().tobytes() for half in halves[indices].flatten(0, 1)}

    for parts in zip(federation.train, federation.val, federation.test, strict=True):
        assert all(len(part) for part in parts)
        train, val, test = (raw(part) for part in parts)
        assert not train & test and not train & val and not val & test
    total = [
        sum(map(len, part))
        for part in (federation.train, federation.val, federation.test)
    ]
    assert total[2] / sum(total) == pytest.approx(0.25, abs=0.03)
    assert total[1] / sum(total[:2]) == pytest.approx(0.1, abs=0.03)
    leaky = build_federation(data, split="merged:0.75", limit=limit)
    # what the cut in time is for
    assert raw(torch.cat(leaky.train)) & raw(torch.cat(leaky.test))
