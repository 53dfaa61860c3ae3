"""Every check of the conformance suite finds what it is there for.

An Example of a Paper, 2020, Algorithm 1 (the docstring that a method's file needs).
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedtailor.core.tree import Params, tmap
from fedtailor.method import Method, hyper, one_by_one
from fedtailor.methods import find
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.pfedc import PFedC
from fedtailor.testing import conformance
from fedtailor.testing.conformance import (
    CHECKS,
    CHECKS_OF_VARIANTS,
    check_method,
    run_check,
)
from fedtailor.testing.leaks import find_leak
from fedtailor.testing.session import Session


class Model(NamedTuple):
    w: Params


@dataclass(frozen=True)
class Sound(Method[Model, Model, Model, Model]):
    """FedAvg in which a client also keeps its own model."""

    def init(self, new, clients):
        return Model(new(0))

    def send(self, server, k):
        return server

    def first_keep(self, c, down: Model) -> Model:
        return down

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        own = Model(tmap(lambda x: 0.5 * x, down.w))
        return Model(c.train(c.loss, down.w)), own

    def merge(self, server, ups):
        return Model(ups.mean("w"))

    def personal(self, c, down, keep):
        return down.w


def failure_of(check: conformance.Check, method: Method) -> str:
    """Why a check fails; empty if it passes."""
    outcome, reason = run_check(check, [Session(method)])
    assert outcome in ("ok", "FAILED"), reason
    return reason


@pytest.fixture(scope="module")
def sound() -> Session:
    return Session(Sound())


# this file imports more than a method's file may
OTHER_CHECKS = [check for check in CHECKS if check is not conformance.stands_alone]


@pytest.mark.parametrize("check", OTHER_CHECKS, ids=lambda check: check.__name__)
def test_a_sound_method_passes(check, sound):
    assert run_check(check, [sound]) == ("ok", "")


# ---------------------------------------------------------------- what the file says
class Thawed(Sound):
    __dataclass_params__ = None


@dataclass(frozen=True)
class Undocumented(Sound):
    lam: float = 1.0
    mu: float = hyper(1.0, "mu, a weight; 1 in the paper")


def test_a_class_that_is_not_frozen():
    found = failure_of(conformance.is_frozen_and_documented, Thawed())
    assert found == ": decorate the class with @dataclass(frozen=True)"


def test_a_hyper_parameter_without_a_doc():
    found = failure_of(conformance.is_frozen_and_documented, Undocumented())
    assert found.endswith("symbol, meaning, source for lam")


def write_method(tmp_path, first: str) -> type[Method]:
    """FedAvg in a file of somebody's own."""
    path = tmp_path / "own.py"
    path.write_text(
        f"{first}\n"
        "from dataclasses import dataclass\n"
        "from fedtailor.methods.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\n"
        "class Own(FedAvg):\n"
        "    pass\n"
    )
    return find(str(path))


def test_a_file_that_imports_the_engine(tmp_path):
    own = write_method(
        tmp_path, '"""Own. Paper, 2020."""\nfrom fedtailor.engine.loop import Run'
    )
    assert (
        failure_of(conformance.stands_alone, own())
        == ": it imports fedtailor.engine.loop"
    )


def test_a_file_without_a_paper(tmp_path):
    own = write_method(tmp_path, '"""Own.\n\nNo paper at all."""')
    assert failure_of(conformance.names_its_paper, own()) != ""


def test_style_is_advice_for_other_peoples_methods(tmp_path, monkeypatch):
    own = write_method(tmp_path, '"""Own.\n\nNo paper at all."""')
    monkeypatch.setattr(conformance, "CHECKS", [conformance.names_its_paper])
    told: list[str] = []
    assert check_method(own, told.append)
    assert told[0].startswith("advice  its docstring names the paper")
    assert told[1] == "1 of 1 checks passed"


# ---------------------------------------------------------------- types
@dataclass(frozen=True)
class Mistyped(Sound):
    """Says that it sends a number, and sends a tensor in a tuple."""

    def local(self, c, down: Model, keep: Model) -> tuple[float, Model]:
        return (torch.ones(2), 1.0), keep

    def expected_upload(self, down, t):
        return {}

    def merge(self, server, ups):
        return server


@dataclass(frozen=True)
class Untyped(Sound):
    def local(self, c, down, keep):
        return down, keep


