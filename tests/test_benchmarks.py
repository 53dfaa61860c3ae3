"""The benchmarks still run, and their contenders compute the same."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest
import torch

from benchmarks.bare_loops import (
    TRAIN,
    ClientData,
    Model,
    build_model,
    train_ditto_personal,
)
from benchmarks.harness.job_runner import JOB_VARIABLE, Job, MemorySampler, ResultStore
from benchmarks.networks import build_network
from benchmarks.scenarios import SCENARIOS
from benchmarks.work_file import draw_positions
from fedtailor import models
from fedtailor.core.rng import Purpose, Rng
from fedtailor.methods import find
from fedtailor.models import channels
from fedtailor.testing.small_world import SmallRun, digits, run_small
from fedtailor.training.optim import Plan

ROOT = Path(__file__).parent.parent
MLP = "digits, MLP 64-128-10"


class QuickRun(NamedTuple):
    """All scenarios in tiny sizes."""

    folder: Path
    records: dict  # raw results by job


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    document = folder / "out.md"
    command = [sys.executable, "-m", "benchmarks", "--quick"]
    command += ["--raw", str(folder), "--out", str(document)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert document.exists()
    raw = sorted((folder / "quick" / "raw").glob("*.json"))
    records = [json.loads(path.read_text()) for path in raw]
    return QuickRun(
        folder / "quick", {record["job"]["name"]: record for record in records}
    )


@pytest.mark.slow
def test_every_scenario_runs_quick(quick):
    assert {name.partition("/")[0] for name in quick.records} == set(SCENARIOS)
    for record in quick.records.values():
        assert record["peak_rss"] > 50e6
        assert len(record["parts"]) == len(record["job"]["parts"])
        for asked, part in zip(
            record["job"]["parts"], record["parts"].values(), strict=True
        ):
            assert len(part["seconds"]) == asked.get("timed", len(part["seconds"]))
            assert min(part["seconds"], default=1) > 0


@pytest.mark.slow
def test_the_plain_loop_learns_what_fedtailor_learns(quick):
    def loss(job, part):
        return quick.records[job]["parts"][part]["check"]["loss"]

    plain = loss("S2/plain loop", "1 thread")
    assert loss("S2/FedTailor", "fedavg") == pytest.approx(plain, rel=1e-5)
    plain = loss("S4/plain loop", f"{MLP}/1 thread")
    for executor in ("sequential", "vmap"):
        assert loss("S4/FedTailor", f"{MLP}/{executor}") == pytest.approx(
            plain, rel=1e-5
        )


@pytest.mark.slow
def test_results_are_used_again_only_if_nothing_has_changed(quick):
    record = quick.records["S1/FedTailor"]
    given = dict(record["job"])
    parts = tuple(given.pop("parts"))
    launcher = tuple(given.pop("launcher"))
    job = Job(parts=parts, launcher=launcher, **given)
    store = ResultStore(quick.folder)
    store.source = record["source"]
    assert store.load(job, 1).parts == record["parts"]
    assert store.load(job, 2) is None
    assert store.load(Job(parts=(*parts, {}), launcher=launcher, **given), 1) is None
    store.source = "another"
    assert store.load(job, 1) is None


def test_peers_read_work_files_without_fedtailor():
    program = """
        import sys
        from importlib.abc import MetaPathFinder

        class NoFedTailor(MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name.partition(".")[0] == "fedtailor":
                    raise ImportError(name)

        sys.meta_path.insert(0, NoFedTailor())
        import benchmarks.work_file, benchmarks.programs.job_io
    """
    subprocess.run([sys.executable, "-c", dedent(program)], cwd=ROOT, check=True)


def test_memory_of_daemons_counts():
    memory = MemorySampler("a-daemon")
    hold = "import time; x = bytearray(b'1') * 200_000_000; time.sleep(1.5)"
    start = (
        f"subprocess.Popen([sys.executable, '-c', {hold!r}], start_new_session=True)"
    )
    subprocess.run(
        [sys.executable, "-c", f"import subprocess, sys; {start}"],
        env={**os.environ, JOB_VARIABLE: "a-daemon"},
        check=True,
    )
    time.sleep(1.5)
    assert 200e6 < memory.stop() < 400e6


NETWORKS = {  # name, shape, classes, vocabulary
    "pflcnn": ("pflcnn", (3, 32, 32), 10, 0),
    "cnn": ("cnn", (1, 28, 28), 10, 0),
    "cnn on digits": ("cnn", (1, 8, 8), 10, 0),
    "mlp": ("mlp", (1, 8, 8), 10, 0),
    "har_cnn": ("har_cnn", (9, 128), 6, 0),
    "fasttext": ("fasttext", (50,), 4, 300),
}


def leaf_layers(net):
    return [type(m).__name__ for m in net.modules() if not list(m.children())]


@pytest.mark.parametrize("case", NETWORKS)
def test_the_contenders_network_is_fedtailors(case):
    name, shape, classes, vocabulary = NETWORKS[case]
    theirs = build_network(name, shape, classes, vocabulary)
    ours = models.build(name, shape, classes, vocabulary=vocabulary)
    theirs.load_state_dict(ours.state_dict())
    assert leaf_layers(ours) == leaf_layers(theirs)
    x = torch.rand(4, *shape)
    if vocabulary:
        x = torch.randint(1, vocabulary, (4, *shape))
    assert torch.equal(ours(x), theirs(x))
    if name == "pflcnn":
        assert sum(p.numel() for p in theirs.parameters()) == 1_626_442


CONSTANTS = {
    "cd2pfed": {"li": False},
    "fed3p2p-1": {"phase1": 1000},
    "fed3p2p-2": {"phase1": 0, "reinit": False},
}
RESULT = {  # what one client's round leaves with the server and with the client
    "fedavg": lambda server, keep: server.w,
    "fedper": lambda server, keep: server.base | keep.own,
    "fedrep": lambda server, keep: server.base | keep.head,
    "ditto": lambda server, keep: server.w,
    "fedcp": lambda server, keep: server.base | server.policy | keep.head,
    "cd2pfed": lambda server, keep: channels.overlay_channels(keep.w, server.w),
    "fed3p2p-1": lambda server, keep: server.w,
    "fed3p2p-2": lambda server, keep: server.filters[0] | keep.own,
    "gpfl": lambda server, keep: server.base | server.valve | server.embed | keep.head,
    "pfedc": lambda server, keep: (
        server.base | {name: keep.own[name] + keep.other[name] for name in keep.own}
    ),
}


class Visit(NamedTuple):
    """One round of one client under FedTailor, and what a bare loop needs to do the same."""

    run: SmallRun
    model: Model
    client: ClientData


def visit_once(name, skew):
    federation = digits((43,), skew=skew)
    plan = Plan(lr=0.05, batch=10)
    run = run_small(
        find(name.partition("-")[0])(**CONSTANTS.get(name, {})),
        rounds=1,
        federation=federation,
        backbone=models.build("cnn", federation.shape, federation.classes),
        plan=plan,
    )
    net = build_network("cnn", federation.shape, 10)
    model = build_model(name, net, run.runner.new(0), plan.lr)
    rows = federation.train[0]
    rng = Rng.seed(0, Purpose.CALL, 1, 1, 0)
    epochs = draw_positions(rng, len(rows), plan.batch, epochs=11)
    batches = [positions.split(plan.batch) for positions in epochs]
    return Visit(
        run, model, ClientData(federation.x[rows], federation.y[rows], batches, 10)
    )


@pytest.mark.parametrize("skew", [True, False], ids=["few classes", "all classes"])
@pytest.mark.parametrize("name", RESULT)
def test_the_bare_loop_does_the_methods_own_work(name, skew):
    run, model, client = visit_once(name, skew)
    TRAIN[name](model, client)
    trained = model.net.state_dict()
    largest_change = 0.0
    for key, value in RESULT[name](run.server, run.keep(0)).items():
        torch.testing.assert_close(trained[key], value, rtol=1e-4, atol=1e-5)
        change = float((value - model.initial[key]).abs().max())
        largest_change = max(largest_change, change)
    assert largest_change > 1e-3


def test_dittos_bare_loop_trains_the_personal_model_first():
    run, model, client = visit_once("ditto", True)
    train_ditto_personal(model, client)
    trained = model.net.state_dict()
    for key, value in run.keep(0).v.items():
        torch.testing.assert_close(trained[key], value, rtol=1e-4, atol=1e-5)
