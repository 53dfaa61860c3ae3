"""The rule behind ``--executor auto``: fixed, of the experiment alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedtailor.core.errors import UserError
from fedtailor.engine.choose_executor import (
    Choice,
    choose_executor,
    count_multiplications,
    suggest_executor,
)
from fedtailor.executors.world import World
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare
from fedtailor.experiment.run_folder import RunFolder


def make_world(rounds: int = 100, **options: object) -> World:
    chosen = {"method": "fedavg", "data": "digits", "partition": "iid", **options}
    return replace(prepare(make_experiment(chosen)).world, rounds=rounds)


def test_multiplications_are_those_of_the_layers():
    assert count_multiplications(make_world(model="mlp")) == 64 * 128 + 128 * 10
    assert count_multiplications(make_world(model="linear")) == 64 * 10


@pytest.mark.parametrize(
    ("options", "name"),
    [
        # tiny steps, many clients
        ({"model": "mlp", "clients": 20}, "vmap"),
        ({"model": "cnn", "clients": 20}, "vmap"),
        # too few clients to fill a block
        ({"model": "mlp", "clients": 5}, "processes"),
        # over before workers have started
        ({"model": "mlp", "clients": 5, "rounds": 10}, "sequential"),
        # runs one client at a time
        ({"model": "mlp", "clients": 20, "method": "fedma"}, "processes"),
        # batches of different sizes
        ({"model": "mlp", "clients": 20, "batching": "keep"}, "processes"),
    ],
)
def test_small_networks_of_many_clients_run_vectorised(options, name):
    assert suggest_executor(make_world(**options), 2).name == name


def test_it_says_why():
    many = suggest_executor(make_world(clients=20, model="mlp"), 2)
    assert many == Choice("vmap", "9,610 parameters are few and 20 clients many")
    few = suggest_executor(make_world(clients=5, model="mlp"), 1)
    assert few == Choice("sequential", "there is one core")


def choose(folder: RunFolder, resume: bool = False, **options: object) -> Choice:
    config = make_experiment({"method": "fedavg", "data": "digits", **options})
    return choose_executor(config, prepare(config).world, folder, resume)


def test_the_executor_asked_for_is_used(tmp_path):
    assert choose(RunFolder(tmp_path), executor="ray") == Choice("ray", "")


def test_a_run_continues_with_the_executor_it_began_with(tmp_path):
    folder = RunFolder(tmp_path)
    began = make_experiment(
        {"method": "fedavg", "data": "digits", "executor": "processes"}
    )
    folder.begin(began, "me", None)
    assert choose(folder, resume=True).name == "processes"
    assert choose(folder, resume=True, executor="sequential").name == "sequential"
    with pytest.raises(
        UserError, match="began with executor processes, whose rounding differs"
    ):
        choose(folder, resume=True, executor="vmap")


def test_vmap_needs_batches_of_one_size(tmp_path):
    with pytest.raises(UserError, match="which vmap cannot run; choose fill or drop"):
        choose(RunFolder(tmp_path), executor="vmap", batching="keep")
