"""The comparisons behind docs/results.md are understood, run, and recorded."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from experiments import comparison, document, records
from experiments.comparison import read_comparisons
from experiments.results import main
from fedtailor.engine.compare import plan_runs
from fedtailor.experiment.variants import make_variants
from fedtailor.methods import names

ROOT = Path(__file__).parent.parent
COMPARISONS = read_comparisons()
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


class Experiments(NamedTuple):
    """One tiny comparison in a folder of its own."""

    folder: Path

    def run(self, *words):
        main(["--out", str(self.folder / "runs"), *words])

    def document(self):
        return (self.folder / "results.md").read_text()

    def comparison(self):
        return self.folder / "tiny.toml"

    def records(self):
        return self.folder / "tiny.json"


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "FOLDER", tmp_path)
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    monkeypatch.setattr(document, "DOCS", tmp_path)
    monkeypatch.setattr(document, "FINDINGS", tmp_path / "findings.md")
    (tmp_path / "findings.md").write_text("\n## Findings\n")
    (tmp_path / "tiny.toml").write_text(TINY)
    return Experiments(tmp_path)


def test_what_is_recorded_outlives_its_runs(tiny):
    tiny.run("--methods", "local,fedavg")
    first = tiny.document()
    assert "Not run yet: mocha." in first
    assert first.endswith("## Findings\n")
    recorded = json.loads(tiny.records().read_text())
    results = []
    for seed in range(2):
        path = tiny.folder / f"runs/tiny/local-s{seed}/result.json"
        results.append(json.loads(path.read_text()))
    best = sum(result["accuracy"]["best"] for result in results) / 2
    assert recorded["local"]["best"][0] == pytest.approx(best, abs=1e-5)
    assert recorded["local"]["n"] == sum(c["n_test"] for c in results[0]["clients"])
    for result in results:
        kept = recorded["local"]["by_seed"][str(result["seed"])]
        best = result["accuracy"]["best"]
        assert kept["accuracy_best"] == pytest.approx(best, abs=1e-5)
        personal = result["views"]["personal"]["accuracy"]
        assert kept["view_personal"] == pytest.approx(personal, abs=1e-5)
        assert len(kept["clients"]) == len(result["clients"])
    shutil.rmtree(tiny.folder / "runs")
    tiny.run()
    runs = sorted(path.name for path in (tiny.folder / "runs/tiny").glob("*-s*"))
    assert runs == ["mocha-s0", "mocha-s1"]
    second = tiny.document()
    assert "Not run yet" not in second
    rows = {line for line in first.splitlines() if line.startswith("| local")}
    assert rows <= set(second.splitlines())
    assert "--model linear" in second


def write_record(method, more, accuracy):
    """A record of the tiny comparison, as if it had been run."""
    options = f"--data digits --clients 4 --limit 200 --rounds 3 {more}--seeds 2"
    return {
        "command": f"fedtailor compare {method} {options}",
        "seeds": 2,
        "best": [accuracy, 0.01],
        "on_test": [accuracy, 0.01],
        "rise": 0.0,
        "std": 0.0,
        "bytes": 1.0,
        "n": 1000,
    }


def test_a_record_of_other_options_is_not_shown(tiny):
    tiny.records().write_text(json.dumps({"local": write_record("local", "", 0.9)}))
    tiny.run("--only-write")
    assert "| local |" in tiny.document()
    tiny.comparison().write_text(TINY.replace("rounds = 3", "rounds = 4"))
    tiny.run("--only-write")
    assert "| local |" not in tiny.document()


def test_an_order_that_contradicts_a_paper_is_named(tiny):
    rows = {
        "local": write_record("local", "", 0.9),
        "fedavg": write_record("fedavg", "--set fedavg.finetune=0 ", 0.8),
    }
    tiny.records().write_text(json.dumps(rows))
    tiny.run("--only-write")
    assert (
        "local before fedavg by 10.0 points (Someone: 80.0 behind)" in tiny.document()
    )
    rows["local"]["on_test"] = [0.82, 0.01]  # two standard errors are 2.9 points
    tiny.records().write_text(json.dumps(rows))
    tiny.run("--only-write")
    assert "beyond chance: none" in tiny.document()


def test_agreement_and_contradiction_by_the_same_test(tiny):
    """Someone has fedavg before local; so have we, or the reverse, or neither beyond chance."""
    for ours, text in [
        (
            (0.9, 0.8),
            "0 of 1, 0 of them beyond chance. Contradicting it beyond chance: 1.",
        ),
        (
            (0.8, 0.9),
            "1 of 1, 1 of them beyond chance. Contradicting it beyond chance: none",
        ),
        (
            (0.8, 0.81),
            "1 of 1, 0 of them beyond chance. Contradicting it beyond chance: none",
        ),
    ]:
        rows = {
            "local": write_record("local", "", ours[0]),
            "fedavg": write_record("fedavg", "--set fedavg.finetune=0 ", ours[1]),
        }
        tiny.records().write_text(json.dumps(rows))
        tiny.run("--only-write")
        assert text in tiny.document()


@pytest.mark.parametrize("words", [("tinny",), ("--methods", "locale")])
def test_a_name_that_is_none_is_one_line(tiny, words, capsys):
    with pytest.raises(SystemExit) as end:
        tiny.run(*words)
    assert end.value.code == 2
    assert f"there is no {words[-1]}; there are " in capsys.readouterr().err


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_comparison_is_sound(name):
    about = COMPARISONS[name]
    assert set(about.methods) <= set(names())
    assert about.title and about.paper
    for published in about.published.values():
        assert set(published) <= set(about.methods)
    for group in about.group_methods(about.methods):
        runs = plan_runs(make_variants(group), about.options_for(group), about.seeds)
        assert len(runs) == len(group) * about.seeds


def test_the_document_is_what_the_records_say(tmp_path):
    """Tables that were edited by hand, or were not written again, are found."""
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    (tmp_path / "docs").mkdir()
    command = [sys.executable, "-m", "experiments.results", "--only-write"]
    subprocess.run(command, cwd=tmp_path, check=True)

    def read_document(folder):
        lines = (folder / "docs/results.md").read_text().splitlines()
        return [line for line in lines if not line.startswith("Machine:")]

    assert read_document(tmp_path) == read_document(ROOT)
