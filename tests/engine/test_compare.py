"""Comparisons of variants: kept apart everywhere, resumed, grown."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.engine.compare import compare, plan_runs
from fedtailor.engine.observer import ManyRuns
from fedtailor.experiment.variants import make_variants
from fedtailor.experiment.winners import Winners, warn_of_seeds
from fedtailor.methods.ditto import Ditto
from fedtailor.testing.small_world import digits

FAST: dict[str, Any] = {"rounds": 1, "model": "linear", "lr": 0.1, "save": "none"}
FAST |= {"executor": "sequential", "clients": 3, "limit": 150}


class Told(ManyRuns):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def begin(self, names: Any, finished: Any) -> None:
        self.events.append((len(names), len(finished)))

    def done(self, name: str) -> None:
        self.events.append(name)

    def message(self, text: str) -> None:
        self.events.append(text)


def test_variants_are_apart_in_folders_results_and_tables(tmp_path: Path) -> None:
    names = ["ditto", "ditto[lam=0.5]", "ditto[lam=0.5,epochs=2]"]
    found = fedtailor.compare(names, seeds=1, seed=1, out=tmp_path, **FAST)
    assert list(found) == names
    for label, lam, epochs in zip(names, (1.0, 0.5, 0.5), (1, 1, 2), strict=True):
        (result,) = found[label]
        assert (result["name"], result["seed"]) == (label, 1)
        config = fedtailor.load(result.folder).config
        assert config["set"]["lam"] == lam and config["epochs"] == epochs
        assert len(result.history) == 1
    assert (tmp_path / "ditto-lam=0.5,epochs=2-s1/result.json").exists()
    with (tmp_path / "runs.csv").open() as file:
        rows = [row["method"] for row in csv.DictReader(file)]
    assert rows == names
    board = (tmp_path / "leaderboard.md").read_text()
    assert all(f"| {name} |" in board for name in names)
    shown = repr(found)
    assert max(map(len, shown.splitlines())) <= 80
    for piece in ("ditto[lam=0.5]", "epochs=2]", "worst tenth: mean"):
        assert piece in shown
    html = found._repr_html_()
    assert "<td style" in html and "ditto[lam=0.5]" in html


def test_what_is_there_is_not_run_again_and_comparisons_grow(tmp_path: Path) -> None:
    compare(["fedavg", "ditto[lam=0.5]"], FAST, 1, tmp_path)
    told = Told()
    variants = ["fedavg", "ditto[lam=0.5]", "ditto[lam=2]"]
    compare(variants, FAST, 1, tmp_path, progress=told)
    assert told.events == [(3, 2), "ditto-lam=2-s0"]
    with pytest.raises(fedtailor.UserError, match="holds another run"):
        compare(variants, {**FAST, "lr": 0.2}, 1, tmp_path)
    further = compare(variants, {**FAST, "rounds": 2}, 1, tmp_path)
    assert further["ditto[lam=2]"][0]["rounds"] == 2


def test_values_for_a_method_hold_for_all_its_variants() -> None:
    options = {"set": {"ditto.personal_epochs": 2, "ditto.lam": 3}}
    runs = plan_runs(make_variants(["ditto", "ditto[lam=1]", "local"]), options, 1)
    assert [run.config.set for run in runs] == [
        {"personal_epochs": 2, "lam": 3},
        {"personal_epochs": 2, "lam": "1"},
        {},
    ]
    assert [run.config.title for run in runs] == ["ditto", "ditto[lam=1]", "local"]


def test_the_same_experiment_under_two_labels_draws_a_warning(tmp_path: Path) -> None:
    told = Told()
    compare(["ditto", "ditto[lam=1]"], FAST, 1, tmp_path, progress=told)
    expected = "warning: ditto[lam=1] and ditto are the same experiment"
    assert told.events[0] == expected


def test_methods_and_data_in_code() -> None:
    methods = {"weak": Ditto(lam=0.1), "strong": Ditto(lam=5.0), "fedavg": "fedavg"}
    options = {"rounds": 1, "lr": 0.1, "executor": "sequential", "model": "linear"}
    found = fedtailor.compare(methods, digits(), seeds=1, **options)
    assert list(found) == ["weak", "strong", "fedavg"]
    assert found["weak"][0]["name"] == "weak" and found.folder is None
    assert found["weak"][0]["hash"] != found["strong"][0]["hash"]
    alone = fedtailor.run(Ditto(lam=0.1), digits(), **options)
    assert found["weak"][0]["hash"] == alone["hash"]


def test_winners_are_compared_too(tmp_path: Path) -> None:
    path = tmp_path / "winners.toml"
    path.write_text(
        'seeds = [1000]\ntrials = 2\n[[winners]]\nof = "ditto[personal_epochs=2]"\n'
        "trial = 1\nscore = 0.5\n[winners.values]\nlam = 0.25\nlr = 0.2\n"
    )
    out = tmp_path / "cmp"
    found = fedtailor.compare(["local"], seeds=1, tuned=path, out=out, **FAST)
    label = "ditto[personal_epochs=2,tuned]"
    assert list(found) == ["local", label]
    config = fedtailor.load(found[label][0].folder).config
    assert config["set"]["lam"] == 0.25 and config["lr"] == 0.2
    assert config["set"]["personal_epochs"] == 2 and config["name"] == label
    path.write_text("seeds = [1]\n")
    with pytest.raises(fedtailor.UserError, match="holds no winners"):
        fedtailor.compare(["local"], tuned=path, **FAST)


def test_tuned_seeds_are_warned_of() -> None:
    found = Winners([0, 1], 2, [])
    (text,) = warn_of_seeds(found, 1, 3)
    assert text.startswith("warning: seeds 1 were tuned on")
    assert warn_of_seeds(found, 2, 3) == []


def test_result_json_names_the_variant(tmp_path: Path) -> None:
    compare(["ditto[lam=0.5]"], FAST, 1, tmp_path)
    result = json.loads((tmp_path / "ditto-lam=0.5-s0/result.json").read_text())
    assert (result["name"], result["method"]) == ("ditto[lam=0.5]", "ditto")
