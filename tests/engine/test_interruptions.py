"""A run that is killed or stopped goes on later and ends like an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedtailor.experiment.run_folder import read_journal
from helpers import random_seed

COMPARED = ("hash", "accuracy", "fairness", "clients", "bytes", "views", "models")


def start(out: Path, *more: str, rounds: int = 12) -> subprocess.Popen[str]:
    """Start a run in a process group of its own."""
    options = {
        "--method": "ditto",
        "--data": "digits",
        "--clients": "6",
        "--limit": "500",
        "--rounds": str(rounds),
        "--checkpoint-every": "2",
        "--executor": "sequential",
        "--out": str(out),
    }
    command = [sys.executable, "-m", "fedtailor", "run"]
    for name, value in options.items():
        command += [name, value]
    return subprocess.Popen(
        [*command, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and output."""
    text, _ = process.communicate(timeout=120)
    return process.returncode, text


def count_rounds(out: Path) -> int:
    path = out / "rounds.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def kill_at_random(out: Path, executor: str, chance: random.Random) -> None:
    """Start or continue a run, and kill it some rounds later, in the middle of something."""
    resume = ["--resume"] if out.exists() else []
    wanted = min(count_rounds(out) + chance.randint(1, 5), 11)
    process = start(out, "--executor", executor, *resume)
    while count_rounds(out) < wanted and process.poll() is None:
        time.sleep(0.005)
    time.sleep(chance.random() * 0.05)
    process.send_signal(signal.SIGKILL)
    finish(process)


def test_a_run_killed_at_random_moments_ends_like_an_undisturbed_one(tmp_path):
    seed = random_seed()
    again = f"moments drawn with FEDTAILOR_TEST_SEED={seed}"
    whole_out = tmp_path / "whole"
    code, text = finish(start(whole_out))
    assert code == 0, text
    out = tmp_path / "killed"
    chance = random.Random(seed)
    for executor in (
        "processes",
        "sequential",
        "processes",
    ):  # the same bits with any of them
        kill_at_random(out, executor, chance)
    code, text = finish(start(out, "--resume"))
    assert code == 0, f"{again}\n{text}"
    whole = json.loads((whole_out / "result.json").read_text())
    killed = json.loads((out / "result.json").read_text())
    for key in COMPARED:
        assert killed[key] == whole[key], f"{key}; {again}"
    lines = zip(
        read_journal(whole_out / "rounds.jsonl"),
        read_journal(out / "rounds.jsonl"),
        strict=True,
    )
    for expected, found in lines:
        assert found["evaluation"] == expected["evaluation"], again
        assert found["clients"] == expected["clients"], again


@pytest.mark.parametrize(
    ("executor", "number"),
    [("sequential", signal.SIGINT), ("processes", signal.SIGTERM)],
)
def test_a_signal_to_the_whole_group_finishes_the_round_saves_and_says_how_to_go_on(
    tmp_path, executor, number
):
    out = tmp_path / "run"
    slow = ["--executor", executor, "--epochs", "6"]
    process = start(out, *slow, rounds=400)
    while count_rounds(out) < 1:
        time.sleep(0.01)
    time.sleep(0.2)  # in the middle of a visit
    os.killpg(process.pid, number)  # as a terminal, timeout(1) and batch systems do
    code, text = finish(process)
    said = re.search(r"stopped after round (\d+); go on with --resume", text)
    assert code == 130, text
    assert said, text
    done = int(said[1])
    # the last evaluation may travel with the round that does not come any more
    assert done >= count_rounds(out) >= done - 1
    assert (out / f"checkpoint/round-{done:06d}/state.json").exists()
    assert not (out / "result.json").exists()
    code, text = finish(start(out, *slow, "--resume", rounds=done + 1))
    assert code == 0, text
    assert f"going on after round {done}" in text
    assert count_rounds(out) == done + 1