def test_types_that_are_wrong():
    assert failure_of(conformance.declares_its_types, Mistyped()) != ""


def test_a_function_without_types_has_those_of_the_class_it_derives_from():
    assert failure_of(conformance.declares_its_types, Untyped()) == ""


# ---------------------------------------------------------------- purity
@dataclass(frozen=True)
class InPlace(Sound):
    """Changes what it is given."""

    field: str = "down"

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        given = down if self.field == "down" else keep
        given.w["head.bias"].add_(1)
        return Model(tmap(torch.clone, down.w)), Model(tmap(torch.clone, keep.w))


@pytest.mark.parametrize("name", ["down", "keep"])
def test_a_client_function_that_changes_what_it_is_given(name):
    found = failure_of(conformance.leaves_inputs_alone, InPlace(name))
    assert found.startswith(": what local was given is not the same at ")


@dataclass(frozen=True)
class Drifting(Sound):
    """Gives another result each time."""

    calls: list[int] = field(default_factory=list)

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        self.calls.append(1)
        return Model(tmap(lambda x: x + len(self.calls), down.w)), keep


def test_a_result_that_is_not_the_same_again():
    found = failure_of(conformance.leaves_inputs_alone, Drifting())
    assert found.startswith(": the second result is not the same at ")


def test_memory_outside_of_the_states():
    found = failure_of(conformance.resumes_where_it_stopped, Drifting())
    assert found == ": something a round depends on is neither in Server nor in Keep"


@dataclass(frozen=True)
class Leaking(Sound):
    """Keeps what it sends."""

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        w = c.train(c.loss, down.w)
        return Model(w), Model(w)


@dataclass(frozen=True)
class Lending(Leaking):
    also_sent = ("w",)


def test_private_things_that_go_up():
    found = failure_of(conformance.keeps_private_things_private, Leaking())
    assert found.startswith(": Keep.w of client 0 goes up: ")
    assert failure_of(conformance.keeps_private_things_private, Lending()) == ""


HEAD = "head.weight"


class Head(NamedTuple):
    head: Tensor


class Hint(NamedTuple):
    """A model, and something more about the sender's head."""

    w: Params
    more: Tensor


@dataclass(frozen=True)
class Personal(Method[Hint, Hint, Head, Hint]):
    """FedPer, but that clients may give their heads away, and the server may pass them on."""

    gives: str = "nothing"

    def init(self, new, clients):
        w = new(0)
        return Hint(w, torch.zeros_like(w[HEAD]))

    def send(self, server, k):
        return server

    def first_keep(self, c, down: Hint) -> Head:
        return Head(down.w[HEAD])

    def local(self, c, down: Hint, keep: Head) -> tuple[Hint, Head]:
        w = c.train(c.loss, {**down.w, HEAD: keep.head})
        head = w[HEAD]
        shared = {**w, HEAD: down.w[HEAD]}
        return Hint(shared, self.give(c, head)), Head(head)

    def give(self, c, head: Tensor) -> Tensor:
        """What goes up besides the shared part: in the shape of a head."""
        row = torch.arange(len(head))[:, None] == 2
        column = torch.arange(head.shape[1]) == 3
        given = {
            "nothing": head * 0,
            "row": head * row,
            "column": head * column,
            "scaled": head * c.n,
            "divided": -head / c.n,
            "square": head**2,
        }
        return given[self.gives]

    def expected_upload(self, down, t):
        return {}

    def merge(self, server, ups):
        return Hint(ups.mean("w"), ups.more[0])

    def personal(self, c, down, keep):
        return {**down.w, HEAD: keep.head}


@pytest.mark.parametrize("gives", ["row", "column", "scaled", "divided"])
def test_parts_and_multiples_of_private_things_that_go_up(gives):
    found = failure_of(conformance.keeps_private_things_private, Personal(gives))
    assert found.startswith(": Keep.head of client 0 goes up: ")


@pytest.mark.parametrize("gives", ["nothing", "square"])
def test_what_is_no_linear_image_is_not_found(gives):
    """What the check promises, and no more."""
    found = failure_of(conformance.keeps_private_things_private, Personal(gives))
    assert found == ""


