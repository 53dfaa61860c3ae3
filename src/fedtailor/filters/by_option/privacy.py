"""Differential privacy: what is spent, and noise on the means of clients' changes.

Client-level (``--dp client``): the change that a client's upload makes is shortened to
the norm C, over all fields together, and the sum of the changes gets Gaussian noise of
standard deviation noise x C, at the server or in parts at the clients. All clients
count alike, so that one client more or less moves the sum by at most C.

Sample-level (``--dp sample``): see ``executors/private_client.py``; here it is counted.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.sealed import Sealed
from fedtailor.core.tree import Params, Tree, leaves
from fedtailor.core.wire import encode, outlines
from fedtailor.filters import Call, Filter, RoundNotes, RoundPlan
from fedtailor.filters.by_option.changes import (
    draw_normal,
    map_change,
    measure_norm,
    multiply,
    named_tensors,
    replace_tensors,
)
from fedtailor.maths.accounting import Step, spend
from fedtailor.method import NoReplies, Uploads


class PrivacyTerms(NamedTuple):
    """What was promised, and by what means."""

    clip: float
    noise: float  # standard deviation of the noise, by ``clip``
    delta: float
    limit: float | None  # epsilon that must not be exceeded
    accountant: str
    seed: int
    method: str  # its name, for messages
    passes: int = 1  # sample-level: of a client over its data in a round
    # client-level: how many clients add the noise together; 0: the server adds it
    noisy_clients: int = 0
    # whether the server has only the sum of uploads, which are hidden
    is_summed: bool = False


# ---------------------------------------------------------------- what is spent
@dataclass
class Ledger:
    """Every round's release; one that may have been seen is never taken out."""

    delta: float
    accountant: str
    rounds: dict[int, list[Step]] = field(default_factory=dict)

    def charge(self, t: int, step: Step, is_new: bool) -> None:
        """Write down round t; ``is_new``: beside an earlier attempt at the same round.

        In a simulation a round that is done again releases the same numbers again.
        """
        before = self.rounds.get(t, []) if is_new else []
        self.rounds[t] = [*before, step]

    def epsilon(self, until: int | None = None, more: Sequence[Step] = ()) -> float:
        """What is spent by all rounds, or by those until a round."""
        steps = list(more)
        for t, attempts in self.rounds.items():
            if until is None or t <= until:
                steps.extend(attempts)
        return spend(steps, self.delta, self.accountant)

    def take_in(self, saved: dict[str, Any]) -> None:
        """Add what was written down earlier, wherever more is known there."""
        for text, attempts in saved.items():
            t = int(text)
            steps = [Step(*values) for values in attempts]
            if len(steps) >= len(self.rounds.get(t, [])):
                self.rounds[t] = steps


