"""The loop: sample, run a round of the method, evaluate, record, save.

``run_rounds`` is the whole algorithm; read it first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedtailor.core.errors import Diverged, UserError
from fedtailor.core.rng import Purpose, Rng
from fedtailor.engine.evaluate import (
    choose_clients_to_evaluate,
    finish_evaluation,
    request_evaluation,
)
from fedtailor.engine.exchange import Traffic
from fedtailor.engine.final_views import measure_views
from fedtailor.engine.observer import RoundRecord
from fedtailor.engine.run import Run
from fedtailor.engine.run_state import PendingEvaluation
from fedtailor.engine.stopping import Stopped
from fedtailor.experiment.config import Experiment, parse_participation
from fedtailor.experiment.run_folder import JOURNAL, read_journal
from fedtailor.method import Cohort, NoReplies


def run_rounds(run: Run, stop: list[bool]) -> None:
    """All rounds that are left."""
    config = run.config
    state = run.state
    method = run.method
    if state.pending:
        request_evaluation(run, stop)  # of the round before the checkpoint

    while state.t < config.rounds:
        reason = find_reason_to_end(run, state.t + 1)
        if reason and not state.t:
            raise UserError(reason)
        if reason:
            run.observer.message(f"the run ends here: {reason}")
            break
        began = time.monotonic()
        state.t += 1
        t = state.t
        run.exchange.traffic = Traffic()
        is_evaluated = t % config.evaluate_every == 0 or t == config.rounds
        run.exchange.score_after = is_evaluated and run.is_asked("after")
        cohort: list[int] = []
        try:
            # newcomers are asked what the method must know of them
            available = run.available_clients(t)
            set_up_new_clients(run, t, available)

            # the clients of this round
            share = draw_share(config, t)
            run.begin_round(run.plan_round(t, share, available))
            cohort = sample_clients(run, available, share)

            # the method's round: send, train, merge
            state.server = method.round(state.server, Cohort(run.exchange, cohort, t))
            state.silent = 0
        except NoReplies as nothing:
            state.silent += 1
            run.observer.message(f"warning: round {t} is skipped: {nothing}")
        record = record_round(run, cohort, time.monotonic() - began)
        give_up_if_silent(run, record)
        is_last = t == config.rounds or bool(find_reason_to_end(run, t + 1))

        # the scores of the round before came with this round's visits
        finish_evaluation(run)

        # this round's scores are requested, and come now or with the next round's visits
        if is_evaluated or is_last:
            clients = choose_clients_to_evaluate(
                config, run.honest(run.available_clients(t)), run.honest(cohort)
            )
            record = replace(record, views=measure_views(run, clients))
            state.pending = PendingEvaluation(record, clients)
            request_evaluation(run, stop)
        else:
            run.observer.round(record)

        # save, and stop if asked to
        for notice in run.executor.notices():
            run.observer.message(notice)
        state.total_seconds += time.monotonic() - began
        if t % config.checkpoint_every == 0 or is_last or stop:
            run.save_checkpoint()
        if stop and not is_last:
            raise Stopped(f"stopped after round {t}; go on with --resume")
    finish_evaluation(run)


# ---------------------------------------------------------------- steps of a round
def find_reason_to_end(run: Run, t: int) -> str:
    """Why round t must not begin (its privacy is spent); empty if it may."""
    filters = run.exchange.filters
    if not filters.filters:
        return ""
    share = draw_share(run.config, t)
    plan = run.plan_round(t, share, run.available_clients(t))
    return filters.allows(plan)


def sample_clients(run: Run, available: Sequence[int], share: float) -> list[int]:
    """Who takes part: as the method says, or each drawn by itself."""
    state = run.state
    rng = Rng.seed(run.config.seed, Purpose.SAMPLE, state.t)
    if run.config.sampling == "poisson":
        drawn = rng.uniform(len(available)).tolist()
        return [k for k, u in zip(available, drawn, strict=True) if u < share]
    return run.method.sample(state.server, available, share, rng)


def set_up_new_clients(run: Run, t: int, available: Sequence[int]) -> None:
    """Let the method ask clients that it has not seen yet what it must know."""
    seen = set(run.state.seen)
    new = [k for k in available if k not in seen]
    run.state.server = run.introduce(t, new)
    run.state.seen += new


def draw_share(config: Experiment, t: int) -> float:
    """The share of clients in round t; drawn where the option is a range."""
    low, high = parse_participation(config.participation)
    drawn = float(Rng.seed(config.seed, Purpose.SHARE, t).uniform(1))
    return low + (high - low) * drawn


def record_round(run: Run, cohort: list[int], seconds: float) -> RoundRecord:
    """What the round cost and which clients it lost; adds it to the run's totals."""
    state = run.state
    traffic = run.exchange.traffic
    name = run.world.federation.name_client
    for k, why in sorted(traffic.lost.items()):
        if "(--drop)" not in why:
            run.observer.message(
                f"warning: round {state.t}: {name(k)} is left out: {why}"
            )
    state.bytes_up += traffic.bytes_up
    state.bytes_down += traffic.bytes_down
    state.calls += traffic.calls
    state.trainings += traffic.trainings
    state.seconds += seconds
    notes = run.exchange.filters.after_round(state.t)
    for text in notes.messages:
        run.observer.message(text)
    state.privacy = notes.privacy
    training_seconds = seconds * share_of_training(traffic)
    if state.t > state.started + 1:
        state.warm_seconds += training_seconds
        state.warm_rounds += 1
    return RoundRecord(
        t=state.t,
        clients=cohort,
        lost=traffic.lost,
        visits=traffic.visits,
        calls=traffic.calls,
        bytes_up=traffic.bytes_up,
        bytes_down=traffic.bytes_down,
        trainings=traffic.trainings,
        seconds=seconds,
        privacy=notes.privacy,
        training_seconds=training_seconds,
        training=average_losses(traffic.losses),
    )