@dataclass(frozen=True)
class Hidden(Personal):
    """The upload is disguised; what the server makes of it goes to all clients."""

    def give(self, c, head: Tensor) -> Tensor:
        return super().give(c, head) ** 3

    def merge(self, server, ups):
        root = ups.more[0].sign() * ups.more[0].abs() ** (1 / 3)
        return Hint(ups.mean("w"), root)


@pytest.mark.parametrize("gives", ["row", "scaled"])
def test_private_things_that_come_down_to_others(gives):
    found = failure_of(conformance.keeps_private_things_private, Hidden(gives))
    assert found.startswith(": Keep.head of client 0 goes down to client 1: ")


@dataclass(frozen=True)
class FormerPFedC(PFedC):
    """pFedC as it was: its heads are said to stay, and all of them go to all clients."""

    also_sent = ()
    distribute: str = hyper("all", "heads a client is sent")


def test_the_former_pfedc_is_caught():
    """It leaks a row for every task of a client; no whole tensor is ever the same."""
    found = failure_of(conformance.keeps_private_things_private, FormerPFedC())
    assert found.startswith(": Keep.own of client 0 goes up: ")
    states, traffic = conformance._follow_states(
        Session(FormerPFedC()), conformance.EVERYBODY
    )
    for call in traffic:
        call.up.clear()  # what others are sent is enough
    leak = find_leak(states, traffic)
    assert leak is not None
    assert leak.receiver is not None


def test_the_present_pfedc_sends_nobody_the_rows_of_others_tasks():
    """Every private row in a download is of a task that its receiver has, too."""
    states, traffic = conformance._follow_states(
        Session(PFedC()), conformance.EVERYBODY
    )
    for t, state in enumerate(states, start=1):
        rows = {k: keep.own[HEAD] for k, keep in state.items()}
        for call in traffic:
            if call.t <= t:
                continue
            for j, down in call.down.items():
                is_own = rows[j].any(1)
                received = down.sums[0].heads[HEAD]
                assert not received[~is_own].any()
                assert received[is_own].any(1).all()


@dataclass(frozen=True)
class Gambling(Sound):
    """Draws from a global generator."""

    generator: str = "torch"

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        draws = {
            "torch": lambda: torch.rand(1),
            "numpy": np.random.rand,
            "random": random.random,
        }
        draws[self.generator]()
        return super().local(c, down, keep)


@pytest.mark.parametrize("generator", ["torch", "numpy", "random"])
def test_global_randomness(generator):
    found = failure_of(conformance.leaves_global_randomness_alone, Gambling(generator))
    assert found == ": draw from batch.rng, c.rng or cohort.rng instead"


# ---------------------------------------------------------------- executors
HERE = os.getpid()


@dataclass(frozen=True)
class Local(Sound):
    """Depends on the process in which it runs."""

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        shift = 0.0 if os.getpid() == HERE else 1e-6
        return Model(tmap(lambda x: x + shift, down.w)), keep


def test_a_worker_that_computes_something_else():
    found = failure_of(conformance.agrees_with_processes, Local())
    assert found == ": results differ with group normalisation"


@dataclass(frozen=True)
class Padded(Sound):
    """Takes the padding of a block for data."""

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        mean = c.x.mean()
        return Model(tmap(lambda x: x + 1e-3 * mean, down.w)), keep


def test_a_block_that_computes_something_else():
    found = failure_of(conformance.agrees_with_vmap, Padded())
    assert found.startswith(
        ": blocks of 2 with group normalisation: results differ by "
    )


@dataclass(frozen=True)
class PaddedModel(Sound):
    """Takes the padding for data when it makes the personal model."""

    def personal(self, c, down, keep):
        return tmap(lambda x: x + 0.1 * c.x.mean(), down.w)


def test_personal_models_that_differ_under_vmap():
    found = failure_of(conformance.agrees_with_vmap, PaddedModel())
    assert "the score of client" in found


@dataclass(frozen=True)
class Branching(Sound):
    """Cannot be vectorised, and is not marked so."""

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        if bool(c.y.sum() > 10):
            down = Model(c.train(c.loss, down.w))
        return down, keep


@dataclass(frozen=True)
class Marked(Branching):
    @one_by_one
    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        return super().local(c, down, keep)


