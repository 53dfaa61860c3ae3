"""The round loop: what it records, who takes part, and what a run leaves behind."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import fedtailor
from fedtailor.engine.start import run_experiment
from fedtailor.executors.processes import Processes
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare, prepare_federation
from fedtailor.experiment.run_folder import RunFolder, read_journal
from fedtailor.methods.ditto import Ditto

SMALL = {
    "data": "digits",
    "clients": 6,
    "rounds": 4,
    "limit": 400,
    "batch": 10,
    "executor": "sequential",
}
TIMES = (
    "seconds",
    "training_seconds",
    "executor",
)  # what may differ between equal runs


# ---------------------------------------------------------------- late evaluation
class Logged(Processes):
    """Worker processes that write down the visits they are given."""

    def __init__(self, world):
        super().__init__(world, 2)
        self.bundles = []

    def run(self, visits, done):
        self.bundles += visits.values()
        return super().run(visits, done)

    def looks_with_calls(self):
        """Evaluations that went along with a call of the same client, each with the call."""
        return [bundle for bundle in self.bundles if len(bundle) == 2]

    def looks_alone(self):
        """Rounds whose evaluation was an exchange of its own, in order."""
        looks = [
            bundle[0]
            for bundle in self.bundles
            if len(bundle) == 1 and bundle[0].is_look
        ]
        return sorted({look.t for look in looks if not look.before})


def run_with_workers(method, options, out):
    setup = prepare(
        make_experiment({"method": method, **options, "executor": "processes"})
    )
    workers = Logged(setup.world)
    result = run_experiment(setup, RunFolder(out), executor=workers)
    return result, workers


def without_times(result):
    return {key: value for key, value in result.items() if key not in TIMES}


def assert_same_files(one, two):
    """Equal journals, and equal kept models."""
    for a, b in zip(
        read_journal(one / "rounds.jsonl"),
        read_journal(two / "rounds.jsonl"),
        strict=True,
    ):
        assert without_times(a) == without_times(b)
    names = sorted(path.name for path in (one / "models").iterdir())
    assert len(names) >= 7  # six clients, about them, perhaps the global model
    for name in names:
        assert (one / "models" / name).read_bytes() == (
            two / "models" / name
        ).read_bytes()


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("ditto", {}),
        ("fedcp", {"evaluate_every": 2}),
        ("fed3p2p", {"set": {"phase1": 2}}),
        ("fedavg", {"participation": "0.5"}),
        ("fedper", {"save": "last"}),
    ],
)
def test_scores_that_travel_with_the_next_round_are_the_same(tmp_path, method, more):
    """Scores, journal and the best round's models: nothing but the number of visits differs."""
    options = SMALL | {"rounds": 5} | more
    alone = fedtailor.run(method, **options, out=tmp_path / "alone")
    result, workers = run_with_workers(method, options, tmp_path / "late")
    assert without_times(result) == without_times(alone)
    assert_same_files(tmp_path / "alone", tmp_path / "late")
    assert workers.looks_with_calls()
    for look, call in workers.looks_with_calls():
        assert look.is_look
        assert look.before
        assert not call.is_look
        assert call.t == look.t + 1
    assert workers.looks_alone() == [5]  # only the last round has no next one


def test_where_only_some_are_evaluated_models_are_not_sent_along(tmp_path):
    """The best round's models of the other clients are kept too, so they are asked for at once."""
    options = SMALL | {
        "rounds": 5,
        "participation": "0.5",
        "evaluate_clients": "cohort",
    }
    alone = fedtailor.run("ditto", **options, out=tmp_path / "alone")
    result, workers = run_with_workers("ditto", options, tmp_path / "late")
    assert without_times(result) == without_times(alone)
    assert_same_files(tmp_path / "alone", tmp_path / "late")
    assert workers.looks_with_calls() == []