class Accounted(Filter):
    """Counts what every round spends, and ends the run before too much is spent."""

    name = "privacy"
    needs_trial = True

    def __init__(self, terms: PrivacyTerms) -> None:
        self.terms = terms
        self.ledger = Ledger(terms.delta, terms.accountant)
        self.secret: int | None = None  # of the noise, where the seed is no secret
        self._plan = RoundPlan(0, 0, 1.0, False)
        self._calls = 0  # of the round, whose uploads hold something

    def step(self, plan: RoundPlan) -> Step:
        """What a round releases."""
        raise NotImplementedError

    # ---------------------------------------------------------------- rounds
    def allows(self, plan: RoundPlan) -> str:
        """Why the run must end before this round."""
        limit = self.terms.limit
        if limit is None:
            return ""
        if plan.is_remote:
            after = self.ledger.epsilon(more=[self.step(plan)])
        else:
            after = self.ledger.epsilon(plan.t - 1, more=[self.step(plan)])
        if after <= limit:
            return ""
        return (
            f"round {plan.t} would spend epsilon {after:.3f} in all, and"
            f" dp_epsilon={limit:g} allows no more"
        )

    def before_round(self, plan: RoundPlan) -> None:
        """Spend first, release later."""
        self._plan = plan
        self._calls = 0
        if plan.is_remote and self.secret is None:
            self.secret = secrets.randbits(62)
        self.ledger.charge(plan.t, self.step(plan), is_new=plan.is_remote)

    def after_round(self, t: int) -> RoundNotes:
        """The spending so far."""
        until = None if self._plan.is_remote else t
        epsilon = self.ledger.epsilon(until)
        return RoundNotes((), {"epsilon": epsilon, "delta": self.terms.delta})

    def save(self) -> dict[str, Any]:
        """All that was released, and the noise's secret."""
        rounds = {str(t): list(map(list, s)) for t, s in self.ledger.rounds.items()}
        return {"rounds": rounds, "secret": self.secret}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on; nothing that was spent is forgotten."""
        self.ledger.take_in(saved["rounds"])
        self.secret = saved["secret"]

    # ---------------------------------------------------------------- messages
    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        """One call a round may bring something up: only that is counted."""
        holds_something = any(map(leaves, ups.by_client().values()))
        if call.is_setup and not holds_something:
            return ups
        if call.is_setup:
            self.refuse(f"asks clients for '{call.function}' before they train")
        self._calls += 1
        if self._calls > 1:
            self.refuse("calls clients several times a round")
        return ups

    def refuse(self, what: str) -> NoReturn:
        """The method does something that is not covered."""
        raise UserError(
            f"dp: {self.terms.method} {what}, which the noise does not cover;"
            " it cannot be run with --dp"
        )

    def server_noise(self) -> Rng:
        """The server's randomness of this round's noise."""
        t = self._plan.t
        if self.secret is None:
            return Rng.seed(self.terms.seed, Purpose.NOISE, t)
        low = self.secret & 0xFFFFFFFF
        high = self.secret >> 32
        return Rng.seed(low, high, Purpose.NOISE, t, len(self.ledger.rounds[t]))


class SamplePrivacy(Accounted):
    """Counts the noisy passes that clients make over their data.

    In a pass a sample is in at most one batch, so a pass is one Gaussian mechanism.
    Batches are cut from a shuffled order and not drawn by themselves: no amplification
    is claimed. A client that stays away spends less than is counted here.
    """

    def step(self, plan: RoundPlan) -> Step:
        """As many mechanisms as passes."""
        return Step(self.terms.noise, 1.0, self.terms.passes)


# ---------------------------------------------------------------- client-level
class ClientPrivacy(Accounted):
    """Clips every client's change and merges by noisy means only."""

    bounds_uploads = True

    def step(self, plan: RoundPlan) -> Step:
        """Amplified only where every client is drawn by itself."""
        rate = plan.share if plan.is_poisson else 1.0
        return Step(self.terms.noise, rate)

    def denominator(self) -> float:
        """How many clients were to take part: public, whoever did."""
        expected = self._plan.share * self._plan.clients
        if self._plan.is_poisson:
            return expected
        return max(1.0, round(expected))

    def server_sends(self, call: Call, downs: dict[int, Tree]) -> dict[int, Tree]:
        """All clients must be sent the same, else their changes have no common mean."""
        if call.is_look or call.is_setup:
            return downs
        common = named_tensors(self._plan.down)
        for down in downs.values():
            for path, value in named_tensors(down).items():
                same = common.get(path)
                if same is None or (same is not value and not torch.equal(same, value)):
                    self.refuse(f"sends every client another {path.split('/')[0]}")
        return downs

    def client_sends(
        self, up: Tree, down: Tree, memory: Params, rng: Rng
    ) -> tuple[Tree, Params]:
        """The upload with its change shortened, and this client's part of the noise."""
        up = self.clip_upload(up, down)
        many = self.terms.noisy_clients
        if not many:
            return up, memory
        scale = self.terms.noise * self.terms.clip / math.sqrt(many)
        return replace_tensors(up, add_noise(named_tensors(up), scale, rng)), memory

    def clip_upload(self, up: Tree, down: Tree) -> Tree:
        """The upload with its change shortened to the norm C."""

        def shorten(change: Params) -> Params:
            norm = float(measure_norm(change))
            if norm <= self.terms.clip:
                return change
            return multiply(change, self.terms.clip / norm)

        return map_change(shorten, up, down)

    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        """Uploads of which nothing but noisy means can be taken."""
        ups = super().server_receives(call, ups)
        if call.is_setup:
            return ups
        down = self._plan.down
        replies: list[Tree] = []
        for up in ups.by_client().values():
            self._check_upload(up, down)
            if not self.terms.noisy_clients:
                # the guarantee does not rest on the clients
                up = self.clip_upload(up, down)
            replies.append(up)
        if self.terms.noisy_clients:
            self._charge_what_arrived(len(replies))
        if self.terms.is_summed:
            return ups  # the secure sum gives its mean, and nothing else
        return NoisyMeans(self, ups.clients, replies, down)

    def _check_upload(self, up: Tree, down: Tree) -> None:
        """Everything sent must be a change of something that was sent down."""
        received = named_tensors(down)
        for field_name in getattr(up, "_fields", ()):
            value = getattr(up, field_name)
            is_plain = any(
                not isinstance(leaf, Tensor | Sealed) for leaf in leaves(value)
            )
            if is_plain:
                self.refuse(f"uploads {field_name}, which is no tensor")
        for path, value in outlines(encode(up)).items():
            base = received.get(path)
            is_change = base is not None and base.shape == value.shape
            if not is_change or not value.is_floating_point():
                self.refuse(f"uploads {path}, which is no change of what it was sent")

    def _charge_what_arrived(self, arrived: int) -> None:
        """Noise of clients whose replies got lost is missing from the sum."""
        wanted = self.terms.noisy_clients
        if arrived >= wanted:
            return
        factor = math.sqrt(arrived / wanted)
        plan = self._plan
        step = self.step(plan)._replace(noise=factor * self.terms.noise)
        self.ledger.rounds[plan.t][-1] = step
        limit = self.terms.limit
        until = None if plan.is_remote else plan.t
        if limit is not None and self.ledger.epsilon(until) > limit:
            raise NoReplies(
                f"{arrived} of {wanted} clients replied, whose noise together is too"
                f" small for dp_epsilon={limit:g}"
            )


