"""Looks at a client that change nothing: its personal model, scores, predictions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedtailor.client import Client, Examples
from fedtailor.core.rng import Purpose
from fedtailor.core.tree import Params, Tree
from fedtailor.evaluation.score import Score, average_diagnostics, tally_examples
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.visit import Candidate, Look, Reply, Visit
from fedtailor.method import Method


def look_at(runner: ClientRunner, k: int, visit: Visit) -> Reply:
    """Answer a visit that is a look."""
    assert isinstance(visit.function, Look)
    answer = LOOKS[visit.function](runner, k, visit.down, visit.t)
    return Reply(runner.count(k), answer)


def personal(runner: ClientRunner, k: int, down: Tree, t: int) -> Params:
    """The personal model of client k."""
    c, down, keep = runner.load_client(k, down, t)
    return dict(runner.method.personal(c, down, keep))


def candidate(runner: ClientRunner, k: int, down: Tree, t: int) -> Candidate:
    """The personal model of client k and its score."""
    c, down, keep = runner.load_client(k, down, t)
    w = dict(runner.method.personal(c, down, keep))
    return Candidate(score(runner, c, w, runner.test_examples(k), diagnostics=True), w)


def personal_score(runner: ClientRunner, k: int, down: Tree, t: int) -> Score:
    """The score of client k's personal model."""
    return candidate(runner, k, down, t).score


def score_after_training(runner: ClientRunner, k: int, down: Tree, t: int) -> Score:
    """The score right after local training, whose results are thrown away."""
    c, down, keep = runner.load_client(k, down, t)
    up, keep = runner.method.local(c, down, keep)
    w = runner.method.after_training(c, down, up, keep)
    return score(runner, c, w, runner.test_examples(k))


def global_score(runner: ClientRunner, k: int, w: Params, t: int) -> Score:
    """The score of a given model on client k's data."""
    memories = runner.load(k).memories
    w = runner.filters.client_receives(w, memories)
    client = runner.client(k, t, Purpose.EVALUATE, t)
    return score(runner, client, w, runner.test_examples(k))


def predict_pool(runner: ClientRunner, k: int, down: Tree, t: int) -> Params:
    """Log-probabilities of a personal model on the common test data and external data sets."""
    c, down, keep = runner.load_client(k, down, t)
    w = runner.method.personal(c, down, keep)

    def log_probabilities(x: Tensor) -> Tensor:
        return runner.method.predict(c, w, x).log_softmax(-1)

    pools = {"new": common_examples(runner)}
    for name in runner.world.federation.external:
        pools[name] = external_examples(runner, name)
    with torch.no_grad():
        return {
            name: pool.map(log_probabilities)
            if len(pool.index)
            else torch.zeros(0, pool.classes)
            for name, pool in pools.items()
        }


def score(
    runner: ClientRunner,
    c: Client,
    w: Params,
    test: Examples,
    diagnostics: bool = False,
) -> Score:
    """A model on a client's validation and test data."""

    def predict(x: Tensor) -> Tensor:
        return runner.method.predict(c, w, x)

    def diagnose(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return runner.method.diagnostics(c, w, x, y)

    with torch.no_grad():
        means: dict[str, Tensor] = {}
        if diagnostics and type(runner.method).diagnostics is not Method.diagnostics:
            means |= average_diagnostics(diagnose, c.data, "train")
            means |= average_diagnostics(diagnose, test, "test")
        val = tally_examples(c.task, predict, c.val)
        return Score(val, tally_examples(c.task, predict, test), means)


# ---------------------------------------------------------------- data of no client in particular
def pooled_client(runner: ClientRunner, t: int) -> Client:
    """A client that has the training data of all clients."""
    index = torch.cat(runner.world.federation.train)
    data = runner.examples(index, len(index))
    nothing = runner.examples(index[:0], 0)
    rng = runner.rng(Purpose.EVALUATE, t)
    return Client(runner.settings, data, nothing, rng, t)


def common_examples(runner: ClientRunner) -> Examples:
    """The official test set, or the test data of all clients where there is none."""
    federation = runner.world.federation
    index = (
        torch.cat(federation.test) if federation.common is None else federation.common
    )
    return runner.examples(index, len(index))


def external_examples(runner: ClientRunner, name: str) -> Examples:
    """A data set that belongs to no client."""
    x, y = runner.world.federation.external[name]
    index = torch.arange(len(y), device=runner.device)
    return Examples(
        x.to(runner.device),
        y.to(runner.device),
        None,
        index,
        len(y),
        runner.world.federation.classes,
        runner.template.layout,
    )


LOOKS: dict[Look, Callable[[ClientRunner, int, Tree, int], Tree]] = {
    Look.SCORE: personal_score,
    Look.CANDIDATE: candidate,
    Look.PERSONAL: personal,
    Look.AFTER: score_after_training,
    Look.GLOBAL: global_score,
    Look.POOL: predict_pool,
}
