"""Every method passes the conformance suite, and its numbers are those on record."""

import json
from pathlib import Path

import pytest
import torch

from fedtailor.core.tree import tensors
from fedtailor.core.wire import encode
from fedtailor.methods import find, names
from fedtailor.testing.conformance import check_method
from fedtailor.testing.small_world import run_small

GOLDEN = Path(__file__).parent / "golden.json"


@pytest.mark.parametrize("name", names())
def test_conformance(name):
    told = []
    assert check_method(find(name), told.append), "\n".join(told)


def digest(name: str) -> list[float]:
    """Sums of the server's and the clients' numbers after three rounds in float64."""
    played = run_small(find(name)(), dtype=torch.float64)
    states = [encode(played.server), *(played.store.get(k) for k in played.store.clients())]
    numbers = [x.double() for state in states for x in tensors(state) if x.numel()]
    return [float(sum(x.sum() for x in numbers)), float(sum(x.square().sum() for x in numbers))]


@pytest.mark.parametrize("name", names())
def test_a_change_of_numbers_is_a_decision(name):
    """After a deliberate change: run ``python tests/test_methods.py`` and say so in CHANGELOG.md."""
    known = json.loads(GOLDEN.read_text())
    assert name in known, "run 'python tests/test_methods.py' to record a new method"
    assert digest(name) == pytest.approx(known[name], rel=1e-6, abs=1e-6)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: digest(name) for name in names()}, indent=1) + "\n")
