"""Whole runs with secure sums: refusals in time, resuming, what the result says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor import methods
from fedtailor.core.errors import UserError
from fedtailor.core.torch_settings import torch_settings
from fedtailor.engine.protection import refuse_in_time
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare

SMALL: dict[str, Any] = {
    "data": "digits",
    "clients": 6,
    "limit": 400,
    "executor": "sequential",
}
SECURE: dict[str, Any] = {**SMALL, "secure_sum": True}


# ---------------------------------------------------------------- the result
def test_masked_ends_like_plain_fixed_point(tmp_path: Path) -> None:
    """Of FedPer, and of pFedC, whose heads are added up by the method itself."""
    for method in ("fedper", "pfedc"):
        plain = fedtailor.run(method, rounds=2, **SMALL, encrypt="all", he="plain")
        masked = fedtailor.run(method, rounds=2, **SECURE)
        assert masked["clients"] == plain["clients"]
        assert masked["accuracy"] == plain["accuracy"]
        assert masked["measures"] == plain["measures"]
        assert masked["secure_sum"]["bytes"]["up"] > 0


def test_the_noise_of_clients_is_spent_as_without_masks(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "dp": "client",
        "dp_noise": 4.0,
        "dp_clip": 0.1,  # noise beyond --sum-range would lose clients
        "dp_where": "clients",
        "dp_accountant": "rdp",
    }
    secure = fedtailor.run("fedper", rounds=2, **SECURE, **options)
    clear = fedtailor.run("fedper", rounds=2, **SMALL, **options)
    assert secure["privacy"] == clear["privacy"]


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("fedavg", {"aggregate": "median"}, "must look at every upload"),
        ("fedavg", {"encrypt": "all", "he": "plain"}, "leave one of them out"),
        ("fedavg", {"participation": "0.2"}, "one at a time"),
        ("fedavg", {"dp": "client", "dp_noise": 1.0}, "take --dp-where clients"),
        ("fedavg", {"sum_range": 1e12}, "take a smaller range"),
        ("fedfomo", {}, "secure_sum: fedfomo"),
        ("cfl", {}, "secure_sum: cfl looks at every client's"),
        ("fedamp", {}, "secure_sum: fedamp looks at every client's"),
        ("fedclust", {}, "secure_sum: fedclust asks clients .* before they train"),
    ],
)
def test_what_cannot_be_had_is_refused_before_the_run(
    tmp_path: Path, method: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError, match=reason) as error:
        fedtailor.run(method, rounds=2, out=tmp_path / "r", **SECURE, **options)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "r" / "rounds.jsonl").exists()


def test_a_run_that_always_loses_too_many_says_so() -> None:
    with pytest.raises(UserError, match="no usable reply in 2 rounds"):
        fedtailor.run("fedavg", rounds=4, **SECURE, drop=0.9, max_silent_rounds=2)


def test_without_the_packages_there_is_one_clear_line() -> None:
    program = (
        "import sys; sys.modules['Crypto'] = None; import fedtailor;"
        "fedtailor.run('fedavg', data='digits', limit=300, rounds=1, secure_sum=True)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    last = found.stderr.strip().splitlines()[-1]
    assert last.endswith("secure sums need an extra: pip install 'fedtailor[secure]'")


# ---------------------------------------------------------------- resuming
def start(out: Path, executor: str, *more: str) -> subprocess.Popen[str]:
    """Start a run of eight rounds in a process of its own."""
    options = "--method fedper --data digits --clients 6 --limit 400 --rounds 8"
    options += f" --secure-sum --drop 0.05 --checkpoint-every 2 --executor {executor}"
    command = [sys.executable, "-m", "fedtailor", "run", *options.split()]
    return subprocess.Popen(
        [*command, "--out", str(out), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_killed_run_goes_on_and_ends_alike(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    out = tmp_path / "killed"
    first = start(out, "sequential")
    journal = out / "rounds.jsonl"
    while first.poll() is None:
        if journal.exists() and len(journal.read_text().splitlines()) >= 3:
            first.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    first.communicate()
    for folder, more in ((whole, []), (out, ["--resume"])):
        process = start(folder, "processes", *more)
        text, _ = process.communicate(timeout=300)
        assert process.returncode == 0, text
    results = [json.loads((x / "result.json").read_text()) for x in (whole, out)]
    for key in ("hash", "accuracy", "clients", "bytes", "models"):
        assert results[0][key] == results[1][key]
    costs = [result["secure_sum"]["bytes"] for result in results]
    assert costs[0] == costs[1]


# ---------------------------------------------------------------- every method
CAN = (
    "cd2pfed ditto fedavg fedbn fedcp fedper fedphp fedprox fedrep fedrod gpfl lgfedavg"
    " local perfedavg pfedc pfedme"
)


@pytest.mark.slow
def test_which_methods_can_as_docs_privacy_says() -> None:
    allowed = set()
    for name in methods.names():
        kind = methods.find(name).test_backbone
        model = {} if kind == "cnn" else {"model": kind}
        setup = prepare(make_experiment({"method": name, **SECURE, **model}))
        try:
            with torch_settings(setup.world.dtype):
                refuse_in_time(setup)
        except UserError as error:
            print(name, error)
            continue
        allowed.add(name)
    assert allowed == set(CAN.split())
