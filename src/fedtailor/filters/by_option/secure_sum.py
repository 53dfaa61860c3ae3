"""Secure sums (``--secure-sum``): the server learns the sum of uploads and no upload.

Around every call of a client function stand the phases of ``maths/secure_sum``: keys,
shares, the call itself (whose upload leaves under masks), and shares that take the masks
off the sum. Between them clients may vanish.

In a simulation every client's secrets follow from the run's seed, so that workers need
not remember them and runs repeat; they hide nothing from whoever knows the seed. At a
site they come from the operating system, are in no file, and end with the sum.
"""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.sealed import Block, find_sealed, make_block
from fedtailor.core.tree import Params, Tree, leaves
from fedtailor.core.wire import open_size, replace_leaves, size
from fedtailor.filters import Ask, Call, Filter, RoundNotes
from fedtailor.filters.by_option.secure_messages import (
    MODULUS,
    WIDTH,
    pack_numbers,
    read_all,
    read_circle,
    read_keys,
    read_question,
    read_revealed,
    read_shares,
    unpack_numbers,
    write_circle,
    write_keys,
    write_question,
    write_revealed,
    write_shares,
)
from fedtailor.filters.by_option.sums import (
    NotSummable,
    Slot,
    SumTerms,
    check_change,
    choose_slots,
    find_faulty_uploads,
    find_unprotectable,
    from_integers,
    seal_slots,
    to_integers,
)
from fedtailor.maths.fixed_point import from_remainders
from fedtailor.maths.secure_sum.coordinator import Coordinator, Inconsistent, TooFew
from fedtailor.maths.secure_sum.member import Circle, Member, Secrets, Unsafe
from fedtailor.maths.secure_sum.neighbours import choose_degree
from fedtailor.maths.secure_sum.primitives import SEED, Numbers
from fedtailor.method import NoReplies, Uploads

SCHEME = "masked"
KEYS, SHARES, REVEAL = range(1, 4)  # phases, whose answers may get lost
WORDS = 3 * SEED // 4  # of 32 bits, for a client's three seeds

Place = tuple[int, int]  # round, and number of the call within it
Answer = TypeVar("Answer")


class SecureTerms(NamedTuple):
    """Which sums, and how many must stay for them."""

    sums: SumTerms
    seed: int
    threshold: float  # share of those who hold a client's shares
    neighbours: int | None = None  # chosen by the number of clients unless given
    # whether numbers of examples may have no part in the result (--dp client)
    is_private: bool = False
    change_limit: float | None = None


class Costs(NamedTuple):
    """What masks cost in a round."""

    up: int = 0  # bytes of uploads under masks
    up_open: int = 0  # bytes that they would have been in clear
    phases_up: int = 0  # bytes of keys and shares
    phases_down: int = 0
    mask_seconds: float = 0.0  # at the clients
    phase_seconds: float = 0.0  # until keys and shares had come
    unmask_seconds: float = 0.0  # at the server

    def __add__(self, other: Any) -> Costs:
        return Costs(*(a + b for a, b in zip(self, other, strict=True)))


class Brief(NamedTuple):
    """What a client must know to mask its next upload."""

    place: Place
    member: Member
    circle: Circle
    sharing: list[int]


