"""The ways to train give the same model.

Training in place equals a loop of single steps bit for bit, and the functional form, which runs
under vmap on clients of different sizes, equals both up to rounding in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedtailor.client import Batch, Client
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, Tree, tmap
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.vectorized import Vectorized
from fedtailor.executors.visit import Visit
from fedtailor.executors.world import World
from fedtailor.method import Method
from fedtailor.storage.private_state import MemoryStore
from fedtailor.testing.small_world import digits, small
from fedtailor.training.optim import (
    SGD,
    Groups,
    Optimiser,
    Plan,
    add_weight_decay,
    clip,
    pull,
)
from helpers import Adam, differences, gap, make_runner

TOLERANCE = 1e-9
PLAN = Plan(lr=0.05, epochs=2, batch=7)


class Model(NamedTuple):
    w: Params


class Trained(NamedTuple):
    w: Params
    state: Tree
    aux: Tree


Train = Callable[[Client, Params], Trained]


@dataclass(frozen=True)
class Training(Method[Model, Model, None, Trained]):
    """Every client trains in the given way."""

    train: Train

    def local(self, c: Client, down: Model, keep: None) -> tuple[Trained, None]:
        return self.train(c, down.w), None


def run_clients(
    train: Train, executor: str, plan: Plan, norm: str
) -> dict[int, Trained]:
    """What every client of the small world sends after training in float64."""
    with torch_settings(torch.float64):
        world = World(
            Training(train), small(norm=norm), digits(), plan, 0, 1, dtype=torch.float64
        )
        runner = ClientRunner(world, MemoryStore())
        executors = {"sequential": Sequential(runner), "vmap": Vectorized(runner)}
        visit = Visit("local", 1, 1, Model(runner.new()))
        clients = range(world.federation.clients)
        replies = executors[executor].run(
            {k: [visit] for k in clients}, lambda k, replies: None
        )
        assert executors[executor].notices() == []
    assert [reply.error for (reply,) in replies.values()] == [""] * len(clients)
    return {k: reply.up for k, (reply,) in replies.items()}


def train_at_once(how: Case) -> Train:
    def train(c: Client, w: Params) -> Trained:
        new, state = c.train_with_state(c.loss, w, opt=how.optimiser(w), only=how.only)
        return Trained(new, state, None)

    return train


def train_by_steps(how: Case) -> Train:
    def train(c: Client, w: Params) -> Trained:
        optimiser = how.optimiser(w)

        def step(carry: tuple[Params, Tree], batch: Batch) -> tuple[Params, Tree]:
            return c.step(c.loss, carry[0], batch, optimiser, carry[1], how.only)

        trained = {name: w[name] for name in how.trained(w)}
        new, state = c.each_batch(step, (w, optimiser.init(trained)))
        return Trained(new, state, None)

    return train


@dataclass(frozen=True)
class Case:
    """An optimiser, made for a model, and the submodules that it trains."""

    optimiser: Callable[[Params], Optimiser]
    only: str | tuple[str, ...] = ()

    def trained(self, w: Params) -> list[str]:
        """Names of the parameters that are trained."""
        prefixes = (self.only,) if isinstance(self.only, str) else self.only
        names = [name for name in w if "running" not in name]
        return [name for name in names if not prefixes or name.startswith(prefixes)]


def shifted(w: Params) -> Params:
    """A centre to be pulled to."""
    return tmap(lambda x: x + 0.1, w)


def two_groups(w: Params) -> Groups:
    return Groups(
        {"base": SGD(0.05, momentum=0.9), "head": pull(SGD(0.1), shifted(w), 0.3)}
    )


CASES = {
    "plain": Case(lambda w: SGD(0.05)),
    "momentum": Case(lambda w: SGD(0.05, momentum=0.9)),
    "nesterov": Case(lambda w: SGD(0.05, momentum=0.9, nesterov=True)),
    "decay": Case(lambda w: SGD(0.05, weight_decay=0.1)),
    "momentum and decay": Case(lambda w: SGD(0.05, momentum=0.9, weight_decay=0.1)),
    "pull": Case(lambda w: pull(SGD(0.05), shifted(w), 0.7)),
    "pull and momentum": Case(lambda w: pull(SGD(0.05, momentum=0.9), shifted(w), 0.7)),
    "clip": Case(lambda w: clip(SGD(0.05, momentum=0.5), 0.5)),
    "groups": Case(two_groups),
    "one group": Case(lambda w: Groups({"head": SGD(0.05)}), only="head"),
    "only the head": Case(lambda w: SGD(0.05, momentum=0.9), only="head"),
    "two parts": Case(lambda w: SGD(0.05), only=("base.fc1", "head")),
    "unknown": Case(lambda w: Adam(0.01)),
    "unknown and pull": Case(lambda w: pull(Adam(0.01), shifted(w), 0.7)),
    "unknown and decay": Case(lambda w: add_weight_decay(Adam(0.01), 0.1)),
    "unknown in a group": Case(
        lambda w: Groups({"base": Adam(0.01), "head": SGD(0.05)})
    ),
}


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("name", CASES)
def test_training_at_once_by_steps_and_functionally_agree(name, norm):
    how = CASES[name]
    at_once = run_clients(train_at_once(how), "sequential", PLAN, norm)
    by_steps = run_clients(train_by_steps(how), "sequential", PLAN, norm)
    functional = run_clients(train_at_once(how), "vmap", PLAN, norm)
    functional_steps = run_clients(train_by_steps(how), "vmap", PLAN, norm)
    for k, trained in at_once.items():
        assert differences(by_steps[k], trained) == [], f"client {k}"
        assert gap(plain(functional[k]), plain(trained)) < TOLERANCE, f"client {k}"
        assert gap(plain(functional_steps[k]), plain(trained)) < TOLERANCE, (
            f"client {k}"
        )


def plain(trained: Trained) -> Trained:
    """With a counter in the state as a number, which vmap turns into a tensor."""
    state = tmap(
        lambda x: x if isinstance(x, Tensor) else torch.tensor(x), trained.state
    )
    return trained._replace(state=state)


@pytest.mark.parametrize("name", ["one group", "only the head", "two parts"])
def test_what_is_not_trained_stays_as_it_was(name):
    how = CASES[name]
    for executor in ("sequential", "vmap"):
        found = run_clients(train_at_once(how), executor, PLAN, "none")
        with torch_settings(torch.float64):
            world = World(
                Training(train_at_once(how)), small(norm="none"), digits(), PLAN, 0, 1
            )
            w = ClientRunner(world, MemoryStore()).new()
        for trained in found.values():
            changed = set(differences(trained.w, w))
            assert changed == set(how.trained(w))


@pytest.mark.parametrize("batching", ["fill", "drop", "keep"])
@pytest.mark.parametrize("name", ["momentum", "pull", "groups"])
def test_short_last_batches(name, batching):
    how = CASES[name]
    plan = replace(PLAN, batching=batching)
    at_once = run_clients(train_at_once(how), "sequential", plan, "batch")
    by_steps = run_clients(train_by_steps(how), "sequential", plan, "batch")
    for k, trained in at_once.items():
        assert differences(by_steps[k], trained) == []
    if batching != "keep":  # vmap needs batches of one size
        functional = run_clients(train_at_once(how), "vmap", plan, "batch")
        for k, trained in at_once.items():
            assert gap(functional[k], trained) < TOLERANCE


@pytest.mark.parametrize("name", ["momentum", "pull and momentum", "groups", "unknown"])
def test_a_state_that_is_given_back_continues_the_training(name):
    """Two calls of one epoch are one call of two."""

    def train_in_two_calls(c: Client, w: Params) -> Trained:
        optimiser = CASES[name].optimiser(w)
        half, state = c.train_with_state(c.loss, w, epochs=1, opt=optimiser)
        new, last = c.train_with_state(
            c.loss, half, epochs=1, opt=optimiser, state=state
        )
        return Trained(new, last, None)

    at_once = run_clients(train_at_once(CASES[name]), "sequential", PLAN, "batch")
    in_two = run_clients(train_in_two_calls, "sequential", PLAN, "batch")
    functional = run_clients(train_in_two_calls, "vmap", PLAN, "batch")
    for k, trained in at_once.items():
        assert differences(in_two[k], trained) == []
        assert gap(plain(functional[k]), plain(trained)) < TOLERANCE


def test_a_given_state_stays_as_it_was():
    runner = make_runner(PLAN)
    w = runner.new()
    c = runner.client(0, 1, 9)
    momentum = SGD(0.05, momentum=0.9)
    half, state = c.train_with_state(c.loss, w, opt=momentum)
    before = tmap(torch.clone, state)
    _, after = c.train_with_state(c.loss, half, opt=momentum, state=state)
    assert differences(state, before) == []
    assert differences(after, before) != []


def train_with_aux(c: Client, w: Params) -> Trained:
    """Steps whose loss also gives class sums of the features and a plain number."""

    def loss(w: Params, batch: Batch) -> tuple[Tensor, Any]:
        features = c.model.base(w, batch.x)
        output = c.model.head(w, features)
        aux = {"sum": features.sum(0), "words": ["a", 3], "none": None}
        return c.task.loss(output, batch.y), aux

    def step(carry: tuple[Params, Tensor], batch: Batch) -> tuple[Params, Tensor]:
        new, _, aux = c.step_with_aux(loss, carry[0], batch, SGD(0.05))
        assert aux["words"] == ["a", 3]
        assert aux["none"] is None
        assert not aux["sum"].requires_grad
        return new, carry[1] + aux["sum"]

    new, sums = c.each_batch(step, (w, torch.zeros(16)))
    return Trained(new, None, sums)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_auxiliary_outputs(norm):
    with_aux = run_clients(train_with_aux, "sequential", PLAN, norm)
    functional = run_clients(train_with_aux, "vmap", PLAN, norm)
    plain_steps = run_clients(train_by_steps(CASES["plain"]), "sequential", PLAN, norm)
    for k, trained in with_aux.items():
        assert differences(trained.w, plain_steps[k].w) == []
        assert bool(trained.aux.abs().sum() > 0)
        assert gap(functional[k], trained) < TOLERANCE


def test_gradients_agree():
    def take_gradient(c: Client, w: Params) -> Trained:
        def add(carry: Params, batch: Batch) -> Params:
            gradient = c.grad(c.loss, w, batch, only="base")
            return {name: carry[name] + gradient[name] for name in carry}

        zeros = {
            name: torch.zeros_like(w[name]) for name in w if name.startswith("base")
        }
        return Trained(c.each_batch(add, zeros), None, None)

    one = run_clients(take_gradient, "sequential", PLAN, "none")
    many = run_clients(take_gradient, "vmap", PLAN, "none")
    for k in one:
        assert gap(many[k], one[k]) < TOLERANCE
