"""Searches: validation data only, every trial recorded, resumable, equal trials."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.engine import tune as module
from fedtailor.engine.tune import COMPLETE, FAILED, PRUNED, TRIALS, Trial, tune
from fedtailor.experiment.run_folder import read_journal
from fedtailor.experiment.search_space import Choice, Range, make_spaces
from fedtailor.experiment.variants import make_variants
from fedtailor.testing.small_world import digits

pytest.importorskip("optuna")

FAST: dict[str, Any] = {"rounds": 3, "model": "linear", "executor": "sequential"}
OVER = "lr=0.01:0.5:log,lam=0.1|1|10"


def search(out: Path, methods: list[str], **more: Any) -> list[Trial]:
    given = {"trials": 4, "seeds": 1, "over": OVER, "own": {"data": digits()}} | more
    over = given.pop("over")
    options = {**FAST, **given.pop("options", {})}
    _, trials = tune(make_variants(methods), options, over, out=out, **given)
    return trials


def without_times(trials: list[Trial]) -> list[Trial]:
    return [replace(trial, seconds=0.0) for trial in trials]


def test_every_method_has_equal_trials_all_recorded(tmp_path: Path) -> None:
    out = tmp_path / "tune"
    trials = search(out, ["ditto", "fedavg"], trials=5, seeds=2)
    assert [t.method for t in trials] == ["ditto"] * 5 + ["fedavg"] * 5
    lines = read_journal(out / TRIALS)
    assert [Trial(**line) for line in lines] == trials
    assert {t.state for t in trials} == {COMPLETE, PRUNED}
    for trial in trials:
        assert set(trial.values) == (
            {"lr", "lam"} if trial.method == "ditto" else {"lr"}
        )
        assert 0.01 <= trial.values["lr"] <= 0.5
        if trial.state == COMPLETE:
            assert trial.seeds == [1000, 1001] and trial.rounds == 3
            assert trial.score == pytest.approx(sum(trial.scores) / 2)
            assert max(trial.curve.values()) == trial.scores[0]
        else:
            assert trial.score is None and trial.rounds < 3
    # the method's own values come first
    assert trials[0].values["lam"] == 1
    winners = (out / "winners.toml").read_text()
    assert "seeds = [\n    1000,\n    1001,\n]" in winners
    assert 'of = "ditto"' in winners and 'of = "fedavg"' in winners
    assert not (out / "runs").exists()


def test_test_data_have_no_say(tmp_path: Path) -> None:
    data = digits()
    trials = search(tmp_path / "a", ["ditto"], own={"data": data})
    wrong = data.y.clone()
    for indices in data.test:
        wrong[indices] = (wrong[indices] + 3) % data.classes
    mislabelled = replace(data, y=wrong)
    again = search(tmp_path / "b", ["ditto"], own={"data": mislabelled})
    assert without_times(trials) == without_times(again)
    setup = module.without_test_data(prepare_small())
    assert not any(len(indices) for indices in setup.world.federation.test)


def prepare_small() -> Any:
    from fedtailor.experiment.config import make_experiment
    from fedtailor.experiment.prepare import prepare

    return prepare(make_experiment({**FAST}), data=digits())


def test_a_search_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search(tmp_path / "a", ["ditto"], seeds=2)

    rounds = []
    take = module.Watch.round

    def interrupt(self: module.Watch, record: Any) -> None:
        rounds.append(record.t)
        if len(rounds) == 5:
            raise KeyboardInterrupt
        take(self, record)

    out = tmp_path / "b"
    monkeypatch.setattr(module.Watch, "round", interrupt)
    with pytest.raises(KeyboardInterrupt):
        search(out, ["ditto"], seeds=2)
    monkeypatch.undo()
    done = len(read_journal(out / TRIALS))
    assert done < 4
    with (out / TRIALS).open("a") as file:
        file.write('{"method": "ditto", "tri')  # a line that was cut off
    again = search(out, ["ditto"], seeds=2)
    assert without_times(again) == without_times(whole)
    # more trials and methods may follow, another space may not
    more = search(out, ["ditto", "fedavg"], seeds=2, trials=5)
    assert without_times(more)[:4] == without_times(whole)
    assert len(more) == 10
    with pytest.raises(fedtailor.UserError, match="holds another search"):
        search(out, ["ditto"], seeds=2, over="lr=0.1|0.2")


def test_the_same_values_are_not_run_twice(tmp_path: Path) -> None:
    trials = search(tmp_path, ["fedavg"], over={"epochs": [1, 2]}, trials=5)
    ran = [trial for trial in trials if trial.repeats is None]
    assert len(ran) <= 2 and len(trials) == 5
    for trial in trials:
        if trial.repeats is not None:
            assert trial.score == trials[trial.repeats].score


def test_a_trial_that_fails_is_recorded(tmp_path: Path) -> None:
    over = {"drop": [0.0, 1.0]}  # every reply gets lost, or none
    options = {"max_silent_rounds": 1}
    trials = search(tmp_path, ["fedavg"], over=over, trials=5, options=options)
    by_drop = {trial.values["drop"]: trial for trial in trials}
    assert by_drop[0.0].score is not None
    assert by_drop[1.0].state == FAILED and by_drop[1.0].score is None
    assert "no usable reply" in by_drop[1.0].why


def test_ranges_and_choices() -> None:
    variants = make_variants(["fedcp", "ditto", "local"])
    text = "lr=0.01:1:log,epochs=1:5,fedcp.lam=0:2,lam=0.1|1|10,activation=relu|tanh"
    spaces = make_spaces([text], variants)
    assert spaces["fedcp"] == {
        "lr": Range(0.01, 1, True, False),
        "epochs": Range(1, 5, False, True),
        "lam": Range(0, 2, False, False),
        "activation": Choice(("relu", "tanh")),
    }
    assert spaces["ditto"]["lam"] == Choice((0.1, 1, 10))
    assert set(spaces["local"]) == {"lr", "epochs"}


@pytest.mark.parametrize(
    ("over", "complaint"),
    [
        ("lr", "write options as name=value"),
        ("lr=0.1", "lr=0.01:1:log for a range"),
        ("lr=1:0.1", "1 is not below 0.1"),
        ("lr=0:1:log", "begins above 0"),
        ("lr=0.1:1:lin", "no scale 'lin'; there is log"),
        ("lr=a:b", "ends of a range are numbers"),
        ("epochs=1:2.5", "epochs is a whole number"),
        ("lamb=1|2", "no hyper-parameter or option 'lamb'; did you mean lam"),
        ("fedcp.lam=1|2", "fedcp is not tuned here"),
        ("rounds=1:5", "rounds is the same in all trials"),
        ("seed=1:5", "seed is the same in all trials"),
        ("lam=1|1", "two values or more"),
        ("lam=-1|1", "lam=-1"),
        ("", "write"),
    ],
)
def test_mistakes_show_before_the_search(
    tmp_path: Path, over: str, complaint: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(fedtailor.UserError, match=complaint):
        search(out, ["ditto"], over=over)
    assert not out.exists()


def test_a_method_with_nothing_to_tune(tmp_path: Path) -> None:
    with pytest.raises(fedtailor.UserError, match="local has none of lam"):
        search(tmp_path / "a", ["ditto", "local"], over="lam=0.1|1")


def test_a_folder_with_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(fedtailor.UserError, match="something else than a search"):
        search(tmp_path, ["ditto"])


def test_without_optuna_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(fedtailor.UserError, match=r"fedtailor\[tune\]"):
        search(tmp_path / "a", ["ditto"])


def test_from_python_and_on_to_a_comparison() -> None:
    options = {"rounds": 1, "model": "linear", "executor": "sequential"}
    found = fedtailor.tune(["ditto"], OVER, digits(), trials=2, **options)
    assert found.seeds == [1000] and found.winners[0].of == "ditto"
    results = fedtailor.compare(
        ["ditto"], digits(), seeds=1, tuned=found, lr=0.1, **options
    )
    assert list(results) == ["ditto", "ditto[tuned]"]
    assert json.dumps(results["ditto[tuned]"][0])  # plain values
