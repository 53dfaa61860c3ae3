"""Looks at a client that change nothing: its personal model, scores, predictions."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from fedtailor.client import Client, Examples
from fedtailor.core.rng import Purpose
from fedtailor.core.tree import Params, Tree
from fedtailor.evaluation.score import Score
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.scoring import Part, score
from fedtailor.executors.visit import Candidate, Look, Reply, Visit
from fedtailor.filters import Call


def look_at(runner: ClientRunner, k: int, visit: Visit) -> Reply:
    """Answer a visit that is a look."""
    assert isinstance(visit.function, Look)
    if visit.function is Look.FILTER:
        return Reply(runner.count(k), ask_filter(runner, k, visit))
    look = LOOKS[visit.function]
    answer = look(runner, k, visit.down, visit.t)
    return Reply(runner.count(k), answer)


def ask_filter(runner: ClientRunner, k: int, visit: Visit) -> Tree:
    """What a filter of client k answers to the same filter at the server."""
    call = Call(Look.FILTER.value, visit.t, visit.call, is_look=True)
    rng = runner.rng(Purpose.FILTER, visit.t, visit.call, k)
    n = runner.count(k)
    return runner.filters.answer(k, n, visit.down, call, rng)


def personal(runner: ClientRunner, k: int, down: Tree, t: int) -> Params:
    """The personal model of client k."""
    c, down, keep = runner.load_client(k, down, t)
    return dict(runner.method.personal(c, down, keep))


def candidate(runner: ClientRunner, k: int, down: Tree, t: int) -> Candidate:
    """The personal model of client k and its score."""
    c, down, keep = runner.load_client(k, down, t)
    w = dict(runner.method.personal(c, down, keep))
    test = runner.test_examples(k)
    return Candidate(score(runner.method, c, w, test, diagnostics=True), w)


def personal_score(runner: ClientRunner, k: int, down: Tree, t: int) -> Score:
    """The score of client k's personal model."""
    return candidate(runner, k, down, t).score


def score_newcomer(runner: ClientRunner, k: int, down: Tree, t: int) -> Score:
    """The score of a client that never trained, after it has trained for some epochs.

    It trains as in a round, and the model is that of ``after_training``: fine-tuned where
    the method has one model for all, with a trained head where heads are private. With 0
    epochs it is the personal model that a client begins with.
    """
    epochs = runner.world.newcomer_epochs
    c, down, keep = runner.load_client(k, down, t)
    test = runner.test_examples(k)
    if not epochs:
        w = runner.method.personal(c, down, keep)
        return score(runner.method, c, w, test)
    learner = runner.client(k, t, Purpose.EVALUATE, t, epochs=epochs)
    up, keep = runner.method.local(learner, down, keep)
    w = runner.method.after_training(c, down, up, keep)
    return score(runner.method, c, w, test)


def global_score(runner: ClientRunner, k: int, w: Params, t: int) -> Score:
    """The score of a given model on client k's data."""
    memories = runner.load(k).memories
    w = runner.filters.client_receives(w, memories)
    client = runner.client(k, t, Purpose.EVALUATE, t)
    test = runner.test_examples(k)
    return score(runner.method, client, w, test)


def predict_pool(runner: ClientRunner, k: int, down: Tree, t: int) -> Params:
    """Log-probabilities of a personal model on the common test data and external data sets."""
    c, down, keep = runner.load_client(k, down, t)
    w = runner.method.personal(c, down, keep)

    numbers = itertools.count()

    def log_probabilities(x: Tensor) -> Tensor:
        here = c.with_stream(Part.POOL, next(numbers))
        return runner.method.log_probabilities(here, w, x)

    pools = {"new": common_examples(runner)}
    for name in runner.world.federation.external:
        pools[name] = external_examples(runner, name)
    predictions: Params = {}
    with torch.no_grad():
        for name, pool in pools.items():
            if len(pool.index):
                predictions[name] = pool.map(log_probabilities)
            else:
                predictions[name] = torch.zeros(0, pool.classes)
    return predictions


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
    index = federation.common
    if index is None:
        index = torch.cat(federation.test)
    return runner.examples(index, len(index))


def external_examples(runner: ClientRunner, name: str) -> Examples:
    """A data set that belongs to no client."""
    x, y = runner.world.federation.external[name]
    index = torch.arange(len(y), device=runner.device)
    return Examples(
        all_x=x.to(runner.device),
        all_y=y.to(runner.device),
        row=None,
        index=index,
        n=len(y),
        classes=runner.world.federation.classes,
        layout=runner.template.layout,
    )


LOOKS: dict[Look, Callable[[ClientRunner, int, Tree, int], Tree]] = {
    Look.SCORE: personal_score,
    Look.CANDIDATE: candidate,
    Look.PERSONAL: personal,
    Look.GLOBAL: global_score,
    Look.POOL: predict_pool,
    Look.NEWCOMER: score_newcomer,
}