def share_of_training(traffic: Traffic) -> float:
    """Which part of a round's time was not an evaluation that came along, by clients' time."""
    both = traffic.visit_seconds + traffic.look_seconds
    if not traffic.look_seconds or both <= 0:
        return 1.0
    return traffic.visit_seconds / both


def average_losses(
    losses: Mapping[str, tuple[float, float]],
) -> dict[str, float | None]:
    """The mean loss over all optimiser steps, and that of each training where there are several."""
    steps = sum(count for _, count in losses.values())
    if not steps:
        return {}
    total = sum(part for part, _ in losses.values())
    means = {"loss": total / steps}
    if len(losses) > 1:
        for name, (part, count) in losses.items():
            means[name] = part / max(count, 1)
    return {name: x if math.isfinite(x) else None for name, x in means.items()}


def give_up_if_silent(run: Run, record: RoundRecord) -> None:
    """Stop a run whose clients have not replied for several rounds."""
    if run.state.silent >= run.config.max_silent_rounds:
        reason = next(iter(record.lost.values()), "no client replied")
        rounds = run.state.silent
        text = f"no usable reply in {rounds} rounds in a row, the last one because {reason}"
        has_diverged = bool(record.lost) and all(
            map(is_divergence, record.lost.values())
        )
        if not has_diverged:
            raise UserError(text)
        summary = describe_divergence(run)
        run.folder.write_divergence(summary)
        raise Diverged(text, summary)


def is_divergence(why: str) -> bool:
    """Whether a reply was lost because its numbers are not finite."""
    return "NaN or infinity" in why


def describe_divergence(run: Run) -> str:
    """In which round no reply was usable any more, and the last training loss before."""
    first = run.state.t - run.state.silent + 1
    records = read_journal(run.folder.path / JOURNAL)
    losses = [
        record["training"].get("loss") for record in records if record["t"] < first
    ]
    known = [loss for loss in losses if loss is not None]
    loss = f", loss {known[-1]:.2g}" if known else ""
    return f"diverged at round {first}{loss}"
