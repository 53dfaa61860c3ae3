"""Between server and clients: calls, checks of replies, bytes, late evaluations.

An upload of the wrong shape, with a NaN, or absurdly far from what was sent is left out
of the round, by name: nothing unchecked is ever averaged in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.tree import Tree
from fedtailor.core.wire import size
from fedtailor.engine.upload_checks import CheckedUpload, UploadChecker, find_outliers
from fedtailor.evaluation.score import Score
from fedtailor.executors import Executor
from fedtailor.executors.visit import (
    Candidate,
    Look,
    Reply,
    Visit,
    trains_like_local,
)
from fedtailor.executors.world import AnyMethod
from fedtailor.filters import SETUP_CALLS, Call, FilterChain
from fedtailor.method import Uploads


@dataclass
class Traffic:
    """What one round cost, and which clients it lost."""

    bytes_up: int = 0
    bytes_down: int = 0
    visits: int = 0
    # one after another: in a chain of clients each waits for the one before
    calls: int = 0
    trainings: int = 0  # those of them in which clients took optimiser steps
    # by training ("local", or "local 1", "local 2" where a visit has several): sum, steps
    losses: dict[str, tuple[float, float]] = field(default_factory=dict, compare=False)
    # scores right after training
    after: dict[int, Score] = field(default_factory=dict, compare=False)
    # of client functions, where the clients are
    visit_seconds: float = field(default=0.0, compare=False)
    # of a late evaluation that came along
    look_seconds: float = field(default=0.0, compare=False)
    lost: dict[int, str] = field(default_factory=dict)  # client -> why


@dataclass
class Exchange:
    """Makes calls to clients through an executor."""

    method: AnyMethod
    executor: Executor
    filters: FilterChain
    seed: int
    rounds: int
    drop: float = 0.0  # probability that a reply gets lost after training
    client_done: Callable[[], None] = lambda: None
    score_after: bool = False  # ask for scores right after training
    traffic: Traffic = field(default_factory=Traffic)
    _waiting: dict[int, Visit] = field(default_factory=dict)  # a late evaluation
    _answers: dict[int, Reply] = field(default_factory=dict)  # of the last evaluation
    _evaluated: int = -1  # its round, while clients have not changed since

    def __post_init__(self) -> None:
        self.filters.connect(self._ask)

    # ---------------------------------------------------------------- calls of client functions
    def call(
        self, function: str, downs: dict[int, Tree], t: int, number: int
    ) -> Uploads[Any]:
        """Run a client function; gives the uploads that passed all checks."""
        call = Call(function, t, number)
        downs = self.filters.server_sends(call, downs)
        checker = UploadChecker(self.method, function, t, self.filters.withheld)
        self.traffic.visits += len(downs)
        self.traffic.calls += 1
        self.traffic.bytes_down += sum(
            checker.count_bytes(down) for down in downs.values()
        )

        is_round = number < SETUP_CALLS
        after = self.score_after and is_round
        after = after and trains_like_local(self.method, function)
        visits = {
            k: Visit(function, t, number, down, after=after)
            for k, down in downs.items()
        }
        replies = self._run(visits, self._brief(call, downs))
        self._evaluated = -1

        accepted = self._check(checker, replies, downs, call)
        if is_round:
            self._note_training(function, {k: replies[k] for k in accepted})
        uploads = Uploads(
            list(accepted),
            torch.tensor([float(replies[k].n) for k in accepted], dtype=torch.float64),
            [replies[k].up for k in accepted],
        )
        return self.filters.server_receives(call, uploads)

    def _check(
        self,
        checker: UploadChecker,
        replies: Mapping[int, Reply],
        downs: Mapping[int, Tree],
        call: Call,
    ) -> list[int]:
        """Clients whose uploads are used; the others are noted as lost, with the reason."""
        arrived = {k: reply.up for k, reply in replies.items() if not reply.error}
        checked = checker.check(arrived, downs)
        accepted: dict[int, CheckedUpload] = {}
        for k, reply in replies.items():
            why = reply.error or checked[k].fault or self._lose_reply(k, call)
            if why:
                self.traffic.lost[k] = why
            else:
                accepted[k] = checked[k]
        sent = {k: arrived[k] for k in accepted}
        for k, why in self.filters.find_faults(call, sent).items():
            self.traffic.lost[k] = why
            del accepted[k]
        distances = {k: up.distance for k, up in accepted.items()}
        if self.filters.bounds_uploads:
            distances = {}
        for k, why in find_outliers(distances).items():
            self.traffic.lost[k] = why
            del accepted[k]
        self.traffic.bytes_up += sum(up.bytes for up in accepted.values())
        return list(accepted)

    def _note_training(self, function: str, replies: Mapping[int, Reply]) -> None:
        """Add a call's losses to those of the round, and take the scores after it."""
        losses = self.traffic.losses
        before = sum(steps for _, steps in losses.values())
        for k, reply in replies.items():
            if reply.report is None:
                continue
            if reply.report.after is not None:
                self.traffic.after[k] = reply.report.after
            sums = reply.report.losses.loss.flatten().tolist()
            steps = reply.report.losses.steps.flatten().tolist()
            for i, (part, count) in enumerate(zip(sums, steps, strict=False)):
                name = function if len(sums) == 1 else f"{function} {i + 1}"
                total, number = losses.get(name, (0.0, 0.0))
                losses[name] = (total + part, number + count)
        after = sum(steps for _, steps in losses.values())
        self.traffic.trainings += after > before

    def _brief(self, call: Call, downs: Mapping[int, Tree]) -> list[dict[int, Visit]]:
        """Visits right before those of a call, in which filters tell clients what they need."""
        told: list[dict[int, Visit]] = []
        for briefs in self.filters.briefs(call):
            mine = {k: brief for k, brief in briefs.items() if k in downs}
            self.traffic.bytes_down += sum(map(size, mine.values()))
            told.append(
                {k: Visit(Look.FILTER, call.t, call.number, x) for k, x in mine.items()}
            )
        return told

    def _ask(
        self, call: Call, questions: Mapping[int, Tree], phase: int
    ) -> dict[int, Tree]:
        """Ask clients for a filter, around a call; answers get lost as uploads do."""
        visits = {
            k: Visit(Look.FILTER, call.t, call.number, question)
            for k, question in questions.items()
        }
        self.traffic.calls += 1
        self.traffic.visits += len(visits)
        self.traffic.bytes_down += sum(map(size, questions.values()))
        answers: dict[int, Tree] = {}
        for k, reply in self._run(visits).items():
            why = reply.error or self._lose_reply(k, call, phase)
            if why:
                self.traffic.lost[k] = why
                continue
            self.traffic.bytes_up += size(reply.up)
            answers[k] = reply.up
        return answers

    def _lose_reply(self, k: int, call: Call, phase: int = 0) -> str:
        """Why the reply gets lost, if ``drop`` says so; ``phase``: of a filter's questions."""
        if not self.drop:
            return ""
        rng = Rng.seed(self.seed, Purpose.LOST, call.t, call.number, k)
        if phase:
            rng = rng.fold(phase)
        return (
            "its reply got lost (--drop)" if float(rng.uniform(1)) < self.drop else ""
        )

    def _run(
        self, visits: Mapping[int, Visit], briefs: Sequence[Mapping[int, Visit]] = ()
    ) -> dict[int, Reply]:
        """Make visits; a late evaluation comes first, before a client changes."""
        waiting = self._waiting
        self._waiting = {}
        bundles: dict[int, list[Visit]] = {}
        for k in sorted({*waiting, *visits}):
            in_order = (waiting, *briefs, visits)
            bundles[k] = [some[k] for some in in_order if k in some]

        def done(k: int) -> None:
            if k in visits and not visits[k].is_look:
                self.client_done()

        replies = self.executor.run(bundles, done)
        self._answers |= {k: replies[k][0] for k in waiting}
        for k in waiting.keys() & replies.keys():
            self.traffic.look_seconds += replies[k][0].seconds
        for k in visits.keys() & replies.keys():
            self.traffic.visit_seconds += replies[k][-1].seconds
        return {k: replies[k][-1] for k in sorted(visits)}

    # ---------------------------------------------------------------- looks at clients
    def look(self, look: Look, downs: Mapping[int, Tree], t: int) -> dict[int, Reply]:
        """Ask clients for something; what they just answered is not asked again."""
        is_known = self._evaluated == t and downs.keys() <= self._answers.keys()
        if look is Look.SCORE and is_known:
            return {k: self._answers[k].without_model() for k in downs}
        return self._run(self._look_visits(look, downs, t))

    def _look_visits(
        self, look: Look, downs: Mapping[int, Tree], t: int, before: bool = False
    ) -> dict[int, Visit]:
        """Visits that look at clients; what they are sent passes the filters like any message."""
        call = Call(look.value, t, 0, is_look=True)
        sent = self.filters.server_sends(call, dict(downs))
        return {k: Visit(look, t, 0, down, before) for k, down in sent.items()}

    def request_evaluation(
        self, downs: Mapping[int, Tree], t: int, *, late: bool, with_models: bool
    ) -> None:
        """Evaluate personal models after round t, now or with the next call's visits."""
        look = Look.CANDIDATE if with_models and late else Look.SCORE
        visits = self._look_visits(look, downs, t, before=late)
        self._answers = {}
        self._evaluated = t
        if late:
            self._waiting = visits
        else:
            self._answers = self._run(visits)

    def finish_evaluation(self) -> tuple[dict[int, Reply], dict[int, Reply] | None]:
        """Scores of the requested evaluation and, where they came along, the models."""
        if self._waiting:  # there was no call to go along with
            self._run({})
        scores = {k: self._answers[k].without_model() for k in sorted(self._answers)}
        models = {
            k: Reply(reply.n, reply.up.model)
            for k, reply in self._answers.items()
            if isinstance(reply.up, Candidate)
        }
        return scores, models or None
