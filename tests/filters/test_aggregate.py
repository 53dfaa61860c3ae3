"""Robust rules beneath methods: same in every executor, refused where there is no mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.filters.by_option.aggregate import Aggregate, merge_trees
from fedtailor.filters.by_option.attack import Attack, AttackSpec
from fedtailor.filters.tap import Tap
from fedtailor.maths.robust import make_rule, parse_rule
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedfomo import FedFomo
from fedtailor.methods.fedper import FedPer
from fedtailor.methods.fedproto import FedProto
from fedtailor.methods.local import Local
from fedtailor.methods.pfedc import PFedC
from fedtailor.testing.small_world import run_small
from helpers import gap

DOUBLE: dict[str, Any] = {"dtype": torch.float64}
RULES = [
    "median",
    "trimmed:0.2",
    "krum",
    "multikrum:3",
    "geometric",
    "clip:1",
    "bulyan",
]


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_merges_what_was_uploaded(rule):
    tap = Tap()
    filters = [Aggregate(rule, "fedavg"), tap]
    run = run_small(FedAvg(), rounds=1, filters=filters, **DOUBLE)
    uploads = [up.w for up in tap.traffic[0].up.values()]
    expected = merge_trees(make_rule(parse_rule(rule)), uploads)
    assert gap(run.server.w, expected) == 0
    flat = torch.stack([torch.cat([x.flatten() for x in w.values()]) for w in uploads])
    vector = make_rule(parse_rule(rule))(flat)
    merged = torch.cat([x.flatten() for x in run.server.w.values()])
    assert torch.allclose(merged, vector, atol=1e-12)


@pytest.mark.parametrize("executor", ["processes", "vmap"])
@pytest.mark.parametrize(
    "method", [FedPer(), pytest.param(Ditto(), marks=pytest.mark.slow)]
)
def test_same_in_every_executor(method, executor):
    attack = Attack(AttackSpec("noise", 10.0), frozenset([1, 4]))
    options: dict[str, Any] = {"rounds": 2, **DOUBLE}
    filters = [attack, Aggregate("krum", "x")]
    reference = run_small(method, filters=filters, **options)
    filters = [attack, Aggregate("krum", "x")]
    run = run_small(method, filters=filters, executor=executor, **options)
    if executor == "processes":
        assert run.hash == reference.hash
    assert gap(run.server, reference.server) < 1e-9


@pytest.mark.parametrize("method", [FedFomo(), FedProto(), Local()])
def test_methods_without_a_mean_are_refused_by_name(method):
    with pytest.raises(UserError, match="X does not merge uploads by their mean"):
        run_small(method, rounds=1, filters=[Aggregate("median", "X")])


def test_fields_that_the_rule_does_not_reach_are_named():
    aggregate = Aggregate("median", "pfedc")
    run = run_small(PFedC(), rounds=0)
    told = []
    original = aggregate.after_round

    def listen(t):
        notes = original(t)
        told.extend(notes.messages)
        return notes

    aggregate.after_round = listen
    run = run_small(PFedC(), rounds=2, filters=[aggregate])
    assert run.t == 2
    (line,) = told  # once
    assert "heads" in line and "weight" in line and "base" not in line
