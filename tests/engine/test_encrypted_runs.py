"""Whole encrypted runs: near those in clear, the same after a resume, refused in time."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import fedtailor
from fedtailor.core.errors import UserError
from fedtailor.core.torch_settings import torch_settings
from fedtailor.engine.protection import refuse_in_time, with_invented_data
from fedtailor.engine.stopping import Stopped
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare
from fedtailor.maths.homomorphic import parse_key
from fedtailor.storage.files import read_flat_file

pytest.importorskip("tenseal")

SMALL: dict[str, Any] = {
    "data": "digits",
    "clients": 3,
    "limit": 150,
    "lr": 0.1,
    "executor": "sequential",
    "validation": 0.0,
    "evaluate_every": 100,
}


def read_models(folder: Path) -> dict[str, torch.Tensor]:
    """All numbers of all personal models."""
    found = {}
    for path in sorted((folder / "models").glob("[0-9]*.safetensors")):
        for name, value in read_flat_file(path).items():
            found[f"{path.stem}/{name}"] = value
    assert found
    return found


def furthest(first: Path, second: Path) -> float:
    """The largest difference between the models of two runs."""
    a = read_models(first)
    b = read_models(second)
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def test_twenty_rounds_of_privacy_pfedc_end_near_the_run_in_clear(tmp_path):
    """And bit for bit where the same integers are added in clear."""
    options = {**SMALL, "rounds": 20}
    fedtailor.run("pfedc", out=tmp_path / "float", set={"distribute": "all"}, **options)
    sealed = fedtailor.run("pfedc", out=tmp_path / "he", encrypt="heads", **options)
    exact = {"encrypt": "heads", "he": "plain"}
    fedtailor.run("pfedc", out=tmp_path / "plain", **exact, **options)
    assert furthest(tmp_path / "he", tmp_path / "plain") == 0.0
    assert 0 < furthest(tmp_path / "he", tmp_path / "float") < 1e-4
    told = sealed["encryption"]
    assert told["bytes"]["up"] == sealed["bytes"]["up"]
    assert told["bytes"]["up"] > told["bytes_in_clear"]["up"] > 0
    assert min(told["seconds"].values()) > 0
    assert json.loads((tmp_path / "he/result.json").read_text())["encryption"] == told


def test_clients_score_the_global_model_that_the_server_cannot_read(tmp_path):
    options = {**SMALL, "rounds": 1, "views": "global"}
    clear = fedtailor.run("fedavg", out=tmp_path / "clear", **options)
    sealed = fedtailor.run("fedavg", out=tmp_path / "he", encrypt="all", **options)
    view = "global_ptest"
    assert sealed["views"][view]["accuracy"] == clear["views"][view]["accuracy"]
    assert (tmp_path / "clear/models/shared.safetensors").exists()
    assert not (tmp_path / "he/models/shared.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["processes", "ray"])
def test_every_executor_gives_the_same_bits(tmp_path, executor):
    options = {**SMALL, "rounds": 2, "encrypt": "all", "ray_address": "local"}
    fedtailor.run("pfedc", out=tmp_path / "one", **options)
    more = {**options, "executor": executor, "workers": 2}
    fedtailor.run("pfedc", out=tmp_path / "many", **more)
    assert furthest(tmp_path / "one", tmp_path / "many") == 0.0


# ---------------------------------------------------------------- going on
def stop_after(rounds: int) -> fedtailor.Observer:
    """Stops the run as Ctrl-C does."""

    class Stop(fedtailor.Observer):
        def round(self, record):
            if record.t == rounds:
                os.kill(os.getpid(), signal.SIGINT)

    return Stop()


def test_a_resumed_run_opens_the_sums_in_its_checkpoint(tmp_path):
    options = {**SMALL, "evaluate_every": 1, "rounds": 4, "encrypt": "all"}
    fedtailor.run("fedavg", out=tmp_path / "whole", **options)
    with pytest.raises(Stopped):
        out = tmp_path / "r"
        fedtailor.run("fedavg", out=out, observers=[stop_after(2)], **options)
    key = (tmp_path / "r" / "clients.key").read_text()
    rest = fedtailor.run("fedavg", out=tmp_path / "r", resume=True, **options)
    assert furthest(tmp_path / "whole", tmp_path / "r") == 0.0
    assert (tmp_path / "r" / "clients.key").read_text() == key
    whole = json.loads((tmp_path / "whole" / "result.json").read_text())
    clear = "bytes_in_clear"
    assert rest["encryption"][clear] == whole["encryption"][clear]


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(tmp_path):
    """SIGKILL between two checkpoints."""
    options = {**SMALL, "evaluate_every": 1, "rounds": 12, "encrypt": "all"}
    fedtailor.run("fedavg", out=tmp_path / "whole", **options)
    words = [sys.executable, "-m", "fedtailor", "run", "--method", "fedavg"]
    for name, value in {**options, "checkpoint_every": 4}.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    out = tmp_path / "r"
    process = subprocess.Popen([*words, "--out", str(out)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    journal = out / "rounds.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and len(journal.read_text().splitlines()) >= 6:
            process.kill()
            break
        time.sleep(0.005)
    process.wait()
    assert not (out / "result.json").exists()
    fedtailor.run("fedavg", out=out, resume=True, **options)
    assert furthest(tmp_path / "whole", out) == 0.0


def test_every_run_has_a_key_of_its_own_that_others_cannot_read(tmp_path):
    ids = set()
    for name in ("a", "b"):
        options = {**SMALL, "rounds": 1, "encrypt": "all"}
        fedtailor.run("fedavg", out=tmp_path / name, **options)
        path = tmp_path / name / "clients.key"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        ids.add(parse_key(path.read_text(), str(path)).id)
    assert len(ids) == 2


# ---------------------------------------------------------------- refused in time
REFUSED = {
    "fedamp": "looks at every client's upload",
    "feddyn": "computes with every client's upload",
    "fedem": "looks at every client's models",
    "fedclust": "asks clients for 'warm_up' before they train",
    "pfedme": "weighs clients otherwise",
    "cd2pfed": "computes at the server",
    "fedproto": "encrypt=all: fedproto",
}
CAN = ("fedavg", "fedper", "fedrep", "ditto", "gpfl", "pfedc", "fedcp", "perfedavg")


def try_out(method: str, invented: bool, **options: Any) -> None:
    values = {**SMALL, "method": method, "rounds": 2, "he": "plain", **options}
    setup = prepare(make_experiment(values))
    with torch_settings(setup.world.dtype, setup.world.device):
        refuse_in_time(with_invented_data(setup) if invented else setup)


@pytest.mark.parametrize("invented", [False, True])
@pytest.mark.parametrize("method", REFUSED)
def test_methods_that_need_more_than_sums_are_refused_by_name(method, invented):
    with pytest.raises(UserError, match=f"encrypt=all: {method}") as refusal:
        try_out(method, invented, encrypt="all")
    if not invented:
        assert REFUSED[method] in str(refusal.value)


@pytest.mark.parametrize("method", CAN)
def test_methods_that_only_average_can_be_encrypted(method):
    try_out(method, True, encrypt="all")


def test_heads_need_a_head_that_is_sent():
    with pytest.raises(UserError, match=r"fedper uploads no head.*take 'all'"):
        try_out("fedper", False, encrypt="heads")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"encrypt": "all", "aggregate": "median"}, "must look at every upload"),
        ({"encrypt": "all", "dp": "client", "dp_noise": 1.0}, "dp=client"),
        ({"change_limit": 1.0}, "needs encrypt=heads, encrypt=all or secure_sum"),
        ({"encrypt": "all", "sum_range": 1e9}, "take a smaller range"),
        ({"encrypt": "everything"}, "encrypt='everything' will not do"),
    ],
)
def test_options_that_do_not_go_together(options, text):
    with pytest.raises(UserError, match=text):
        try_out("fedavg", False, **options)
