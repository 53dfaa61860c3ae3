"""The round loop: what it records, and that it goes on after anything."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

import fedtailor
from fedtailor.engine.loop import run_experiment
from fedtailor.evaluation.score import Score, Tally
from fedtailor.evaluation.summary import accuracies, choose, evaluate
from fedtailor.executors.processes import Processes
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare, prepare_federation
from fedtailor.experiment.run_folder import RunFolder, read_journal
from fedtailor.methods.ditto import Ditto
from fedtailor.report.console import Silent

SMALL = {
    "data": "digits",
    "clients": 6,
    "rounds": 4,
    "limit": 400,
    "batch": 10,
    "executor": "sequential",
}


def start(out, *more, method="ditto", rounds=12):
    command = [
        sys.executable,
        "-m",
        "fedtailor",
        "run",
        "--method",
        method,
        "--data",
        "digits",
        "--clients",
        "6",
        "--limit",
        "500",
        "--rounds",
        str(rounds),
        "--checkpoint-every",
        "2",
        "--executor",
        "sequential",
        "--out",
        str(out),
        *more,
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def finish(process):
    text, _ = process.communicate(timeout=120)
    return process.returncode, text


def rounds_done(out):
    path = out / "rounds.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_run_killed_at_random_moments_ends_like_an_undisturbed_one(tmp_path):
    code, text = finish(start(tmp_path / "whole"))
    assert code == 0, text
    whole = json.loads((tmp_path / "whole/result.json").read_text())
    out, chance = tmp_path / "killed", random.Random(os.getpid())
    for executor in ("processes", "sequential", "processes"):  # the same bits with any of them
        before = rounds_done(out)
        process = start(out, "--executor", executor, *(["--resume"] if out.exists() else []))
        wanted = min(before + chance.randint(1, 5), 11)
        while rounds_done(out) < wanted and process.poll() is None:
            time.sleep(0.005)
        time.sleep(chance.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        finish(process)
    code, text = finish(start(out, "--resume"))
    assert code == 0, text
    killed = json.loads((out / "result.json").read_text())
    for key in ("hash", "accuracy", "fairness", "clients", "bytes", "views", "models"):
        assert killed[key] == whole[key], key
    for a, b in zip(
        read_journal(tmp_path / "whole/rounds.jsonl"),
        read_journal(out / "rounds.jsonl"),
        strict=True,
    ):
        assert a["evaluation"] == b["evaluation"] and a["clients"] == b["clients"]


class Logged(Processes):
    """Worker processes that write down what they are asked."""

    def __init__(self, world):
        super().__init__(world, 2)
        self.calls, self.bundles = [], []

    def call(self, name, downs, t, call, tick):
        self.calls.append((name, t))
        return super().call(name, downs, t, call, tick)

    def exchange(self, bundles, done):
        self.bundles.append({k: [(v.name, v.t) for v in asked] for k, asked in bundles.items()})
        return super().exchange(bundles, done)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("ditto", {}),
        ("fedcp", {"evaluate_every": 2}),
        ("fed3p2p", {"set": {"phase1": 2}}),
        ("fedavg", {"participation": "0.5"}),
        ("ditto", {"participation": "0.5", "evaluate_clients": "cohort"}),
        ("fedper", {"save": "last"}),
    ],
)
def test_scores_of_a_round_ride_on_the_next_rounds_visits(tmp_path, method, more):
    """And nothing but the number of visits can be told from that: scores, journal and the best round's models."""
    options = SMALL | {"rounds": 5} | more
    alone = fedtailor.run(method, **options, out=tmp_path / "alone")
    setup = prepare(make_experiment({"method": method, **options, "executor": "processes"}))
    workers = Logged(setup.world)
    result = run_experiment(setup, RunFolder(tmp_path / "riding"), Silent(), executor=workers)
    different = ("seconds", "executor")
    assert {k: v for k, v in result.items() if k not in different} == {
        k: v for k, v in alone.items() if k not in different
    }
    for a, b in zip(
        read_journal(tmp_path / "alone/rounds.jsonl"),
        read_journal(tmp_path / "riding/rounds.jsonl"),
        strict=True,
    ):
        assert a | {"seconds": 0} == b | {"seconds": 0}
    kept = sorted(p.name for p in (tmp_path / "alone/models").iterdir())
    assert len(kept) == 7
    for name in kept:
        assert (tmp_path / "alone/models" / name).read_bytes() == (
            tmp_path / "riding/models" / name
        ).read_bytes()
    asked = [visits for bundle in workers.bundles for visits in bundle.values()]
    rode = [visits for visits in asked if len(visits) == 2]
    if (
        more.get("evaluate_clients") == "cohort"
    ):  # the models of those who are not looked at may be the best ones too
        assert not rode
        return
    assert rode and all(
        look[0] in ("@score", "@candidate") and visit[1] == look[1] + 1 for look, visit in rode
    )
    assert [t for name, t in workers.calls if name == "@score"][:1] == [
        5
    ]  # only the last round has no next one


