"""The server's part in one secure sum: it passes on what clients say, and unmasks the sum."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from fedtailor.core.rng import Rng
from fedtailor.maths.secure_sum.member import (
    OWN,
    PAIR,
    Circle,
    Revealed,
    Shared,
    add_pair_mask,
    commit,
)
from fedtailor.maths.secure_sum.neighbours import connect, count_needed
from fedtailor.maths.secure_sum.primitives import (
    KEY,
    SEED,
    Numbers,
    agree,
    derive,
    expand,
    join_secret,
    make_private_key,
    to_public,
)


class TooFew(Exception):
    """Too few clients are left: the sum stays hidden, and the round is skipped."""


class Inconsistent(Exception):
    """What clients revealed does not fit what they sent before."""


class Question(NamedTuple):
    """What a client is asked in the last phase."""

    boxes: dict[int, bytes]  # sealed for it, by sender
    arrived: list[int]  # those near it whose numbers are in the sum
    vanished: list[int]  # those near it who shared, and then were lost


class Coordinator:
    """One sum. The methods are called in the order in which they stand here."""

    def __init__(self, asked: int, threshold: float, degree: int, rng: Rng) -> None:
        self._degree = min(degree, asked - 1)
        self._needed = count_needed(threshold, self._degree + 1)
        # of the whole cohort: nothing less is ever added up
        self._least = count_needed(threshold, asked)
        self._rng = rng
        self._keys: dict[int, bytes] = {}
        self._neighbours: dict[int, list[int]] = {}
        self._shared: dict[int, Shared] = {}
        self._arrived: list[int] = []

    # ---------------------------------------------------------------- the phases
    def take_keys(self, keys: Mapping[int, bytes]) -> dict[int, Circle]:
        """From everybody's public keys: what each client is told of its neighbours."""
        self._require(len(keys), "sent keys")
        clients = sorted(keys)
        self._keys = {k: keys[k] for k in clients}
        self._neighbours = connect(clients, self._degree, self._rng)
        for k in clients:
            self._require_near(k, len(self._neighbours[k]) + 1)
        return {k: self.circle(k) for k in clients}

    def circle(self, k: int) -> Circle:
        """What client k is told of its neighbours."""
        near = {j: self._keys[j] for j in self._neighbours[k]}
        return Circle(near, self._needed)

    def take_shares(self, shared: Mapping[int, Shared]) -> dict[int, list[int]]:
        """From everybody's sealed shares: with whom each client masks."""
        self._require(len(shared), "sent shares")
        for k, sent in shared.items():
            if sorted(sent.boxes) != self.circle(k).holders(k):
                raise Inconsistent(f"client {k} did not send shares to its neighbours")
        self._shared = dict(shared)
        partners: dict[int, list[int]] = {}
        for k in sorted(shared):
            partners[k] = [j for j in self._neighbours[k] if j in shared]
            self._require_near(k, len(partners[k]) + 1)
        return partners

    def take_arrivals(self, arrived: Collection[int]) -> dict[int, Question]:
        """From who sent masked numbers: what each of them is asked."""
        self._require(len(arrived), "sent numbers")
        self._arrived = sorted(arrived)
        present = set(arrived)
        questions: dict[int, Question] = {}
        for k in self._arrived:
            near = [j for j in self.circle(k).holders(k) if j in self._shared]
            boxes = {j: self._shared[j].boxes[k] for j in near}
            here = [j for j in near if j in present]
            gone = [j for j in near if j not in present]
            self._require_near(k, len(here))
            questions[k] = Question(boxes, here, gone)
        return questions

    def unmask(self, total: Numbers, revealed: Mapping[int, Revealed]) -> Numbers:
        """The sum without masks, from the sum of what was sent under them."""
        self._require(len(revealed), "answered")
        for k in self._arrived:
            found = {
                j: answer.own[k] for j, answer in revealed.items() if k in answer.own
            }
            seed = self._restore_seed(k, found)
            if commit(seed) != self._shared[k].commitment:
                raise Inconsistent(
                    f"the shares of client {k} bring back something else"
                )
            total = total - expand(derive(seed, OWN), len(total))
        for k, peers in self._list_vanished():
            found = {
                j: answer.pair[k] for j, answer in revealed.items() if k in answer.pair
            }
            private = make_private_key(self._restore_seed(k, found))
            if to_public(private) != self._keys[k][KEY:]:
                raise Inconsistent(
                    f"the shares of client {k} bring back something else"
                )
            for peer in peers:
                key = agree(private, self._keys[peer][KEY:], PAIR)
                # the mask that client k would have sent cancels the peer's
                total = add_pair_mask(total, k, peer, key)
        return total

    # ---------------------------------------------------------------- steps
    def _list_vanished(self) -> Iterator[tuple[int, list[int]]]:
        """Who shared and then was lost, with those who masked with it."""
        for k in sorted(self._shared.keys() - set(self._arrived)):
            peers = [j for j in self._neighbours[k] if j in self._arrived]
            if peers:
                yield k, peers

    def _restore_seed(self, k: int, found: Mapping[int, bytes]) -> bytes:
        """A seed of client k, from the shares that its holders revealed."""
        self._require_near(k, len(found))
        holders = self.circle(k).holders(k)
        usable = sorted(found)[: self._needed]
        shares = [(1 + holders.index(j), found[j]) for j in usable]
        if any(len(value) != SEED for _, value in shares):
            raise Inconsistent(f"a share of client {k} has another length")
        return join_secret(shares)

    def _require(self, present: int, what: str) -> None:
        if present < self._least:
            raise TooFew(
                f"{present} clients {what}, and a secure sum needs {self._least}"
            )

    def _require_near(self, k: int, present: int) -> None:
        if present < self._needed:
            raise TooFew(
                f"{present} of those who hold client {k}'s shares are left, and a secure"
                f" sum needs {self._needed}"
            )
