"""The comparisons behind docs/results.md are understood, run, and recorded."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedtailor.engine.compare import plan
from fedtailor.methods import names

ROOT = Path(__file__).parent.parent
COMPARISONS = sorted((ROOT / "experiments").glob("*.toml"))
TINY = """
title = "Tiny"
paper = "nobody's"
methods = ["local", "fedavg", "mocha"]
seeds = 2
[options]
data = "digits"
clients = 4
limit = 200
rounds = 3
[options.set]
"fedavg.finetune" = 0
[own.mocha]
model = "linear"
[published.Someone]
local = 10.0
fedavg = 90.0
"""


@pytest.fixture
def results(tmp_path):
    """The program, on one tiny comparison of its own."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "docs").mkdir()
    for name in ("results.py", "records.py", "overview.py"):
        shutil.copy(ROOT / "experiments" / name, tmp_path / "experiments")
    (tmp_path / "experiments/findings.md").write_text("\n## Findings\n")
    (tmp_path / "experiments/tiny.toml").write_text(TINY)

    def call(*words):
        command = [sys.executable, "experiments/results.py", "--out", "runs", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return tmp_path, call


def test_what_is_recorded_outlives_its_runs(results):
    folder, call = results
    code, said = call("--methods", "local,fedavg")
    assert code == 0, said
    first = (folder / "docs/results.md").read_text()
    assert "Not run yet: mocha." in first
    assert first.endswith("## Findings\n")
    kept = json.loads((folder / "experiments/records/tiny.json").read_text())
    seeds = [
        json.loads((folder / f"runs/tiny/local-s{s}/result.json").read_text()) for s in range(2)
    ]
    assert kept["local"]["best"][0] == pytest.approx(
        sum(r["accuracy"]["best"] for r in seeds) / 2, abs=1e-5
    )
    assert kept["local"]["n"] == sum(c["n_test"] for c in seeds[0]["clients"])
    shutil.rmtree(folder / "runs")
    code, said = call()
    assert code == 0, said
    assert sorted(p.name for p in (folder / "runs/tiny").glob("*-s*")) == ["mocha-s0", "mocha-s1"]
    second = (folder / "docs/results.md").read_text()
    assert "Not run yet" not in second
    assert {line for line in first.splitlines() if line.startswith("| local")} <= set(
        second.splitlines()
    )
    assert "--model linear" in second


def test_a_record_of_other_options_is_not_shown(results):
    folder, call = results
    assert call("--methods", "local")[0] == 0
    assert "| local |" in (folder / "docs/results.md").read_text()
    (folder / "experiments/tiny.toml").write_text(TINY.replace("rounds = 3", "rounds = 4"))
    assert call("--only-write")[0] == 0
    assert "| local |" not in (folder / "docs/results.md").read_text()


def test_an_order_that_contradicts_a_paper_is_named(results):
    folder, call = results
    record = {"seeds": 2, "rise": 0.0, "std": 0.0, "bytes": 1.0, "n": 1000}
    spoken = "fedtailor compare {} --data digits --clients 4 --limit 200 --rounds 3 {}--seeds 2"
    rows = {
        "local": record
        | {"command": spoken.format("local", ""), "best": [0.9, 0.01], "on_test": [0.9, 0.01]},
        "fedavg": record
        | {
            "command": spoken.format("fedavg", "--set fedavg.finetune=0 "),
            "best": [0.8, 0.01],
            "on_test": [0.8, 0.01],
        },
    }
    (folder / "experiments/records").mkdir()
    (folder / "experiments/records/tiny.json").write_text(json.dumps(rows))
    assert call("--only-write")[0] == 0
    told = (folder / "docs/results.md").read_text()
    assert "local before fedavg by 10.0 points (Someone: 80.0 behind)" in told
    rows["local"]["on_test"] = [0.82, 0.01]  # two standard errors are 2.9 points
    (folder / "experiments/records/tiny.json").write_text(json.dumps(rows))
    assert call("--only-write")[0] == 0
    assert "beyond chance: none" in (folder / "docs/results.md").read_text()


@pytest.mark.parametrize("words", [("tinny",), ("--methods", "locale")])
def test_a_name_that_is_none_is_one_line(results, words):
    code, said = results[1](*words)
    assert code == 2
    assert f"there is no {words[-1]}; there are " in said


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda p: p.stem)
def test_every_comparison_is_sound(path):
    about = tomllib.loads(path.read_text())
    assert set(about["methods"]) <= set(names())
    assert about["title"] and about["paper"]
    for table in about.get("published", {}).values():
        assert set(table) <= set(about["methods"])
    together = [m for m in about["methods"] if m not in about.get("own", {})]
    assert len(plan(together, about["options"], about["seeds"])) == len(together) * about["seeds"]


def test_the_document_is_what_the_records_say(tmp_path):
    """Whoever edits the written tables by hand, or forgets to write them, is told."""
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    (tmp_path / "docs").mkdir()
    subprocess.run(
        [sys.executable, "experiments/results.py", "--only-write"], cwd=tmp_path, check=True
    )
    ours, theirs = (
        [
            line
            for line in (folder / "docs/results.md").read_text().splitlines()
            if not line.startswith("Machine:")
        ]
        for folder in (tmp_path, ROOT)
    )
    assert ours == theirs