class NoisyMeans(Uploads[Any]):
    """Uploads that give noisy means and refuse every other question."""

    def __init__(
        self,
        privacy: ClientPrivacy,
        clients: Sequence[int],
        replies: Sequence[Tree],
        down: Tree,
    ) -> None:
        super().__init__(clients, torch.ones(len(replies), dtype=torch.float64), [])
        self._privacy = privacy
        self._changed = list(replies)
        self._down = down
        self._rng = privacy.server_noise()
        self._means: dict[str, Tree] = {}  # noise is drawn once a field

    def __len__(self) -> int:
        return max(1, len(self._changed))  # nobody at all is an answer, too

    def mean(self, field: str, weight: Tensor | Sequence[float] | None = None) -> Any:
        """What was sent, plus the noisy mean of the changes; all clients count alike."""
        weights = self.n if weight is None else torch.as_tensor(weight)
        are_equal = len(set(weights.tolist())) <= 1
        if not are_equal:
            self._privacy.refuse("weighs clients differently")
        if field not in self._means:
            self._means[field] = self._compute_mean(field)
        return self._means[field]

    def _compute_mean(self, field: str) -> Tree:
        base = getattr(self._down, field)
        trees = [getattr(reply, field) for reply in self._changed]
        like = trees[0] if trees else base
        start = named_tensors(base)
        total: Params = {}
        for path, value in named_tensors(like).items():
            total[path] = torch.zeros_like(value)
        for tree in trees:
            change = subtract_named(named_tensors(tree), start)
            total = {path: x + change[path] for path, x in total.items()}
        mean = self._divide(total, len(trees))
        new = {path: start[path] + x for path, x in mean.items()}
        return replace_tensors(like, new)

    def _divide(self, total: Params, replies: int) -> Params:
        """The mean of the changes; with the server's noise, if clients added none."""
        privacy = self._privacy
        if privacy.terms.noisy_clients:
            return multiply(total, 1 / replies)
        rng = self._rng.fold(len(self._means))
        scale = privacy.terms.noise * privacy.terms.clip
        noisy = add_noise(total, scale, rng)
        return multiply(noisy, 1 / privacy.denominator())

    def __getattr__(self, field: str) -> list[Any]:
        if field.startswith("_"):
            raise AttributeError(field)
        self._privacy.refuse(f"looks at every client's {field}")

    def of(self, clients: Any) -> NoReturn:
        """Refused."""
        self._privacy.refuse("merges some clients apart from others")

    def map(self, function: Any) -> NoReturn:
        """Refused."""
        self._privacy.refuse("computes with every client's upload")

    def sum(self, field: str) -> NoReturn:
        """Refused."""
        self._privacy.refuse(f"adds up {field} instead of averaging it")

    def sizes(self) -> NoReturn:
        """Refused."""
        self._privacy.refuse("uses the clients' numbers of examples")

    def by_client(self) -> NoReturn:
        """Refused."""
        self._privacy.refuse("looks at every client's upload")


def add_noise(values: Params, scale: float, rng: Rng) -> Params:
    """The tensors with Gaussian noise of standard deviation ``scale``."""
    noise = draw_normal(values, rng)
    return {path: x + scale * noise[path] for path, x in values.items()}


def subtract_named(values: Params, start: Params) -> Params:
    """What was added to the tensors in ``start``, which may hold more of them."""
    return {path: x - start[path] for path, x in values.items()}
