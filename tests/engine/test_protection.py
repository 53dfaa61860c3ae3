"""Whole runs: epsilon is kept and remembered, refusals come in time, attackers do not count."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

import fedtailor
from fedtailor import methods
from fedtailor.core.errors import UserError
from fedtailor.core.torch_settings import torch_settings
from fedtailor.engine.protection import refuse_in_time
from fedtailor.engine.stopping import Stopped
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare
from fedtailor.experiment.run_folder import read_journal
from fedtailor.filters.by_option.attack import choose_attackers
from fedtailor.maths.accounting import Step, spend

SMALL: dict[str, Any] = {
    "data": "digits",
    "clients": 6,
    "limit": 400,
    "executor": "sequential",
    "dp_accountant": "rdp",
}
DP: dict[str, Any] = {**SMALL, "dp": "client", "dp_noise": 4.0}
SAMPLE: dict[str, Any] = {**SMALL, "dp": "sample", "batching": "drop"}


# ---------------------------------------------------------------- epsilon
def test_epsilon_is_in_every_round_and_in_the_result(tmp_path):
    result = fedtailor.run("fedavg", rounds=3, out=tmp_path / "r", **DP)
    records = read_journal(tmp_path / "r" / "rounds.jsonl")
    spent = [record["privacy"]["epsilon"] for record in records]
    wanted = [spend([Step(4.0, 1.0, t)], 1e-5) for t in (1, 2, 3)]
    assert spent == pytest.approx(wanted)
    assert result["privacy"]["epsilon"] == pytest.approx(wanted[-1])
    assert result["privacy"]["delta"] == 1e-5


def test_the_run_ends_before_the_round_that_would_exceed_epsilon(tmp_path):
    limit = spend([Step(4.0, 1.0, 3)], 1e-5) + 0.01
    options = {**DP, "dp_epsilon": limit, "evaluate_every": 2}
    result = fedtailor.run("fedavg", rounds=9, out=tmp_path / "r", **options)
    assert result["rounds"] == 3
    assert result["privacy"]["epsilon"] <= limit
    assert read_journal(tmp_path / "r" / "rounds.jsonl")[-1]["t"] == 3
    # going on does not help
    again = fedtailor.run(
        "fedavg", rounds=12, out=tmp_path / "r", resume=True, **options
    )
    assert again["rounds"] == 3
    assert again["hash"] == result["hash"]


def test_a_run_that_may_not_begin_is_refused():
    with pytest.raises(UserError, match="round 1 would spend epsilon"):
        fedtailor.run("fedavg", rounds=3, **DP, dp_epsilon=0.01)


@pytest.mark.parametrize("options", [DP, SAMPLE])
def test_a_target_epsilon_is_met_at_the_last_round(options):
    options = {**options, "dp_noise": None, "dp_epsilon": 8.0}
    result = fedtailor.run("fedavg", rounds=4, **options)
    assert result["rounds"] == 4
    assert 7.9 < result["privacy"]["epsilon"] <= 8.0


def test_poisson_sampling_needs_less_noise():
    options = {**DP, "dp_noise": None, "dp_epsilon": 8.0, "participation": "0.3"}
    fixed = fedtailor.run("fedavg", rounds=5, **options)
    poisson = fedtailor.run("fedavg", rounds=5, **options, sampling="poisson")
    assert poisson["privacy"]["noise"] < 0.8 * fixed["privacy"]["noise"]
    assert poisson["privacy"]["epsilon"] <= 8.0


def test_poisson_draws_clients_one_by_one(tmp_path):
    """Cohorts differ in size, and one of nobody is a round like any other."""
    options = {**DP, "participation": "0.2", "sampling": "poisson"}
    result = fedtailor.run("fedavg", rounds=12, out=tmp_path / "r", **options)
    records = read_journal(tmp_path / "r" / "rounds.jsonl")
    sizes = [len(record["clients"]) for record in records]
    assert 0 in sizes and len(set(sizes)) > 2
    assert result["rounds"] == 12
    losses = [record["evaluation"]["test"]["loss"] for record in records]
    empty = sizes.index(0)
    # noise was released
    assert empty == 0 or losses[empty] != losses[empty - 1]


# ---------------------------------------------------------------- resuming
def stop_after(rounds: int) -> fedtailor.Observer:
    """Stops the run as Ctrl-C does."""

    class Stop(fedtailor.Observer):
        def round(self, record):
            if record.t == rounds:
                os.kill(os.getpid(), signal.SIGINT)

    return Stop()


def test_a_resumed_run_has_spent_what_it_spent(tmp_path):
    whole = fedtailor.run("fedper", rounds=5, out=tmp_path / "whole", **DP)
    with pytest.raises(Stopped):
        fedtailor.run(
            "fedper", rounds=5, out=tmp_path / "r", observers=[stop_after(2)], **DP
        )
    rest = fedtailor.run("fedper", rounds=5, out=tmp_path / "r", resume=True, **DP)
    assert rest["hash"] == whole["hash"]
    assert rest["privacy"] == whole["privacy"]


@pytest.mark.parametrize(
    "level", ["client", pytest.param("sample", marks=pytest.mark.slow)]
)
def test_a_killed_run_ends_like_an_undisturbed_one(tmp_path, level):
    """SIGKILL between checkpoints: the same bits and the same spending."""
    options = {**(DP if level == "client" else SAMPLE), "dp_noise": 4.0}
    whole = fedtailor.run("fedavg", rounds=12, out=tmp_path / "whole", **options)
    words = [sys.executable, "-m", "fedtailor", "run", "--method", "fedavg"]
    for name, value in {**options, "rounds": 12, "checkpoint_every": 4}.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    out = tmp_path / "r"
    process = subprocess.Popen([*words, "--out", str(out)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    journal = out / "rounds.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and len(journal.read_text().splitlines()) >= 6:
            process.kill()
            break
        time.sleep(0.005)
    process.wait()
    ledger = json.loads((out / "ledger.json").read_text())
    assert len(ledger["privacy"]["rounds"]) >= 6
    rest = fedtailor.run("fedavg", rounds=12, out=out, resume=True, **options)
    assert rest["hash"] == whole["hash"]
    assert rest["privacy"] == whole["privacy"]


# ---------------------------------------------------------------- executors
@pytest.mark.parametrize(
    "method", ["fedper", pytest.param("fedavg", marks=pytest.mark.slow)]
)
def test_sample_level_is_the_same_in_every_executor(method):
    options = {**SAMPLE, "dp_noise": 1.0, "rounds": 2, "dtype": "float64"}
    results = {}
    for executor in ("sequential", "processes", "vmap"):
        options["executor"] = executor
        results[executor] = fedtailor.run(method, **options)
    assert results["processes"]["hash"] == results["sequential"]["hash"]
    vmapped = results["vmap"]["measures"]["loss"]
    assert vmapped == pytest.approx(results["sequential"]["measures"]["loss"], abs=1e-9)


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("fedproto", DP, "fedproto uploads"),
        ("cfl", DP, "cfl looks at every client's upload"),
        ("gpfl", SAMPLE | {"dp_noise": 1.0}, "gpfl: .*looks at the data"),
        ("fedrep", SAMPLE | {"dp_noise": 1.0}, "fedrep: .*--dp-passes"),
        ("perfedavg", SAMPLE | {"dp_noise": 1.0}, "perfedavg: .*training loop"),
        ("fedamp", SMALL | {"aggregate": "krum"}, "fedamp does not merge"),
        ("fedavg", DP | {"aggregate": "krum"}, "covers a mean"),
        ("fedavg", SAMPLE | {"dp_noise": 1.0, "batching": "fill"}, "batching drop"),
        ("fedavg", SAMPLE | {"dp_noise": 1.0, "batch": 100}, "fewer than a batch"),
        ("fedavg", SMALL | {"dp": "client"}, "--dp-noise or --dp-epsilon"),
        ("fedavg", SMALL | {"dp_noise": 1.0}, "needs dp"),
    ],
)
def test_what_cannot_be_had_is_refused_before_the_run(
    tmp_path, method, options, reason
):
    with pytest.raises(UserError, match=reason) as error:
        fedtailor.run(method, rounds=2, out=tmp_path / "r", **options)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "r" / "rounds.jsonl").exists()


@pytest.mark.parametrize("level", ["client", "sample"])
def test_batchnorm_is_refused_by_name(level):
    options = {**(DP if level == "client" else SAMPLE), "dp_noise": 1.0}
    with pytest.raises(UserError, match="BatchNorm"):
        fedtailor.run("fedavg", model="resnet32", rounds=1, **options)


# ---------------------------------------------------------------- attackers
@pytest.mark.parametrize("executor", ["sequential", "processes"])
def test_attackers_do_not_count_and_a_backdoor_is_measured(executor):
    options = {
        **SMALL,
        "clients": 10,
        "limit": None,
        "attack": "backdoor:5",
        "lr": 0.1,
        "partition": "dirichlet:1.0",
        "executor": executor,
    }
    result = fedtailor.run("fedavg", rounds=4, **options)
    attackers = choose_attackers(0, 10, 0.2)
    assert result["attack"]["attackers"] == sorted(attackers)
    evaluated = {client["id"] for client in result["clients"]}
    assert evaluated == set(range(10)) - attackers
    assert 0.5 < result["attack"]["backdoor_success"] <= 1
    if executor == "processes":
        plain = fedtailor.run(
            "fedavg", rounds=4, **options | {"executor": "sequential"}
        )
        assert plain["hash"] == result["hash"]
        assert plain["attack"] == result["attack"]


def test_the_median_withstands_what_the_mean_does_not():
    options = {**SMALL, "clients": 10, "limit": None, "partition": "dirichlet:1.0"}
    attacked = {**options, "lr": 0.1, "attack": "scale:-5", "rounds": 8}
    with_mean = fedtailor.run("fedavg", **attacked)
    with_median = fedtailor.run("fedavg", **attacked, aggregate="median")
    assert with_median["accuracy"]["last"] > with_mean["accuracy"]["last"] + 0.2


# ---------------------------------------------------------------- every method
WITHOUT_MEAN = "fedamp fedfomo fedproto local mocha"
CLIENT_LEVEL = (
    "ditto fedavg fedbn fedcp fedper fedphp fedprox fedrep fedrod gpfl lgfedavg local"
    " perfedavg pfedme"
)
SAMPLE_LEVEL = (
    "cfl ditto fedamp fedavg fedbn fedcp feddyn fedper fedphp fedprox fedrep lgfedavg"
    " local"
)


def find_allowed(options: dict[str, Any]) -> set[str]:
    """The methods that pass the trial."""
    allowed = set()
    for name in methods.names():
        kind = methods.find(name).test_backbone
        model = {} if kind == "cnn" else {"model": kind}
        setup = prepare(make_experiment({"method": name, **options, **model}))
        try:
            with torch_settings(setup.world.dtype):
                refuse_in_time(setup)
        except UserError:
            continue
        allowed.add(name)
    return allowed


@pytest.mark.slow
def test_which_methods_can_as_docs_privacy_says():
    assert find_allowed({**SMALL, "aggregate": "median"}) == set(methods.names()) - set(
        WITHOUT_MEAN.split()
    )
    assert find_allowed(DP) == set(CLIENT_LEVEL.split())
    sample = {**SAMPLE, "dp_noise": 1.0, "dp_passes": 12}
    assert find_allowed(sample) == set(SAMPLE_LEVEL.split())
