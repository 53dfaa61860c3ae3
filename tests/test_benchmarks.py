"""The benchmarks still run, and their contenders compute the same."""

import json
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch

from fedtailor import models
from fedtailor.methods import find
from fedtailor.models import channels
from fedtailor.testing.small_world import digits, run_small
from fedtailor.training.optim import Plan

ROOT = Path(__file__).parent.parent
SECTIONS = ("S1: ", "S2: ", "S3: ", "S4: ", "The rule behind")


@pytest.fixture(autouse=True)
def benchmarks_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One run of everything in tiny sizes: the document and the raw results."""
    folder = tmp_path_factory.mktemp("bench")
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--quick",
        "--raw",
        str(folder),
        "--out",
        str(folder / "out.md"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    raw = [json.loads(p.read_text()) for p in sorted((folder / "quick" / "raw").glob("*.json"))]
    return (folder / "out.md").read_text(), {r["job"]["name"]: r for r in raw}, folder / "quick"


@pytest.mark.slow
def test_everything_is_measured_and_written_down(quick):
    text, raw, _ = quick
    for section in SECTIONS:
        assert f"\n## {section}" in text
    assert {name.partition("/")[0] for name in raw} >= {"S1", "S2", "S3", "S4", "auto"}
    for record in raw.values():
        assert record["peak_rss"] > 50e6
        assert len(record["parts"]) == len(record["job"]["parts"])
        for told, part in zip(record["job"]["parts"], record["parts"].values(), strict=True):
            assert len(part["seconds"]) == told.get("timed", len(part["seconds"]))
            assert min(part["seconds"], default=1) > 0
    assert "not measured:" not in text and "nan" not in text


@pytest.mark.slow
def test_the_plain_loop_learns_what_fedtailor_learns(quick):
    _, raw, _ = quick
    pairs = [
        (raw["S2/FedTailor"]["parts"]["fedavg"], raw["S2/plain loop"]["parts"]["1 thread"]),
        *(
            (
                raw["S4/FedTailor"]["parts"][f"digits, MLP 64-128-10/{executor}"],
                raw["S4/plain loop"]["parts"]["digits, MLP 64-128-10/1 thread"],
            )
            for executor in ("sequential", "vmap")
        ),
    ]
    for ours, plain in pairs:
        assert ours["check"]["loss"] == pytest.approx(plain["check"]["loss"], rel=1e-5)


@pytest.mark.slow
def test_results_are_used_again_only_if_nothing_has_changed(quick):
    running = import_module("benchmarks.running")
    _, raw, folder = quick
    store, told = running.Store(folder), raw["S1/FedTailor"]["job"]
    parts, launcher = tuple(told.pop("parts")), tuple(told.pop("launcher"))
    job = running.Job(parts=parts, launcher=launcher, **told)
    store.source = raw["S1/FedTailor"]["source"]
    assert store.get(job, 1)["parts"] == raw["S1/FedTailor"]["parts"]
    assert store.get(job, 2) is None
    assert store.get(running.Job(parts=(*parts, {}), launcher=launcher, **told), 1) is None
    store.source = "another"
    assert store.get(job, 1) is None


def test_memory_of_daemons_counts():
    running = import_module("benchmarks.running")
    memory = running.Memory("a-daemon")
    hold = "import time; x = bytearray(b'1') * 200_000_000; time.sleep(1.5)"
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {hold!r}], start_new_session=True)"
    subprocess.run(
        [sys.executable, "-c", leave], env={**os.environ, running.TAG: "a-daemon"}, check=True
    )
    time.sleep(1.5)
    assert 200e6 < memory.stop() < 400e6


SHAPES = {
    "pflcnn": ((3, 32, 32), 10, 0),
    "cnn": ((1, 28, 28), 10, 0),
    "mlp": ((1, 8, 8), 10, 0),
    "har_cnn": ((9, 128), 6, 0),
    "fasttext": ((50,), 4, 300),
}


def leaf_layers(net):
    return [type(m).__name__ for m in net.modules() if not list(m.children())]


@pytest.mark.parametrize("name", [*SHAPES, "cnn on digits"])
def test_the_contenders_network_is_fedtailors(name):
    shape, classes, vocabulary = SHAPES.get(name, ((1, 8, 8), 10, 0))
    name = name.partition(" ")[0]
    theirs = import_module("benchmarks.networks").build(name, shape, classes, vocabulary)
    ours = models.build(name, shape, classes, vocabulary=vocabulary)
    theirs.load_state_dict(ours.state_dict())
    assert leaf_layers(ours) == leaf_layers(theirs)
    x = torch.randint(1, vocabulary, (4, *shape)) if vocabulary else torch.rand(4, *shape)
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
    "cd2pfed": lambda server, keep: channels.overlay(keep.w, server.w),
    "fed3p2p-1": lambda server, keep: server.w,
    "fed3p2p-2": lambda server, keep: server.filters[0] | keep.own,
    "gpfl": lambda server, keep: server.base | server.valve | server.embed | keep.head,
    "pfedc": lambda server, keep: server.base | keep.heads,
}


def visit_once(name, skew):
    """One round of one client under FedTailor, and what a bare loop needs to do the same."""
    bare, networks, workload = (
        import_module(f"benchmarks.{m}") for m in ("bare", "networks", "workload")
    )
    federation, plan = digits((43,), skew=skew), Plan(lr=0.05, batch=10)
    backbone = models.build("cnn", federation.shape, federation.classes)
    played = run_small(
        find(name.partition("-")[0])(**CONSTANTS.get(name, {})),
        rounds=1,
        federation=federation,
        backbone=backbone,
        plan=plan,
    )
    kit = bare.assemble(
        name, networks.build("cnn", federation.shape, 10), played.runner.new(0), plan.lr
    )
    rows = federation.train[0]
    epochs = [at.split(10) for at in workload.draw_positions(0, 1, 0, len(rows), 10, 11)]
    return played, bare, kit, bare.Guest(federation.x[rows], federation.y[rows], epochs, 10)


@pytest.mark.parametrize("skew", [True, False], ids=["few classes", "all classes"])
@pytest.mark.parametrize("name", RESULT)
def test_the_bare_loop_does_the_methods_own_work(name, skew):
    played, bare, kit, guest = visit_once(name, skew)
    bare.VISITS[name](kit, guest)
    trained, result = kit.net.state_dict(), RESULT[name](played.server, played.keep(0))
    moved = 0.0
    for key, value in result.items():
        torch.testing.assert_close(trained[key], value, rtol=1e-4, atol=1e-5)
        moved = max(moved, float((value - kit.first[key]).abs().max()))
    assert moved > 1e-3


def test_dittos_bare_loop_trains_the_personal_model_first():
    played, bare, kit, guest = visit_once("ditto", True)
    bare.train_pulled(kit, guest)
    for key, value in played.keep(0).v.items():
        torch.testing.assert_close(kit.net.state_dict()[key], value, rtol=1e-4, atol=1e-5)
