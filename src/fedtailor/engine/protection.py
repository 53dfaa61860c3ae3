"""What a result says of attackers and of privacy, and the trial that refuses in time."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose
from fedtailor.core.sealed import SealedValue
from fedtailor.core.tree import Params
from fedtailor.data.federation import features
from fedtailor.engine.exchange import Exchange
from fedtailor.engine.run import Run
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.private_client import NotPrivate
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.visit import Look
from fedtailor.executors.world import World
from fedtailor.experiment.prepare import Setup
from fedtailor.experiment.protect import check_cohort, name_sums, needs_sums
from fedtailor.filters import SETUP_CALLS, RoundPlan
from fedtailor.filters.by_option.attack import TARGET, parse_attack, stamp
from fedtailor.filters.by_option.sums import NotSummable
from fedtailor.filters.local_buffers import LocalBuffers
from fedtailor.maths.fixed_point import OutOfRange
from fedtailor.method import Cohort, NoReplies
from fedtailor.storage.private_state import MemoryStore

TRIED = 3  # clients in the trial
TRIED_ROUNDS = 2  # some methods do in the second what they do ever after


# ---------------------------------------------------------------- the result
def describe_protection(run: Run, honest: Sequence[int]) -> dict[str, Any]:
    """Entries of the result on attackers and on what privacy was spent."""
    config = run.config
    entries: dict[str, Any] = run.exchange.filters.report(run.state.t)
    if config.dp is not None:
        entries["privacy"] = {
            **run.state.privacy,
            "level": config.dp,
            "noise": config.dp_noise,
            "clip": config.dp_clip,
            "accountant": config.dp_accountant,
        }
    if config.attack is not None:
        entries["attack"] = {"kind": config.attack, "attackers": sorted(run.attackers)}
        if parse_attack(config.attack).kind == "backdoor":
            success = measure_backdoor(run, honest)
            entries["attack"]["backdoor_success"] = success
    return entries


def measure_backdoor(run: Run, honest: Sequence[int]) -> float | None:
    """The share of honest clients' test images that a trigger sends to its target class.

    Images of that class are left out.
    """
    models = run.look(Look.PERSONAL, run.downs(honest))
    fooled = 0
    count = 0
    for k, model in models.items():
        hits = find_fooled(run, k, model)
        fooled += sum(hits)
        count += len(hits)
    return fooled / count if count else None


def find_fooled(run: Run, k: int, model: Params) -> list[bool]:
    """For every test image of client k that is of another class, whether it is fooled."""
    federation = run.world.federation
    mine = federation.test[k]
    others = mine[federation.y[mine] != TARGET]
    if not len(others):
        return []
    images = features(stamp(federation.x[others], federation))
    t = run.state.t
    client = run.runner.client(k, t, Purpose.EVALUATE, t)
    with torch.no_grad():
        logits = run.method.predict(client, model, images.to(run.runner.device))
    hits: list[bool] = (logits.argmax(-1) == TARGET).tolist()
    return hits


# ---------------------------------------------------------------- the trial
def refuse_in_time(setup: Setup) -> None:
    """Try two rounds with a few small clients, so that a protection that cannot be had
    is refused before the run begins.
    """
    check_cohort(setup.options)
    world = setup.world
    if not any(f.needs_trial for f in world.filters):
        return
    runner, exchange = begin_trial(world)
    try:
        try_rounds(runner.world, runner, exchange)
    except NoReplies:
        if needs_sums(setup.options):
            refuse_unsealed(setup, exchange.traffic.lost.values())
    except SealedValue as value:
        raise UserError(
            f"encrypt={setup.options.encrypt}: {setup.options.method} computes at the"
            f" server ({value}), and the server has only sums that it cannot open"
        ) from None
    except UserError:
        raise
    except Exception:  # so few clients may be too few for the method: round 1 will tell
        return
    for why in exchange.traffic.lost.values():
        if why.startswith(NotPrivate.__name__):
            reason = why.partition(": ")[2]
            raise UserError(f"dp=sample, {setup.options.method}: {reason}")


def begin_trial(world: World) -> tuple[ClientRunner, Exchange]:
    """The clients of a trial, with copies of the filters, and the way to them."""
    kept = [f for f in world.filters if f.needs_trial or isinstance(f, LocalBuffers)]
    trial = replace(world, filters=copy.deepcopy(kept), device="cpu")
    for f in trial.filters:
        f.begin_simulation(None, resume=False)
    runner = ClientRunner(trial, MemoryStore())
    exchange = Exchange(
        method=trial.method,
        executor=Sequential(runner),
        filters=runner.filters.for_server(),
        seed=trial.seed,
        rounds=trial.rounds,
    )
    return runner, exchange


def refuse_unsealed(setup: Setup, reasons: Iterable[str]) -> None:
    """Refuse a method whose clients could not seal what they send."""
    what = f"{name_sums(setup.options)}: {setup.options.method}"
    for why in reasons:
        kind, _, reason = why.partition(": ")
        if kind == NotSummable.__name__:
            raise UserError(f"{what} {reason}")
        if kind == OutOfRange.__name__:
            raise UserError(f"{what}: no client can send it: {reason}")


def with_invented_data(setup: Setup) -> Setup:
    """The run on a few random samples, for a server that has no data to try with."""
    outline = setup.world.federation
    many = min(2 * outline.classes, setup.options.sum_weight or 1)
    generator = torch.Generator().manual_seed(0)
    shape = (TRIED * many, *outline.shape)
    if outline.x.is_floating_point():
        x = torch.randn(shape, generator=generator)
    else:
        highest = outline.vocabulary or 2
        x = torch.randint(highest, shape, generator=generator)
    order = torch.arange(TRIED * many)
    rows = [order[i * many : (i + 1) * many] for i in range(TRIED)]
    federation = replace(
        outline,
        x=x.to(outline.x.dtype),
        y=order % outline.classes,
        row=None,
        train=rows,
        val=rows,
        test=rows,
    )
    return replace(setup, world=replace(setup.world, federation=federation))


def try_rounds(world: World, runner: ClientRunner, exchange: Exchange) -> None:
    """Two rounds with the smallest clients."""
    method = world.method
    clients = range(world.federation.clients)
    by_size = sorted((k for k in clients if runner.count(k)), key=runner.count)
    few = sorted(by_size[:TRIED])
    server = method.init(runner.new, len(clients))
    server = method.setup(server, Cohort(exchange, few, 0, SETUP_CALLS))
    seals = any(f.seals for f in world.filters)
    # one more, in which a reply is missing: a sum must not need all clients
    last = TRIED_ROUNDS + seals
    for t in range(1, 1 + last):
        if t > TRIED_ROUNDS:
            few = few[:-1] or few
        plan = RoundPlan(t, len(few), 1.0, False, method.send(server, few[0]))
        exchange.filters.before_round(plan)
        server = method.round(server, Cohort(exchange, few, t))
        exchange.filters.after_round(t)
