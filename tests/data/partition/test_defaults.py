"""One default partition, whichever way a run is started."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import make_dataset

import fedtailor
from fedtailor.cli.main import main
from fedtailor.data import build_dataset, load_dataset
from fedtailor.data.federation import Dataset
from fedtailor.data.partition.build import build_federation
from fedtailor.data.partition.defaults import (
    DEFAULT_CLIENTS,
    DEFAULT_PARTITION,
    DEFAULT_SPLIT,
    DEFAULT_VALIDATION,
)
from fedtailor.data.partition.saved import load_partition
from fedtailor.experiment.config import Experiment, make_experiment
from fedtailor.experiment.prepare import prepare_federation

QUICK: dict[str, Any] = {
    "method": "local",
    "rounds": 1,
    "executor": "sequential",
    "save": "none",
}
LIMIT = 400  # samples, so that runs are quick


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["fedtailor", *words.split()])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code

    return call


def run_in_python(data: Any, **options: Any) -> str:
    """The hash of the partition that ``fedtailor.run`` uses."""
    return fedtailor.run(data=data, limit=LIMIT, **QUICK, **options)["partition"]


def run_from_file(command: Callable[[str], None], **options: Any) -> str:
    """The hash of the partition that ``fedtailor run FILE`` uses."""
    Path("run.toml").write_text(
        make_experiment(QUICK | {"limit": LIMIT} | options).to_toml()
    )
    folder = tempfile.mkdtemp(dir=".")
    command(f"run run.toml --quiet --out {folder}")
    return json.loads(Path(folder, "result.json").read_text())["partition"]


def run_by_flags(command: Callable[[str], None], flags: str) -> str:
    """The hash of the partition that ``fedtailor run`` uses; ``fedtailor partition`` shows it."""
    quick = " ".join(f"--{key} {value}" for key, value in QUICK.items())
    flags = f"{flags} --limit {LIMIT}"
    folder = tempfile.mkdtemp(dir=".")
    command(f"run {quick} {flags} --quiet --out {folder}")
    command(f"partition {flags} --out shown")
    ran = load_partition(Path(folder, "partition.npz"))
    shown = load_partition("shown.npz")
    assert [v.tolist() for v in ran.train] == [v.tolist() for v in shown.train]
    return json.loads(Path(folder, "result.json").read_text())["partition"]


def write_own_file(data: Dataset) -> str:
    """The same data as a user's own file."""
    arrays = {"x": data.x.numpy(), "y": data.y.numpy()}
    if data.owner is not None:
        arrays["client"] = data.owner.numpy()
    np.savez("own.npz", **arrays)
    return "own.npz"


def test_data_without_owners_are_partitioned_alike_by_every_route(
    command: Callable[[str], None],
) -> None:
    digits = load_dataset("digits")
    written_out = build_federation(
        digits,
        partition="dirichlet:0.1",
        clients=20,
        split="merged:0.75",
        validation=0.1,
        limit=LIMIT,
    )
    own = write_own_file(digits)
    routes = {
        "a function": build_federation(digits, limit=LIMIT).hash,
        "a subset without a law": build_federation(
            digits, partition="subset:20/20", limit=LIMIT
        ).hash,
        "an experiment": prepare_federation(Experiment(limit=LIMIT))[0].hash,
        "a name in Python": run_in_python("digits"),
        "a data set in Python": run_in_python(digits),
        "a subset in Python": run_in_python("digits", partition="subset:20/20"),
        "flags": run_by_flags(command, "--data digits"),
        "a subset by flags": run_by_flags(
            command, "--data digits --partition subset:20/20"
        ),
        "a TOML file": run_from_file(command, data="digits"),
        "a user's own file in Python": run_in_python(own),
        "a user's own file by flags": run_by_flags(command, f"--data {own}"),
        "a user's own file in TOML": run_from_file(command, data=own),
    }
    assert routes == dict.fromkeys(routes, written_out.hash)


def test_data_with_owners_stay_with_them_by_every_route(
    command: Callable[[str], None],
) -> None:
    digits = load_dataset("digits")
    clients = [(digits.x[k::3].numpy(), digits.y[k::3].numpy()) for k in range(3)]
    data = build_dataset(clients)
    written_out = build_federation(
        data, partition="natural", split="merged:0.75", validation=0.1, limit=LIMIT
    )
    own = write_own_file(data)
    routes = {
        "a function": build_federation(data, limit=LIMIT).hash,
        "a subset without a law": build_federation(
            data, partition="subset:3/3", limit=LIMIT
        ).hash,
        "arrays in Python": run_in_python(clients),
        "a subset in Python": run_in_python(clients, partition="subset:3/3"),
        "a user's own file in Python": run_in_python(own),
        "flags": run_by_flags(command, f"--data {own}"),
        "a subset by flags": run_by_flags(
            command, f"--data {own} --partition subset:3/3"
        ),
        "a TOML file": run_from_file(command, data=own),
    }
    assert routes == dict.fromkeys(routes, written_out.hash)


def test_the_defaults_are_recorded() -> None:
    drawn = build_federation(make_dataset()).settings
    assert (
        drawn["partition"] == DEFAULT_PARTITION and drawn["clients"] == DEFAULT_CLIENTS
    )
    assert drawn["split"] == DEFAULT_SPLIT and drawn["validation"] == DEFAULT_VALIDATION
    natural = build_federation(make_dataset(owners=7))
    assert (
        natural.settings["partition"] == "natural" and natural.settings["clients"] == 7
    )
    assert natural.owners == tuple(f"owner {k}" for k in range(7))


def test_an_experiment_has_the_same_defaults() -> None:
    options = Experiment()
    assert options.partition is None and options.clients is None
    assert (options.split, options.validation) == (DEFAULT_SPLIT, DEFAULT_VALIDATION)