class SecureSum(Filter):
    """Masks what clients send; unmasks the sum."""

    name = "secure_sum"
    needs_trial = True
    seals = True

    def __init__(self, terms: SecureTerms) -> None:
        self.terms = terms
        self.is_simulated = False
        self.rounds: dict[int, Costs] = {}  # at the server
        self._k = -1  # the client, where it runs
        self._n = 0
        # by client: secrets of the newest sum, and what the next upload needs
        self._members: dict[int, tuple[Place, Member]] = {}
        self._ready: dict[int, Brief] = {}
        self._ask: Ask | None = None
        self._coordinator: Coordinator | None = None
        self._told: dict[int, Tree] = {}  # with the next visit
        self._notices: list[str] = []

    def refuse(self, what: str) -> NoReturn:
        """The method does something that sums do not allow."""
        raise UserError(
            f"secure_sum: {self.terms.sums.method} {what}, and the server has only sums"
        )

    # ---------------------------------------------------------------- roles
    def begin_simulation(self, folder: Path | None, resume: bool) -> None:
        """Secrets follow from the seed."""
        self.is_simulated = True

    def for_network(self, template: Any) -> SecureSum:
        """A copy with memories of its own."""
        mine = SecureSum(self.terms)
        mine.is_simulated = self.is_simulated
        return mine

    def for_client(self, k: int, n: int) -> SecureSum:
        """The part of client k, which has n training examples."""
        mine = copy.copy(self)
        mine._k = k
        mine._n = n
        return mine

    def connect(self, ask: Ask) -> None:
        """The server asks clients for keys and shares."""
        self._ask = ask

    # ---------------------------------------------------------------- at a client
    def answer(self, question: Tree, call: Call, rng: Rng) -> Tree:
        """One step of this client's part."""
        step = question["step"]
        place = (call.t, call.number)
        if step == "keys":
            return write_keys(self._begin(place, rng).advertise())
        member = self._find_member(place, rng)
        circle = read_circle(question)
        if step == "shares":
            return write_shares(member.share(circle))
        if step == "mask":
            sharing = [int(k) for k in question["sharing"]]
            self._ready[self._k] = Brief(place, member, circle, sharing)
            return {}
        if step == "reveal":
            return write_revealed(member.reveal(circle, *read_question(question)))
        raise UserError(f"secure_sum knows no step '{step}'")

    def _begin(self, place: Place, rng: Rng) -> Member:
        """New secrets for a new sum; those of any earlier one are forgotten."""
        member = Member(self._k, self._draw_secrets(rng))
        if not self.is_simulated:
            self._members[self._k] = (place, member)
        return member

    def _draw_secrets(self, rng: Rng) -> Secrets:
        if not self.is_simulated:
            return Secrets(*(secrets.token_bytes(SEED) for _ in range(3)))
        words = rng.bits(WORDS).cpu().numpy().astype("<u4").tobytes()
        return Secrets(*(words[i * SEED : (i + 1) * SEED] for i in range(3)))

    def _find_member(self, place: Place, rng: Rng) -> Member:
        """This client in the sum that is under way."""
        if self.is_simulated:
            return Member(self._k, self._draw_secrets(rng))
        known, member = self._members.get(self._k, (None, None))
        if member is None or known != place:
            raise Unsafe(
                "it has no keys for this sum; it was started after they were made"
            )
        return member

    def client_sends(
        self, up: Tree, down: Tree, memory: Params, rng: Rng
    ) -> tuple[Tree, Params]:
        """The upload, every number of it under masks."""
        brief = self._ready.pop(self._k, None)
        if not leaves(up):
            return up, memory
        why = find_unprotectable(up, self.terms.sums)
        if brief is None:
            why = "asks clients for something before they train"
        if why or brief is None:
            raise NotSummable(why)
        check_change(up, down, self.terms.change_limit)
        slots = choose_slots(up, self.terms.sums)
        row = to_integers(up, self._n, slots, self.terms.sums)
        began = time.perf_counter()
        numbers = row.numpy().view(np.uint64)
        masked = brief.member.mask(numbers, brief.circle, brief.sharing)
        block = make_block(
            scheme=SCHEME,
            key=name_sum(brief.place),
            clients=1,
            values=len(row),
            parts=(pack_numbers(masked),),
            seconds=(time.perf_counter() - began, 0.0),
        )
        return seal_slots(up, slots, block), memory

    # ---------------------------------------------------------------- at the server, before
    def server_sends(self, call: Call, downs: dict[int, Tree]) -> dict[int, Tree]:
        """Keys and shares first; whoever does not give them is not called."""
        if call.is_look or call.is_setup:
            return downs
        began = time.perf_counter()
        try:
            partners = self._exchange_shares(call, list(downs))
        except (TooFew, Inconsistent) as error:
            raise NoReplies(f"secure_sum: {error}") from None
        self._count(call.t, Costs(phase_seconds=time.perf_counter() - began))
        return {k: downs[k] for k in partners}

    def _exchange_shares(self, call: Call, clients: list[int]) -> dict[int, list[int]]:
        """With whom each client masks."""
        degree = self.terms.neighbours
        if degree is None:
            degree = choose_degree(len(clients), self.terms.threshold)
        rng = Rng.seed(self.terms.seed, Purpose.NEIGHBOURS, call.t, call.number)
        server = Coordinator(len(clients), self.terms.threshold, degree, rng)
        self._coordinator = server
        questions: dict[int, Tree] = {k: {"step": "keys"} for k in clients}
        keys = self._put(call, questions, KEYS, read_keys)
        circles = server.take_keys(keys)
        questions = {k: write_circle("shares", x) for k, x in circles.items()}
        shared = self._put(call, questions, SHARES, read_shares)
        partners = server.take_shares(shared)
        self._told = {}
        for k, sharing in partners.items():
            told = write_circle("mask", circles[k])
            self._told[k] = {**told, "sharing": sharing}
        return partners

    def briefs(self, call: Call) -> dict[int, Tree]:
        """With whom clients mask, told with the visit that makes the upload."""
        told = self._told
        self._told = {}
        self._count(call.t, Costs(phases_down=sum(map(size, told.values()))))
        return told

    def _put(
        self,
        call: Call,
        questions: dict[int, Tree],
        phase: int,
        read: Callable[[Tree], Answer],
    ) -> dict[int, Answer]:
        """Ask clients; answers that are not of their form count as none."""
        assert self._ask is not None, "the filter is not connected"
        said = self._ask(call, questions, phase)
        up = sum(map(size, said.values()))
        down = sum(map(size, questions.values()))
        self._count(call.t, Costs(phases_up=up, phases_down=down))
        found, damaged = read_all(said, read)
        for k in damaged:
            self._notices.append(
                f"warning: round {call.t}: client {k} is left out: its keys or shares"
                " are damaged"
            )
        return found

    # ---------------------------------------------------------------- at the server, after
    def find_faults(self, call: Call, ups: Mapping[int, Tree]) -> dict[int, str]:
        """Uploads that cannot be looked at, checked by what can be."""
        name = name_sum((call.t, call.number))

        def find_bad_block(block: Block, values: int) -> str:
            if block.scheme != SCHEME or block.key != name:
                return "is masked for another sum"
            if block.values != values or block.clients != 1:
                return f"has {block.values} numbers, not {values}"
            if [len(part) for part in block.parts] != [WIDTH * values]:
                return "has numbers of another length"
            return "" if block.is_whole else "is damaged: its checksum is another"

        return find_faulty_uploads(ups, self.terms.sums, find_bad_block)

    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        """Uploads of which nothing but the sums can be had."""
        replies = ups.by_client()
        if not any(map(leaves, replies.values())):
            return ups
        if call.is_setup:
            self.refuse(f"asks clients for '{call.function}' before they train")
        blocks = {k: find_sealed(up)[0].block for k, up in replies.items()}
        for k, up in replies.items():
            spent, _ = blocks[k].seconds
            open_bytes = open_size(up)
            self._count(call.t, Costs(size(up), open_bytes, mask_seconds=spent))
        try:
            total = self._unmask(call, blocks)
        except (TooFew, Inconsistent) as error:
            raise NoReplies(f"secure_sum: {error}") from None
        n = torch.ones_like(ups.n) if self.terms.is_private else ups.n
        return SummedUploads(ups.clients, n, list(replies.values()), total, self)

    def _unmask(self, call: Call, blocks: Mapping[int, Block]) -> Tensor:
        """The sum of all rows."""
        server = self._coordinator
        self._coordinator = None
        assert server is not None, "a sum was not begun"
        began = time.perf_counter()
        asked = server.take_arrivals(blocks)
        questions: dict[int, Tree] = {}
        for k, question in asked.items():
            questions[k] = write_question(server.circle(k), question)
        revealed = self._put(call, questions, REVEAL, read_revealed)
        rows = [unpack_numbers(block.parts[0]) for block in blocks.values()]
        masked: Numbers = np.sum(rows, axis=0, dtype=np.uint64)
        total = server.unmask(masked, revealed) % np.uint64(MODULUS)
        self._count(call.t, Costs(unmask_seconds=time.perf_counter() - began))
        return from_remainders(torch.from_numpy(total.astype(np.int64)), MODULUS)

    # ---------------------------------------------------------------- costs
    def _count(self, t: int, costs: Costs) -> None:
        self.rounds[t] = self.rounds.get(t, Costs()) + costs

    def before_round(self, plan: Any) -> None:
        """A round that is done again counts once."""
        self.rounds.pop(plan.t, None)

    def after_round(self, t: int) -> RoundNotes:
        """Whose answers could not be read."""
        notices = self._notices
        self._notices = []
        return RoundNotes(notices)

    def report(self, until: int) -> dict[str, Any]:
        """What the result says of it."""
        total = Costs()
        for t, costs in self.rounds.items():
            if t <= until:
                total = total + costs
        return {
            "step": self.terms.sums.mean.step,
            "bytes": {"up": total.up},
            "bytes_in_clear": {"up": total.up_open},
            "bytes_of_keys_and_shares": {
                "up": total.phases_up,
                "down": total.phases_down,
            },
            "seconds": {
                "keys_and_shares": total.phase_seconds,
                "mask": total.mask_seconds,
                "unmask": total.unmask_seconds,
            },
        }

    def save(self) -> dict[str, Any]:
        """The costs, by round."""
        return {"rounds": {str(t): list(costs) for t, costs in self.rounds.items()}}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on counting."""
        for t, costs in saved["rounds"].items():
            self.rounds[int(t)] = Costs(*costs)


def name_sum(place: Place) -> str:
    """The name of one sum of a run, in its uploads."""
    t, number = place
    return f"round {t}, call {number}"


# ---------------------------------------------------------------- what a method may ask
class SummedUploads(Uploads[Any]):
    """Uploads that give means and sums over all senders, and refuse every other question."""

    def __init__(
        self,
        clients: Sequence[int],
        n: Tensor,
        replies: Sequence[Any],
        total: Tensor,
        owner: SecureSum,
    ) -> None:
        super().__init__(clients, n, replies)
        self._total = total
        self._owner = owner

    def __getattr__(self, field: str) -> list[Any]:
        if field.startswith("_"):
            raise AttributeError(field)
        self._owner.refuse(f"looks at every client's {field}")

    def mean(self, field: str, weight: Tensor | Sequence[float] | None = None) -> Any:
        """The weighted mean over all senders."""
        weights = self.n if weight is None else torch.as_tensor(weight)
        if self._owner.terms.sums.is_equal:
            is_known = len(set(weights.tolist())) <= 1
        else:
            is_known = torch.equal(weights, self.n)
        if not is_known:
            self._owner.refuse("weighs clients otherwise than it says")
        return self._read(field, is_mean=True)

    def sum(self, field: str) -> Any:
        """The sum over all senders."""
        return self._read(field, is_mean=False)

    def _read(self, field: str, is_mean: bool) -> Any:
        """One field of the sum, as a tree of tensors."""
        like = self._replies[0]
        sums = self._owner.terms.sums
        new: dict[str, Any] = {}
        for slot in choose_slots(like, sums):
            if slot.path.partition("/")[0] == field:
                self._check_kind(slot, field, is_mean)
                new[slot.path] = from_integers(self._total, slot, sums)
        return getattr(replace_leaves(like, new), field)

    def _check_kind(self, slot: Slot, field: str, is_mean: bool) -> None:
        if slot.is_mean and not is_mean:
            self._owner.refuse(
                f"adds up {field}, which it does not name in its 'summed'"
            )
        if is_mean and not slot.is_mean:
            self._owner.refuse(f"averages {field}, which its clients add up")

    def of(self, clients: Any) -> SummedUploads:
        """All of them, or refused."""
        if set(self.clients) <= set(clients):
            return self
        self._owner.refuse("merges some clients apart from others")

    def sizes(self) -> dict[int, float]:
        """The number of training examples of every sender, which is known."""
        if self._owner.terms.is_private:
            self._owner.refuse("uses the clients' numbers of examples")
        return super().sizes()

    def map(self, function: Any) -> NoReturn:
        """Refused."""
        self._owner.refuse("computes with every client's upload")

    def by_client(self) -> NoReturn:
        """Refused."""
        self._owner.refuse("looks at every client's upload")

    def with_reduction(self, reduction: Any) -> NoReturn:
        """Refused."""
        self._owner.refuse("merges by another rule than the mean")