# ---------------------------------------------------------------- resuming
def test_resume_on_an_empty_folder_starts_and_says_so(tmp_path, capsys):
    fedtailor.run("fedavg", **SMALL, out=tmp_path / "new", resume=True, quiet=False)
    assert "starting from the beginning" in capsys.readouterr().out


def test_resume_extends_a_run(tmp_path):
    longer = {**SMALL, "rounds": 6}
    fedtailor.run("fedavg", **SMALL, out=tmp_path / "a")
    extended = fedtailor.run("fedavg", **longer, out=tmp_path / "a", resume=True)
    assert extended["hash"] == fedtailor.run("fedavg", **longer)["hash"]


def test_a_run_is_not_shortened(tmp_path):
    fedtailor.run("fedavg", **SMALL, out=tmp_path / "a")
    with pytest.raises(
        fedtailor.UserError, match="at round 4 already; rounds=2 is less"
    ):
        fedtailor.run(
            "fedavg", **{**SMALL, "rounds": 2}, out=tmp_path / "a", resume=True
        )


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
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["thesis.tex"]


# ---------------------------------------------------------------- what a run leaves behind
def test_the_result_says_what_it_must(tmp_path):
    result = fedtailor.run(
        "ditto", **SMALL, views="after", new_clients=1, out=tmp_path / "a"
    )
    assert result == json.loads((tmp_path / "a/result.json").read_text())
    expected = {
        "method",
        "data",
        "seed",
        "rounds",
        "accuracy",
        "views",
        "clients",
        "fairness",
    }
    expected |= {"bytes", "seconds", "hash"}
    assert expected <= result.keys()
    reported = {"best", "last", "mean_last_10", "best_on_test", "best_round"}
    reported |= {"best_on_test_round"}
    assert result["accuracy"].keys() == reported
    assert 0 <= result["accuracy"]["best"] <= result["accuracy"]["best_on_test"] <= 1
    assert result["views"].keys() == {"personal", "after", "newcomers", "global_ptest"}
    assert len(result["clients"]) == 5
    for client in result["clients"]:
        assert 0 <= client["accuracy"] <= 1
    model = 13_706 * 4  # bytes of the network for 8 x 8 digits
    assert result["bytes"] == {"up": 4 * 5 * model, "down": 4 * 5 * model}


def test_the_folder_holds_what_it_must(tmp_path):
    fedtailor.run("ditto", **SMALL, out=tmp_path / "a")
    expected = {"config.toml", "partition.npz", "rounds.jsonl", "result.json"}
    expected |= {"checkpoint", "models"}
    assert expected <= {path.name for path in (tmp_path / "a").iterdir()}
    assert [record["t"] for record in read_journal(tmp_path / "a/rounds.jsonl")] == [
        1,
        2,
        3,
        4,
    ]


def test_personal_models_come_back(tmp_path):
    result = fedtailor.run("ditto", **SMALL, out=tmp_path / "a")
    run = fedtailor.load(tmp_path / "a")
    assert run.result["hash"] == result["hash"]
    federation, _ = prepare_federation(make_experiment(run.config))
    tested = [client for client in result["clients"] if client["n_test"]]
    assert len(tested) > 3
    for client in tested:
        assert measure_accuracy(run, federation, client) == pytest.approx(
            client["accuracy"]
        )
    with pytest.raises(fedtailor.UserError, match="no client 77"):
        run.client(77)
    with pytest.raises(fedtailor.UserError, match="inputs of shape"):
        run.client(3).predict(np.zeros((2, 3, 32, 32), np.float32))


def measure_accuracy(run, federation, client):
    """Test accuracy of one client's model in a finished run."""
    test = federation.test[client["id"]]
    hits = run.client(client["id"]).predict(federation.x[test]) == federation.y[test]
    return float(hits.double().mean())


