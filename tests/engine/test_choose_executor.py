"""The rule behind ``--executor auto``: fixed, of the experiment alone."""

from dataclasses import replace

import pytest

from fedtailor.engine.choose_executor import Choice, _multiplications, choose
from fedtailor.executors.world import World
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare


def world(rounds: int = 100, **options: object) -> World:
    chosen = {"method": "fedavg", "data": "digits", "partition": "iid", **options}
    return replace(prepare(make_experiment(chosen)).world, rounds=rounds)


def test_multiplications_are_those_of_the_layers() -> None:
    assert _multiplications(world(model="mlp")) == 64 * 128 + 128 * 10
    assert _multiplications(world(model="linear")) == 64 * 10


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"model": "mlp", "clients": 20}, "vmap"),  # tiny steps, many clients
        ({"model": "cnn", "clients": 20}, "vmap"),
        ({"model": "mlp", "clients": 5}, "processes"),  # too few clients to fill a block
        (
            {"model": "mlp", "clients": 5, "rounds": 10},
            "sequential",
        ),  # over before workers have started
        (
            {"model": "mlp", "clients": 20, "method": "fedma"},
            "processes",
        ),  # runs one client at a time
    ],
)
def test_small_networks_of_many_clients_run_vectorised(
    options: dict[str, object], name: str
) -> None:
    assert choose(world(**options), 2).name == name


def test_it_says_why() -> None:
    assert choose(world(clients=20, model="mlp"), 2) == Choice(
        "vmap", "9,610 parameters are few and 20 clients many"
    )
    assert choose(world(clients=5, model="mlp"), 1) == Choice("sequential", "there is one core")
