"""Secure sums: exact whoever vanishes, and nothing but the sum is seen."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from fedtailor.core.rng import Rng
from fedtailor.maths.secure_sum.coordinator import Coordinator, Inconsistent, TooFew
from fedtailor.maths.secure_sum.member import Member, Revealed, Secrets
from fedtailor.maths.secure_sum.primitives import SEED, Numbers
from helpers import random_seed

# the phases after which a client may have vanished; 4 and more: it stays
ADVERTISING, SHARING, UPLOADING, REVEALING, STAYING = range(5)
LENGTH = 7


def draw_numbers(k: int) -> Numbers:
    """Any numbers below 2**64, the last of which make sums wrap round."""
    numbers = np.random.default_rng(k).integers(0, 2**64, LENGTH, dtype=np.uint64)
    numbers[-1] = 2**64 - 1
    return numbers


@dataclass
class Round:
    """A sum of real members, some of whom vanish on the way."""

    vanish: dict[int, int]  # by client: the phase whose answer is lost
    threshold: float = 0.6
    degree: int = 1000
    seed: int = 0
    length: int = LENGTH
    seen: dict[int, Numbers] = field(default_factory=dict)  # what the server receives
    revealed: dict[int, Revealed] = field(default_factory=dict)

    def run(self, numbers: Callable[[int], Numbers] = draw_numbers) -> Numbers:
        clients = sorted(self.vanish)
        seeds = random.Random(self.seed)
        members = {}
        for k in clients:
            secrets = Secrets(*(seeds.randbytes(SEED) for _ in range(3)))
            members[k] = Member(k, secrets)
        server = Coordinator(len(clients), self.threshold, self.degree, Rng.seed(1))
        keys = {k: members[k].advertise() for k in self.left(ADVERTISING)}
        circles = server.take_keys(keys)
        shared = {k: members[k].share(circles[k]) for k in self.left(SHARING)}
        partners = server.take_shares(shared)
        for k in self.left(UPLOADING):
            self.seen[k] = members[k].mask(numbers(k), circles[k], partners[k])
        questions = server.take_arrivals(self.seen)
        for k in self.left(REVEALING):
            self.revealed[k] = members[k].reveal(circles[k], *questions[k])
        total = sum(self.seen.values(), np.zeros(self.length, np.uint64))
        return server.unmask(total, self.revealed)

    def left(self, phase: int) -> list[int]:
        """Whose answers arrive in a phase."""
        return [k for k, last in self.vanish.items() if last > phase]

    def expected(self) -> Numbers:
        """The plain sum of those whose numbers arrived."""
        return sum(map(draw_numbers, self.left(UPLOADING)), np.zeros(LENGTH, np.uint64))


# ---------------------------------------------------------------- sums are exact
def test_four_vanish_in_every_possible_way() -> None:
    """All 70 ways: exact if three are left in every phase, else nothing."""
    exact = 0
    chance = random.Random(random_seed())
    for phases in itertools.combinations_with_replacement(range(5), 4):
        clients = chance.sample((2, 5, 6, 9), 4)
        attempt = Round(dict(zip(clients, phases, strict=True)))
        if len(attempt.left(REVEALING)) >= 3:
            assert np.array_equal(attempt.run(), attempt.expected()), phases
            exact += 1
            continue
        with pytest.raises(TooFew, match="needs 3"):
            attempt.run()
    assert exact == 5


@pytest.mark.parametrize("phase", [ADVERTISING, SHARING, UPLOADING, REVEALING])
@pytest.mark.parametrize("degree", [1000, 12])
def test_a_quarter_of_twenty_vanishes_in_one_phase(phase: int, degree: int) -> None:
    """With all as neighbours, and with twelve each."""
    vanish = {k: phase if k % 4 == 1 else STAYING for k in range(20)}
    attempt = Round(vanish, degree=degree)
    assert np.array_equal(attempt.run(), attempt.expected())
    arrived = 20 if phase == REVEALING else 15
    assert len(attempt.seen) == arrived


def test_many_vanish_at_random() -> None:
    seed = random_seed()
    chance = random.Random(seed)
    for _ in range(8):
        count = chance.randint(3, 14)
        vanish = {k: chance.choice([0, 1, 2, 3, 4, 4, 4, 4]) for k in range(count)}
        attempt = Round(
            vanish, degree=chance.choice([6, 1000]), seed=chance.getrandbits(30)
        )
        try:
            found = attempt.run()
        except TooFew:
            continue
        assert np.array_equal(found, attempt.expected()), f"FEDTAILOR_TEST_SEED={seed}"


def test_below_the_threshold_nothing_is_revealed() -> None:
    """Two of five sent numbers: nobody is even asked for a share."""
    vanish = {0: STAYING, 1: STAYING, 2: UPLOADING, 3: UPLOADING, 4: UPLOADING}
    attempt = Round(vanish)
    with pytest.raises(
        TooFew, match="2 clients sent numbers, and a secure sum needs 3"
    ):
        attempt.run()
    assert not attempt.revealed


# ---------------------------------------------------------------- what the server sees
@pytest.mark.parametrize("degree", [1000, 4])
def test_what_the_server_sees_is_uniform(degree: int) -> None:
    """All-zero uploads: single ones and sums of some look like fair bytes."""
    zeros = np.zeros(4096, np.uint64)
    attempt = Round(dict.fromkeys(range(7), STAYING), degree=degree, length=4096)
    assert not attempt.run(lambda k: zeros).any()
    views = list(attempt.seen.values())
    for count in range(2, 7):
        views.append(sum(views[:count], zeros))
    for view in views:
        assert chi_square(view) < 400  # 255 degrees of freedom: p < 1e-8 beyond
    together = np.corrcoef([view.astype(np.float64) for view in attempt.seen.values()])
    assert np.abs(together - np.eye(7)).max() < 0.1


def chi_square(numbers: Numbers) -> float:
    """How far the 256 values of bytes are from equally many."""
    counts = np.bincount(numbers.view(np.uint8), minlength=256)
    wanted = counts.sum() / 256
    return float(((counts - wanted) ** 2 / wanted).sum())


def test_the_same_upload_looks_different_under_other_keys() -> None:
    vanish = dict.fromkeys(range(4), STAYING)
    first = Round(vanish, seed=1)
    second = Round(vanish, seed=2)
    assert np.array_equal(first.run(), second.run())
    assert not np.any(first.seen[0] == second.seen[0])


def test_of_each_client_the_server_gets_one_kind_of_share() -> None:
    vanish = {k: UPLOADING if k in (1, 4) else STAYING for k in range(6)}
    attempt = Round(vanish)
    attempt.run()
    for answer in attempt.revealed.values():
        assert set(answer.own) == {0, 2, 3, 5}
        assert set(answer.pair) == {1, 4}


# ---------------------------------------------------------------- damage
class Tampered(dict[int, Revealed]):
    """Answers of which each has a wrong share of client 1."""

    def __setitem__(self, k: int, answer: Revealed) -> None:
        own = {**answer.own, 1: bytes(SEED)}
        super().__setitem__(k, answer._replace(own=own))


def test_wrong_shares_are_found() -> None:
    attempt = Round(dict.fromkeys(range(4), STAYING), revealed=Tampered())
    with pytest.raises(Inconsistent, match="client 1 bring back something else"):
        attempt.run()
