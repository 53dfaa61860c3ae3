"""Every method passes the conformance suite, and its numbers are those on record.

``golden.json`` holds, for every method after three rounds in float64, two numbers for each field of
the server's state (``server.w``) and of the clients' private states (``keep.v``, over all clients):
the sum of the values of its tensors, and the sum of their squares. Run this file as a program to
record them anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.core.wire import encode
from fedtailor.methods import find, names
from fedtailor.testing.conformance import (
    CHECKS_OF_VARIANTS,
    check_method,
    run_check,
)
from fedtailor.testing.session import Session
from fedtailor.testing.small_world import SmallRun, run_small

GOLDEN = Path(__file__).parent / "golden.json"

# Hyper-parameters with which methods are checked beside their defaults.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "cd2pfed": [
        {"detach_teacher": True},
        {"p": 0.8, "li": False},
        {"p": 1.0, "li": False},
        {"ta": False, "cd": False},
    ],
    "ditto": [{"choose": "batch", "interleave": True}],
    "fed3p2p": [
        {"without": "filter"},
        {"without": "filter", "filter_scope": "private", "reinit": False},
        {"without": "phases"},
        {
            "filter": "extra_fc",
            "switch": "auto",
            "epsilon": 0.5,
            "participation": "regroup",
        },
    ],
    "fedamp": [{"attention": "cosine", "start": "own", "alpha": 5.0}],
    "fedavg": [{"finetune": 2}],
    "fedcp": [
        {"gate": "gumbel_always", "vector_time": "fresh", "activation": "tanh"},
        {"vector": "class_weighted"},
        {"vector": "norms", "vector_time": "fresh"},
        {"depth": 2, "norm": "group", "activation": "sigmoid"},
        {"without": "cs,ss"},
        {"without": "cpn,gh"},
        {"without": "cpn,gfm,gh"},
    ],
    "feddyn": [
        {"alpha": 0.1},
        {"alpha": 0.1, "by_size": True, "clip": 1.0, "deploy": "mean"},
    ],
    "fedper": [{"layers": 2}],
    "fedphp": [{"inherit": "end", "mu": 0.5}],
    "fedproto": [{"weights": "equal"}],
    "fedprox": [{"mu": 0.1}],
    "fedrep": [{"head_epochs": 2, "finetune": 1}],
    "fedrod": [{"gamma": 0.5}],
    "gpfl": [
        {"mlg_reduction": "sample_mean", "divide_p": True, "tau": 0.5},
        {"condition_source": "previous_local", "penalty": "norm"},
        {"without": "pci"},
        {"without": "cov"},
        {"without": "gce"},
        {"without": "cov,gce"},
    ],
    "lgfedavg": [{"share": "conv", "weights": "data"}],
    "perfedavg": [{"variant": "hf", "alpha": 0.05, "steps": 3}],
    "pfedc": [
        {
            "tasks": 3,
            "head_agg": "weighted",
            "pos_weight": True,
            "grad_norm": "loss+",
            "rep_dim": 32,
        },
        {
            "groups": "consecutive:4",
            "task_scope": "all",
            "grad_norm": "loss",
            "alpha_min": 0.1,
        },
        {"head_agg": "class_count", "grad_norm": "none", "head_step": "lambda"},
        {"distribute": "all", "lambda_sum": "tasks"},
        {"tasks": 1},
    ],
    "pfedme": [
        {"lam": 5.0, "inner": 2, "inner_lr": 0.1, "beta": 1.5},
        {
            "lam": 5.0,
            "inner": 2,
            "inner_lr": 0.1,
            "beta": 1.5,
            "local_rounds": 4,
            "by_size": True,
        },
    ],
}


@pytest.mark.parametrize("name", names())
def test_conformance(name):
    told: list[str] = []
    assert check_method(find(name), told.append), "\n".join(told)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_conformance_of_variants(name):
    for values in VARIANTS[name]:
        session = Session(find(name)(**values), is_variant=True)
        for check in CHECKS_OF_VARIANTS:
            outcome, reason = run_check(check, [session])
            assert outcome in ("ok", "skipped"), f"{check.__doc__}{reason}"


# ---------------------------------------------------------------- numbers on record
def list_tensors(run: SmallRun) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of all states, with the field that holds it."""
    states = [{f"server/{path}": value for path, value in encode(run.server).items()}]
    states += run.private_states().values()
    for state in states:
        for path, value in state.items():
            if isinstance(value, Tensor) and value.numel():
                owner, field, *_ = path.split("/")
                yield f"{owner}.{field}", value.double()


def sum_fields(name: str) -> dict[str, list[float]]:
    """The sum and the sum of squares of every field after three rounds in float64."""
    run = run_small(find(name)(), dtype=torch.float64)
    sums: dict[str, list[float]] = {}
    for field, value in list_tensors(run):
        total, squares = sums.get(field, (0.0, 0.0))
        total += float(value.sum())
        squares += float(value.square().sum())
        sums[field] = [total, squares]
    return sums


def add_up(sums: dict[str, list[float]]) -> list[float]:
    """The sums over all fields."""
    return [
        sum(total for total, _ in sums.values()),
        sum(squares for _, squares in sums.values()),
    ]


@pytest.mark.parametrize("name", names())
def test_a_change_of_numbers_is_a_decision(name):
    """After a deliberate change, record the numbers anew and say so in CHANGELOG.md."""
    known = json.loads(GOLDEN.read_text())
    assert name in known, f"run 'python {__file__}' to record a new method"
    found = sum_fields(name)
    assert found.keys() == known[name].keys(), (
        f"fields were renamed; in all {add_up(found)}, on record {add_up(known[name])}"
    )
    changed = [
        f"{field}: {found[field]}, on record {expected}"
        for field, expected in known[name].items()
        if found[field] != pytest.approx(expected, rel=1e-6, abs=1e-6)
    ]
    assert not changed, "\n".join(changed)


if __name__ == "__main__":
    golden = {name: sum_fields(name) for name in names()}
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
