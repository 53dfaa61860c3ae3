"""Calls and evaluations between server and clients; a late evaluation gives the same scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Tree
from fedtailor.engine.exchange import Exchange, Traffic
from fedtailor.engine.upload_checks import OUTLIER, find_outliers
from fedtailor.executors import Done, Executor
from fedtailor.executors.visit import Look, Reply, Visit
from fedtailor.method import Cohort
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedper import FedPer
from fedtailor.testing.small_world import EXECUTORS, SmallRun, run_small
from helpers import differences


class Logged(Executor):
    """Passes visits on, and writes them down."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.store = inner.store
        self.bundles: list[dict[int, list[str]]] = []

    def run(
        self, visits: Mapping[int, Sequence[Visit]], done: Done
    ) -> dict[int, list[Reply]]:
        named = {}
        for k, bundle in visits.items():
            named[k] = [
                v.function.value if v.is_look else str(v.function) for v in bundle
            ]
        self.bundles.append(named)
        return self.inner.run(visits, done)

    def close(self) -> None:
        self.inner.close()


def run_logged(executor: str = "sequential", method=None) -> tuple[SmallRun, Logged]:
    """One of two rounds, and the executor that logs what comes then."""
    run = run_small(
        method or Ditto(),
        rounds=2,
        until=1,
        executor=lambda world: Logged(EXECUTORS[executor](world)),
    )
    assert isinstance(run.executor, Logged)
    run.executor.bundles.clear()
    return run, run.executor


def downs_of(run: SmallRun) -> dict[int, Tree]:
    return {k: run.runner.method.send(run.server, k) for k in range(6)}


def run_next_round(run: SmallRun, clients: Sequence[int]) -> Tree:
    with torch_settings():
        return run.runner.method.round(run.server, Cohort(run.exchange, clients, 2))


def evaluate(run: SmallRun, *, late: bool, with_models: bool = False):
    """Scores and models after round 1; a late evaluation travels with the visits of round 2."""
    with torch_settings():
        run.exchange.request_evaluation(
            downs_of(run), 1, late=late, with_models=with_models
        )
    if late:
        run_next_round(run, [0, 2, 4])
    with torch_settings():
        return run.exchange.finish_evaluation()


# ---------------------------------------------------------------- late evaluation
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", [Ditto(), FedAvg(finetune=1), FedPer()])
def test_a_late_evaluation_gives_the_same_scores(method, executor):
    """Also of clients that have trained and of clients that have not trained in the meantime."""
    run, _ = run_logged(executor, method)
    at_once, _ = evaluate(run, late=False)
    late, _ = evaluate(run, late=True)
    assert list(late) == list(at_once) == list(range(6))
    for k in range(6):
        assert differences(late[k].up, at_once[k].up) == []
    run.executor.close()


@pytest.mark.parametrize("executor", ["sequential", "processes"])
@pytest.mark.parametrize("method", [Ditto(), FedAvg(finetune=1), FedPer()])
def test_models_that_come_along_are_those_before_the_next_round(method, executor):
    run, log = run_logged(executor, method)
    with torch_settings():
        before = run.exchange.look(Look.PERSONAL, downs_of(run), 1)
    at_once, none = evaluate(run, late=False, with_models=True)
    assert none is None
    log.bundles.clear()
    late, models = evaluate(run, late=True, with_models=True)
    assert log.bundles[0][0] == ["candidate", "local"]
    for k in range(6):
        assert differences(late[k].up, at_once[k].up) == []
        assert differences(models[k].up, before[k].up) == []
    run.executor.close()


def test_a_late_evaluation_goes_before_the_next_call_of_the_same_client():
    run, log = run_logged()
    evaluate(run, late=True)
    assert log.bundles == [
        {
            0: ["score", "local"],
            1: ["score"],
            2: ["score", "local"],
            3: ["score"],
            4: ["score", "local"],
            5: ["score"],
        }
    ]


def test_only_clients_of_the_call_count_as_done():
    run, _ = run_logged()
    done = []
    run.exchange.client_done = lambda: done.append(1)
    evaluate(run, late=True)
    assert len(done) == 3


