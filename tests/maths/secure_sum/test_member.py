"""What a client in a secure sum answers, and what it refuses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedtailor.core.rng import Rng
from fedtailor.maths.secure_sum.coordinator import Coordinator, Question
from fedtailor.maths.secure_sum.member import Circle, Member, Secrets, Unsafe
from fedtailor.maths.secure_sum.primitives import SEED, Damaged

NUMBERS = np.arange(5, dtype=np.uint64)


@dataclasses.dataclass
class Stage:
    """Four clients that have shared their seeds."""

    members: dict[int, Member]
    circles: dict[int, Circle]
    questions: dict[int, Question]


@pytest.fixture
def stage() -> Stage:
    members = {}
    for k in range(4):
        secrets = Secrets(*(bytes([3 * k + i]) * SEED for i in range(3)))
        members[k] = Member(k, secrets)
    server = Coordinator(4, 0.6, 3, Rng.seed(0))
    circles = server.take_keys({k: m.advertise() for k, m in members.items()})
    shared = {k: m.share(circles[k]) for k, m in members.items()}
    server.take_shares(shared)
    questions = server.take_arrivals([0, 1, 2])
    return Stage(members, circles, questions)


def test_both_kinds_of_shares_are_never_revealed(stage: Stage) -> None:
    """Neither at once, nor one after the other."""
    circle = stage.circles[0]
    boxes, arrived, vanished = stage.questions[0]
    member = stage.members[0]
    with pytest.raises(Unsafe, match="both kinds of shares are asked for client 2"):
        member.reveal(circle, boxes, arrived, [2, 3])
    revealed = member.reveal(circle, boxes, arrived, vanished)
    assert set(revealed.own) == {0, 1, 2}
    assert set(revealed.pair) == {3}
    with pytest.raises(Unsafe, match="both kinds of shares are asked for client 3"):
        member.reveal(circle, boxes, [0, 1, 2, 3], [])
    with pytest.raises(Unsafe, match="both kinds of shares are asked for client 1"):
        member.reveal(circle, boxes, [0, 2, 3], [1])
    # the same question again, after a lost answer, is none
    assert member.reveal(circle, boxes, arrived, vanished) == revealed


def test_too_few_arrivals_are_refused(stage: Stage) -> None:
    boxes = stage.questions[0].boxes
    with pytest.raises(Unsafe, match="2 are left, and 3 are needed"):
        stage.members[0].reveal(stage.circles[0], boxes, [0, 1], [2, 3])
    with pytest.raises(Unsafe, match="2 are left, and 3 are needed"):
        stage.members[0].mask(NUMBERS, stage.circles[0], [1])


def test_strangers_and_oneself_are_not_revealed(stage: Stage) -> None:
    boxes = stage.questions[0].boxes
    for arrived, vanished in (([1, 2, 3], [0]), ([0, 1, 2, 7], []), ([0, 1, 2], [9])):
        with pytest.raises(Unsafe, match="does not hold"):
            stage.members[0].reveal(stage.circles[0], boxes, arrived, vanished)


def test_a_mask_hides_one_upload_only(stage: Stage) -> None:
    member = stage.members[1]
    masked = member.mask(NUMBERS, stage.circles[1], [0, 2, 3])
    again = member.mask(NUMBERS, stage.circles[1], [0, 2, 3])
    assert np.array_equal(masked, again)
    with pytest.raises(Unsafe, match="hides one upload only"):
        member.mask(NUMBERS + np.uint64(1), stage.circles[1], [0, 2, 3])
    with pytest.raises(Unsafe, match="hides one upload only"):
        member.mask(NUMBERS, stage.circles[1], [0, 2])


def test_other_keys_than_before_are_refused(stage: Stage) -> None:
    circle = stage.circles[0]
    swapped = {**circle.keys, 1: bytes(range(64))}
    with pytest.raises(Unsafe, match="others than before"):
        stage.members[0].mask(NUMBERS, circle._replace(keys=swapped), [1, 2, 3])


@pytest.mark.parametrize("threshold", [0, 1, 2, 5])
def test_a_threshold_of_half_the_neighbours_is_refused(threshold: int) -> None:
    """Else a server could tell one half this and the other half that."""
    keys = {k: bytes([k]) * 64 for k in (1, 2, 3)}
    member = Member(0, Secrets(b"a" * SEED, b"b" * SEED, b"c" * SEED))
    with pytest.raises(Unsafe, match="more than half must be needed"):
        member.share(Circle(keys, threshold))


def test_keys_that_are_none_are_refused() -> None:
    member = Member(0, Secrets(b"a" * SEED, b"b" * SEED, b"c" * SEED))
    with pytest.raises(Unsafe, match="no keys"):
        member.share(Circle({1: b"short", 2: bytes(64)}, 2))
    with pytest.raises(Unsafe, match="the same key"):
        member.share(Circle({1: bytes(64), 2: bytes(64)}, 2))


def test_a_box_for_somebody_else_cannot_be_opened(stage: Stage) -> None:
    wrong = {**stage.questions[0].boxes, 1: stage.questions[2].boxes[1]}
    with pytest.raises(Damaged, match="1 to 0"):
        stage.members[0].reveal(stage.circles[0], wrong, [0, 1, 2], [3])
    missing = {k: box for k, box in stage.questions[0].boxes.items() if k != 1}
    with pytest.raises(Unsafe, match="client 1 did not come along"):
        stage.members[0].reveal(stage.circles[0], missing, [0, 1, 2], [3])