@pytest.mark.parametrize(
    ("executor", "number"), [("sequential", signal.SIGINT), ("processes", signal.SIGTERM)]
)
def test_a_signal_to_the_whole_group_finishes_the_round_saves_and_says_how_to_go_on(
    tmp_path, executor, number
):
    out = tmp_path / "run"
    slow = ["--executor", executor, "--epochs", "6"]
    process = start(out, *slow, rounds=400)
    while rounds_done(out) < 1:
        time.sleep(0.01)
    time.sleep(0.2)  # in the middle of a visit
    os.killpg(process.pid, number)  # as a terminal, timeout(1) and batch systems do
    code, text = finish(process)
    said = re.search(r"stopped after round (\d+); go on with --resume", text)
    assert code == 130 and said, text
    done = int(said[1])
    assert done >= rounds_done(out) >= done - 1  # the last evaluation may ride on the round to come
    assert (out / f"checkpoint/round-{done:06d}/state.json").exists() and not (
        out / "result.json"
    ).exists()
    code, text = finish(start(out, *slow, "--resume", rounds=done + 1))
    assert code == 0 and f"going on after round {done}" in text and rounds_done(out) == done + 1


def test_resume_on_an_empty_folder_starts_and_says_so(tmp_path, capsys):
    fedtailor.run("fedavg", **SMALL, out=tmp_path / "new", resume=True, quiet=False)
    assert "starting from the beginning" in capsys.readouterr().out


def test_resume_extends_a_run(tmp_path):
    fedtailor.run("fedavg", **SMALL, out=tmp_path / "a")
    longer = fedtailor.run("fedavg", **{**SMALL, "rounds": 6}, out=tmp_path / "a", resume=True)
    assert longer["hash"] == fedtailor.run("fedavg", **{**SMALL, "rounds": 6})["hash"]


def test_another_runs_folder_is_refused(tmp_path):
    fedtailor.run("fedavg", **SMALL, out=tmp_path / "a")
    with pytest.raises(fedtailor.UserError, match="holds this run already"):
        fedtailor.run("fedavg", **SMALL, out=tmp_path / "a")
    with pytest.raises(fedtailor.UserError, match="holds another run"):
        fedtailor.run("ditto", **SMALL, out=tmp_path / "a", resume=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/thesis.tex").write_text("all my work")
    with pytest.raises(fedtailor.UserError, match="something else"):
        fedtailor.run("fedavg", **SMALL, out=tmp_path / "b")
    assert [p.name for p in (tmp_path / "b").iterdir()] == ["thesis.tex"]


def test_the_result_says_what_it_must(tmp_path):
    result = fedtailor.run("ditto", **SMALL, views="after", new_clients=1, out=tmp_path / "a")
    assert result == json.loads((tmp_path / "a/result.json").read_text())
    assert {
        "method",
        "data",
        "seed",
        "rounds",
        "accuracy",
        "views",
        "clients",
        "fairness",
        "bytes",
        "seconds",
        "hash",
    } <= (result.keys())
    assert result["accuracy"].keys() == {
        "best",
        "last",
        "mean_last_10",
        "best_on_test",
        "best_round",
    }
    assert result["views"].keys() == {"personal", "after", "newcomers", "global_ptest"}
    assert len(result["clients"]) == 5 and all(0 <= c["accuracy"] <= 1 for c in result["clients"])
    assert 0 <= result["accuracy"]["best"] <= result["accuracy"]["best_on_test"] <= 1
    model = 13_706 * 4  # the network for 8 x 8 digits
    assert result["bytes"] == {"up": 4 * 5 * model, "down": 4 * 5 * model}
    names = {p.name for p in (tmp_path / "a").iterdir()}
    assert {
        "config.toml",
        "partition.npz",
        "rounds.jsonl",
        "result.json",
        "checkpoint",
        "models",
    } <= names
    assert [r["t"] for r in read_journal(tmp_path / "a/rounds.jsonl")] == [1, 2, 3, 4]


def test_personal_models_come_back(tmp_path):
    result = fedtailor.run("ditto", **SMALL, out=tmp_path / "a")
    run = fedtailor.load(tmp_path / "a")
    assert run.result["hash"] == result["hash"]
    federation, _ = prepare_federation(make_experiment(run.config))
    tested = [c for c in result["clients"] if c["n_test"]]
    assert len(tested) > 3
    for c in tested:
        test = federation.test[c["id"]]
        hits = run.client(c["id"]).predict(federation.x[test]) == federation.y[test]
        assert float(hits.double().mean()) == pytest.approx(c["accuracy"])
    with pytest.raises(fedtailor.UserError, match="no client 77"):
        run.client(77)
    with pytest.raises(fedtailor.UserError, match="inputs of shape"):
        run.client(3).predict(np.zeros((2, 3, 32, 32), np.float32))


def test_models_can_be_used_where_the_data_are_not(tmp_path):
    x = np.random.default_rng(0).normal(size=(160, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)
    for method in (
        "gpfl",
        "pfedc",
    ):  # whose models know how many examples of each class a client has
        np.savez(tmp_path / "mine.npz", x=x, y=y, client=np.arange(160) % 4)
        result = fedtailor.run(
            method, tmp_path / "mine.npz", rounds=4, out=tmp_path / method, executor="sequential"
        )
        federation, _ = prepare_federation(
            make_experiment(fedtailor.load(tmp_path / method).config)
        )
        (tmp_path / "mine.npz").unlink()
        for c in result["clients"]:
            test = federation.test[c["id"]]
            hits = (
                fedtailor.load(tmp_path / method).client(c["id"]).predict(federation.x[test])
                == federation.y[test]
            )
            assert float(hits.double().mean()) == pytest.approx(c["accuracy"])


def test_no_test_samples_is_one_clear_line():
    with pytest.raises(fedtailor.UserError, match="no client has a test sample"):
        fedtailor.run(
            "fedavg",
            [(np.zeros((1, 3), np.float32), [0]), (np.ones((1, 3), np.float32), [1])],
            rounds=1,
        )


def test_own_data_model_and_method():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 5))

    def client(n):
        y = rng.integers(0, 3, n)
        return (centres[y] + 0.3 * rng.normal(size=(n, 5))).astype(np.float32), y

    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.head = nn.Sequential(nn.Linear(5, 16), nn.ReLU()), nn.Linear(16, 3)

        def forward(self, x):
            return self.head(self.base(x))

    data = [client(60) for _ in range(4)]
    by_class = fedtailor.run(Ditto, data, Mine(), rounds=15, lr=0.1, set={"lam": 0.5})
    by_instance = fedtailor.run(Ditto(lam=0.5), data, Mine(), rounds=15, lr=0.1)
    assert by_class["hash"] == by_instance["hash"] and by_class["accuracy"]["last"] > 0.8
    whole = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    assert (
        fedtailor.run("fedper", data, whole, last="2", rounds=15, lr=0.1)["accuracy"]["last"] > 0.8
    )


