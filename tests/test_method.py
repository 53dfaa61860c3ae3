"""The interface of a method: uploads and how they are combined, cohorts, hyper-parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params
from fedtailor.method import Cohort, Method, NoReplies, Uploads, hyper
from fedtailor.methods.fedavg import FedAvg
from fedtailor.testing.small_world import run_small
from helpers import overhear


class Up(NamedTuple):
    w: Params


def make_uploads(*values: float, clients: tuple[int, ...] = (0, 2, 5)) -> Uploads[Up]:
    """One number from every client, of which the second has three times as many examples."""
    replies = [Up({"x": torch.tensor([float(value)])}) for value in values]
    sizes = torch.tensor([1.0, 3.0, 1.0], dtype=torch.float64)[: len(values)]
    return Uploads(clients[: len(values)], sizes, replies)


def number(w: Params) -> float:
    return float(w["x"])


# ---------------------------------------------------------------- uploads
def test_a_field_of_all_uploads():
    ups = make_uploads(1, 2, 3)
    assert [number(w) for w in ups.w] == [1, 2, 3]
    assert len(ups) == 3
    with pytest.raises(AttributeError):
        _ = ups.nothing


def test_the_mean_is_weighted_by_examples_or_by_what_is_given():
    ups = make_uploads(1, 2, 3)
    assert number(ups.mean("w")) == pytest.approx((1 + 3 * 2 + 3) / 5)
    assert number(ups.mean("w", [1, 1, 2])) == pytest.approx((1 + 2 + 2 * 3) / 4)
    assert number(ups.sum("w")) == 6


def test_some_of_the_clients():
    some = make_uploads(1, 2, 3).of([5, 0, 77])
    assert some.clients == [0, 5]
    assert some.n.tolist() == [1, 1]
    assert number(some.mean("w")) == pytest.approx(2)


def test_uploads_by_client():
    by_client = make_uploads(1, 2, 3).by_client()
    assert {k: number(up.w) for k, up in by_client.items()} == {0: 1, 2: 2, 5: 3}


def test_means_by_group():
    ups = make_uploads(1, 2, 4)
    old = [{"x": torch.tensor([float(value)])} for value in (7, 8, 9)]
    means = ups.mean_by_group("w", {0: 0, 2: 0, 5: 2}, old)
    assert [number(w) for w in means] == pytest.approx([(1 + 3 * 2) / 4, 8, 4])
    assert number(old[0]) == 7  # what was given stays as it was


def test_another_reduction_is_kept_by_parts_and_copies():
    def largest(trees, weights):
        return {"x": torch.stack([w["x"] for w in trees]).max(0).values}

    ups = make_uploads(1, 3, 2).with_reduction(largest)
    assert number(ups.mean("w")) == 3
    assert number(ups.of([0, 5]).mean("w")) == 2
    negative = ups.map(lambda up: up._replace(w={"x": -up.w["x"]}))
    assert number(negative.mean("w")) == -1
    zero = {"x": torch.zeros(1)}
    assert [
        number(w) for w in ups.mean_by_group("w", {0: 0, 2: 1, 5: 0}, [zero, zero])
    ] == [2, 3]
    assert number(ups.sum("w")) == 6  # a sum stays one


# ---------------------------------------------------------------- cohorts
def make_cohort(clients=range(6), t: int = 1) -> Cohort:
    run = run_small(FedAvg(), rounds=1)
    return Cohort(run.exchange, clients, t)


def test_a_part_of_a_cohort():
    cohort = make_cohort([4, 1, 3])
    assert cohort.clients == [1, 3, 4]
    assert len(cohort) == 3
    assert cohort.only([3, 5, 4]).clients == [3, 4]


def test_shuffling_depends_on_round_and_clients():
    one = make_cohort().shuffle(range(6))
    assert sorted(one) == list(range(6))
    assert make_cohort().shuffle(range(6)) == one
    assert make_cohort(t=2).shuffle(range(6)) != one


def test_every_call_of_a_round_has_its_own_randomness():
    run = run_small(FedAvg(), rounds=1)
    cohort = Cohort(run.exchange, range(6), 2)
    down = run.method.send(run.server, 0)
    with torch_settings():
        first = cohort.run(run.method.local, down)
        second = cohort.only([0, 1]).run(run.method.local, down)
        third = cohort.run(run.method.local, lambda k: down)
    for other in (second, third):
        assert not torch.equal(other.w[0]["head.weight"], first.w[0]["head.weight"])


def test_no_replies_are_an_exception():
    run = run_small(FedAvg(), rounds=1)
    run.exchange.drop = 1.0
    with (
        pytest.raises(NoReplies, match="no reply to 'local' in round 3"),
        torch_settings(),
    ):
        Cohort(run.exchange, range(6), 3).run(
            run.method.local, run.method.send(run.server, 0)
        )


# ---------------------------------------------------------------- hyper-parameters
@dataclass(frozen=True)
class Partial(FedAvg):
    without: frozenset[Literal["a", "b"]] = hyper(
        frozenset(), "parts to leave out; none"
    )


def test_a_set_may_be_given_as_text():
    assert Partial(without="a, b").without == {"a", "b"}
    assert Partial(without="").without == frozenset()
    assert Partial(without=["a"]).without == frozenset({"a"})
    assert Partial(without="b,a") == Partial(without=frozenset("ab"))


def test_an_unknown_word_is_refused_by_name():
    with pytest.raises(UserError, match="no part to leave out named 'c'"):
        Partial(without="a,c")


# ---------------------------------------------------------------- what is given once
class Model(NamedTuple):
    w: Params


@dataclass(frozen=True)
class Gives(Method[Model, Model, Model, Model]):
    """Clients get a first head from the server, once; one that did not makes its own."""

    def init(self, new, clients):
        return Model(new(0))

    def given(self, server):
        return {"x": torch.ones(2)}

    def keep_given(self, c, given: Params) -> Model:
        return Model(given)

    def first_keep(self, c, down: Model) -> Model:
        return Model({"x": torch.zeros(2)})

    def send(self, server, k):
        return server

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        return down, keep

    def merge(self, server, ups):
        return server

    def personal(self, c, down, keep):
        return down.w


@pytest.mark.parametrize("executor", ["sequential", "processes", "vmap"])
def test_first_values_are_given_once(executor):
    run, heard = overhear(Gives(), rounds=2, executor=executor, late=True)
    given = [call for call in heard if call.call.function == "receive"]
    assert [list(call.down) for call in given] == [[0, 1, 2, 3, 4], [5]]
    for call in given:
        assert set(call.up.values()) == {None}
    for k in range(6):
        assert run.keep(k).w["x"].tolist() == [1, 1]
    run.executor.close()


def test_a_client_that_was_given_nothing_makes_its_own():
    run = run_small(Gives(), rounds=0)
    with torch_settings():
        _, _, keep = run.runner.load_client(2, run.server, 1)
    assert keep.w["x"].tolist() == [1, 1]
    run.runner.store = type(run.store)()  # as if it had never been reached
    with torch_settings():
        _, _, keep = run.runner.load_client(2, run.server, 1)
    assert keep.w["x"].tolist() == [0, 0]