def test_a_late_evaluation_without_a_call_is_made_when_it_is_finished():
    run, log = run_logged()
    with torch_settings():
        run.exchange.request_evaluation(downs_of(run), 1, late=True, with_models=False)
        assert log.bundles == []
        scores, _ = run.exchange.finish_evaluation()
    assert list(scores) == list(range(6))
    assert len(log.bundles) == 1


def test_a_client_that_cannot_be_evaluated_says_why():
    run, _ = run_logged()
    downs = downs_of(run)
    downs[3] = downs[3]._replace(w={})
    run.executor.store.put(3, {})  # neither a model that is sent nor one of its own
    with torch_settings():
        run.exchange.request_evaluation(downs, 1, late=True, with_models=True)
        scores, models = run.exchange.finish_evaluation()
    assert scores[3].error
    assert scores[3].up is None
    assert list(models) == [0, 1, 2, 4, 5]


# ---------------------------------------------------------------- looks
def test_a_score_that_is_known_is_not_asked_for_again():
    run, log = run_logged()
    evaluate(run, late=False)
    with torch_settings():
        run.exchange.look(Look.SCORE, downs_of(run), 1)
        assert len(log.bundles) == 1
        run.exchange.look(Look.PERSONAL, downs_of(run), 1)
        assert len(log.bundles) == 2


def test_after_a_call_a_score_is_asked_for_again():
    run, log = run_logged()
    before, _ = evaluate(run, late=False)
    run_next_round(run, range(6))
    log.bundles.clear()
    with torch_settings():
        after = run.exchange.look(Look.SCORE, downs_of(run), 1)
    assert len(log.bundles) == 1
    assert differences(after[0].up, before[0].up) != []


def test_looks_change_no_state():
    run, _ = run_logged()
    before = run.hash
    with torch_settings():
        for look in (
            Look.SCORE,
            Look.CANDIDATE,
            Look.PERSONAL,
            Look.NEWCOMER,
            Look.POOL,
        ):
            run.exchange.look(look, downs_of(run), 1)
        run.exchange.look(Look.GLOBAL, dict.fromkeys(range(6), run.server.w), 1)
    assert run.hash == before


# ---------------------------------------------------------------- calls
def test_traffic_is_counted():
    run, _ = run_logged(method=FedAvg())
    run.exchange.traffic = Traffic()
    run_next_round(run, [0, 2, 4])
    model = sum(x.nbytes for x in run.server.w.values())
    traffic = run.exchange.traffic
    assert traffic == Traffic(3 * model, 3 * model, visits=3, calls=1, trainings=1)
    assert traffic.losses.keys() == {"local"}


def test_a_lost_reply_costs_its_download_only():
    run = run_small(FedAvg(), rounds=1, drop=0.5)
    traffic = run.exchange.traffic
    model = sum(x.nbytes for x in run.server.w.values())
    assert 0 < len(traffic.lost) < 6
    assert set(traffic.lost.values()) == {"its reply got lost (--drop)"}
    assert traffic.bytes_down == 6 * model
    assert traffic.bytes_up == (6 - len(traffic.lost)) * model


def test_uploads_are_in_client_order_with_their_sizes():
    run, _ = run_logged(method=FedAvg())
    exchange: Exchange = run.exchange
    with torch_settings():
        ups = exchange.call("local", {k: downs_of(run)[k] for k in (4, 0, 2)}, 2, 1)
    assert ups.clients == [0, 2, 4]
    assert ups.n.tolist() == [30, 24, 1]
    assert len(ups) == 3


# ---------------------------------------------------------------- outliers
def test_an_upload_absurdly_far_away_is_an_outlier():
    distances = {0: 1.0, 1: 1.5, 2: 2.0, 3: 2 * OUTLIER}
    (found,) = find_outliers(distances).items()
    assert found[0] == 3
    assert (
        found[1]
        == "its upload is 114 times further from the download than the cohort's median"
    )


@pytest.mark.parametrize(
    "distances",
    [
        {},
        {0: 1.0, 1: 1e9},  # of two, either may be the odd one
        {0: 0.0, 1: 0.0, 2: 1e9},  # who has not moved says nothing about distances
        {0: 1.0, 1: 1.0, 2: OUTLIER},
    ],
)
def test_few_or_near_uploads_are_none(distances):
    assert find_outliers(distances) == {}