def test_participation():
    chosen = make_experiment(
        {
            "method": "fedavg",
            **SMALL,
            "clients": 10,
            "rounds": 8,
            "participation": "0.2..0.6",
            "late_clients": "3@4",
        }
    )
    folder = RunFolder(None)
    run_experiment(prepare(chosen), folder, Silent())
    records = read_journal(folder.path / "rounds.jsonl")
    folder.close()
    counts = [len(r["clients"]) for r in records]
    assert len(set(counts)) > 1 and all(1 <= n <= 6 for n in counts)
    assert all(max(r["clients"]) < 7 for r in records[:3]) and any(
        max(r["clients"]) >= 7 for r in records[3:]
    )


def test_when_nobody_replies_the_round_is_skipped_and_in_the_end_the_run_stops(capsys):
    with pytest.raises(fedtailor.UserError, match="no usable reply in 3 rounds in a row"):
        fedtailor.run("fedavg", **{**SMALL, "rounds": 9}, drop=1.0, max_silent_rounds=3)
    with pytest.raises(fedtailor.UserError, match="NaN or infinity"):
        fedtailor.run("fedavg", **SMALL, lr=1e30, max_silent_rounds=2)
    assert "round 1 is skipped" in capsys.readouterr().err


def test_evaluation_every_few_rounds_of_few_clients():
    result = fedtailor.run(
        "fedavg", **{**SMALL, "rounds": 5}, evaluate_every=2, evaluate_clients="3"
    )
    assert len(result["clients"]) == 3


def test_without_validation_data_there_is_no_best():
    result = fedtailor.run("fedavg", **SMALL, validation=0)
    assert result["accuracy"]["best"] is None and result["accuracy"]["last"] is not None


def score(val, test, n=10):
    def tally(correct):
        return Tally(torch.tensor([float(n)]), torch.tensor([float(correct)]), torch.tensor(1.0))

    return Score(tally(val), tally(test), {})


def test_the_round_is_chosen_by_validation_data_alone():
    rounds = ((1, 5, 9), (2, 8, 6), (3, 8, 7), (4, 6, 8))
    history = [(t, evaluate({0: score(v, x), 1: score(v, 0, 0)})) for t, v, x in rounds]
    assert choose(history) == 2  # the earliest of ties, though rounds 1, 3 and 4 are better on test
    told = accuracies(history)
    assert (told["best"], told["last"], told["best_on_test"]) == (0.6, 0.8, 0.9)
    assert told["mean_last_10"] == pytest.approx(0.75)


def test_measures():
    e = evaluate({0: score(1, 10), 1: score(1, 5), 2: score(1, 20, 30)})
    assert e.test.accuracy == pytest.approx(35 / 50) and e.test.mean == pytest.approx(
        (1 + 0.5 + 2 / 3) / 3
    )
    spread = np.std([1, 0.5, 2 / 3])
    assert e.fairness.std == pytest.approx(spread) and e.fairness.cv == pytest.approx(
        spread / e.test.mean
    )
    assert e.fairness.worst_decile == 0.5


def test_settings_of_torch_are_as_before():
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    fedtailor.run("fedavg", **SMALL, dtype="float64")
    assert torch.get_default_dtype() == torch.float32 and torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), before)
    torch.set_num_threads(1)