def test_a_function_that_cannot_be_vectorised_must_be_marked():
    found = failure_of(conformance.vectorises, Branching())
    assert found.startswith(": vmap: 'local' runs one client at a time, because ")
    outcome, reason = run_check(conformance.vectorises, [Session(Marked())])
    assert (outcome, reason) == (
        "skipped",
        ": its client functions are marked one_by_one",
    )


@dataclass(frozen=True)
class Statistical(Sound):
    """Cannot do without the statistics that clients keep to themselves."""

    def merge(self, server, ups):
        total = sum(w["base.norm1.running_mean"] for w in ups.w)
        mean = super().merge(server, ups).w
        return Model(mean | {"base.norm1.running_mean": total / len(ups)})


def test_a_server_that_needs_local_statistics():
    found = failure_of(conformance.agrees_on_buffers, Statistical())
    assert found == ": KeyError: 'base.norm1.running_mean'"


# ---------------------------------------------------------------- absences
@dataclass(frozen=True)
class Complete(Sound):
    """Cannot do without a client."""

    def merge(self, server, ups):
        return Model(ups.by_client()[4].w)


def test_a_server_that_needs_every_client():
    assert failure_of(conformance.survives_absences, Complete()) == ": KeyError: 4"


@dataclass(frozen=True)
class Exploding(Sound):
    """Divides by the number of clients that did not reply."""

    def merge(self, server, ups):
        missing = 3 - min(len(ups), 3)
        return Model(tmap(lambda x: x / missing if missing else x / 0.0, ups.mean("w")))


def test_states_that_are_not_finite():
    assert failure_of(conformance.survives_absences, Exploding()) != ""


@dataclass(frozen=True)
class Refusing(Sound):
    """Sends a shape that the server refuses in later rounds."""

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        if c.t > 2:
            return Model(tmap(lambda x: x.flatten(), down.w)), keep
        return down, keep


def test_uploads_that_are_left_out():
    found = failure_of(conformance.survives_absences, Refusing())
    assert "is left out: its upload's w/" in found


@dataclass(frozen=True)
class Registered(Sound):
    """Knows its clients by number."""

    def send(self, server, k):
        return {i: server for i in range(6)}[k]


@dataclass(frozen=True)
class Bare(Sound):
    """Predicts a number instead of logits."""

    def predict(self, c, w, x) -> Tensor:
        return c.model(w, x).sum(1)


def test_unknown_clients():
    assert (
        failure_of(conformance.serves_unknown_clients, Registered())
        == ": KeyError: 999"
    )
    found = failure_of(conformance.serves_unknown_clients, Bare())
    assert found == ": its model predicts a tensor of shape (8,)"


# ---------------------------------------------------------------- learning
@dataclass(frozen=True)
class Lazy(Sound):
    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        return down, keep


def test_a_method_that_learns_nothing():
    assert failure_of(conformance.learns, Lazy()).startswith(": test accuracy is 0.")


# ---------------------------------------------------------------- the report
@dataclass(frozen=True)
class Fickle(Sound):
    """Sound by default."""

    learns: bool = hyper(True, "whether it learns")

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        return super().local(c, down, keep) if self.learns else (down, keep)


def test_a_failing_variant_is_named(monkeypatch):
    monkeypatch.setattr(conformance, "CHECKS", [conformance.learns])
    told: list[str] = []
    assert check_method(Fickle, told.append)
    assert told == [
        "ok      its personal models learn real digits",
        "1 of 1 checks passed",
    ]
    told.clear()
    assert not check_method(Fickle, told.append, variants=[Fickle(learns=False)])
    assert told[0].startswith(
        "FAILED  its personal models learn real digits: test accuracy is "
    )
    assert told[0].endswith(" (with Fickle(learns=False))")
    assert told[1] == "0 of 1 checks passed"


def test_a_check_that_does_not_apply_is_not_ok(monkeypatch):
    monkeypatch.setattr(
        conformance, "CHECKS", [conformance.keeps_private_things_private]
    )
    told: list[str] = []
    assert check_method(FedAvg, told.append)
    assert told[0].startswith("skipped nothing a client keeps goes up or to others")
    assert told[0].endswith(": it keeps nothing")
    assert told[1] == "0 of 0 checks passed"


def test_every_check_says_what_it_checks():
    for check in CHECKS:
        assert check.__doc__
    assert set(CHECKS_OF_VARIANTS) <= set(CHECKS)