@pytest.mark.parametrize("method", ["gpfl", "pfedc"])
def test_models_can_be_used_where_the_data_are_not(tmp_path, method):
    """Models of these methods know how many examples of each class a client has."""
    x = np.random.default_rng(0).normal(size=(160, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)
    data = tmp_path / "mine.npz"
    np.savez(data, x=x, y=y, client=np.arange(160) % 4)
    out = tmp_path / "run"
    result = fedtailor.run(method, data, rounds=4, out=out, executor="sequential")
    federation, _ = prepare_federation(make_experiment(fedtailor.load(out).config))
    data.unlink()
    run = fedtailor.load(out)
    for client in result["clients"]:
        assert measure_accuracy(run, federation, client) == pytest.approx(
            client["accuracy"]
        )


def test_no_test_samples_is_one_clear_line():
    one = (np.zeros((1, 3), np.float32), [0])
    two = (np.ones((1, 3), np.float32), [1])
    with pytest.raises(fedtailor.UserError, match="no client has a test sample"):
        fedtailor.run("fedavg", [one, two], rounds=1)


# ---------------------------------------------------------------- own data, model and method
class OwnNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.base(x))


def own_data():
    """Four clients with three clusters of points."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 5))
    clients = []
    for _ in range(4):
        y = rng.integers(0, 3, 60)
        x = centres[y] + 0.3 * rng.normal(size=(60, 5))
        clients.append((x.astype(np.float32), y))
    return clients


def test_own_data_model_and_method():
    options = {"rounds": 15, "lr": 0.1}
    network = OwnNetwork()  # whose values are where both runs start
    by_class = fedtailor.run(Ditto, own_data(), network, set={"lam": 0.5}, **options)
    by_instance = fedtailor.run(Ditto(lam=0.5), own_data(), network, **options)
    assert by_class["hash"] == by_instance["hash"]
    assert by_class["accuracy"]["last"] > 0.8


def test_a_network_without_base_and_head():
    network = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    result = fedtailor.run("fedper", own_data(), network, last="2", rounds=15, lr=0.1)
    assert result["accuracy"]["last"] > 0.8


# ---------------------------------------------------------------- who takes part
def test_participation():
    options = {
        "clients": 10,
        "rounds": 8,
        "participation": "0.2..0.6",
        "late_clients": "3@4",
    }
    config = make_experiment({"method": "fedavg", **SMALL, **options})
    folder = RunFolder(None)
    run_experiment(prepare(config), folder)
    records = read_journal(folder.path / "rounds.jsonl")
    folder.close()
    counts = [len(record["clients"]) for record in records]
    assert len(set(counts)) > 1
    assert all(1 <= count <= 6 for count in counts)
    newest = [max(record["clients"]) for record in records]
    assert max(newest[:3]) < 7
    assert max(newest[3:]) >= 7


def test_a_round_without_replies_is_skipped_and_in_the_end_the_run_stops(capsys):
    with pytest.raises(
        fedtailor.UserError, match="no usable reply in 3 rounds in a row"
    ):
        fedtailor.run("fedavg", **{**SMALL, "rounds": 9}, drop=1.0, max_silent_rounds=3)
    with pytest.raises(fedtailor.UserError, match="NaN or infinity"):
        fedtailor.run("fedavg", **SMALL, lr=1e30, max_silent_rounds=2)
    assert "round 1 is skipped" in capsys.readouterr().err


# ---------------------------------------------------------------- evaluation
def test_evaluation_every_few_rounds_of_few_clients():
    result = fedtailor.run(
        "fedavg", **{**SMALL, "rounds": 5}, evaluate_every=2, evaluate_clients="3"
    )
    assert len(result["clients"]) == 3


def test_without_validation_data_there_is_no_best():
    result = fedtailor.run("fedavg", **SMALL, validation=0)
    assert result["accuracy"]["best"] is None
    assert result["accuracy"]["last"] is not None


def test_settings_of_torch_are_as_before():
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    fedtailor.run("fedavg", **SMALL, dtype="float64")
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), before)
    torch.set_num_threads(1)
