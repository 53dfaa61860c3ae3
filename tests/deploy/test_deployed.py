"""Deployments with Flower's own processes, TLS and authentication on: every method, every fault, one SuperLink."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from real_superlink import Loopback

pytest.importorskip("flwr")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("deployed")]

DEALT = "--data digits --limit 240 --partition dirichlet:0.5 --clients 2"
METHODS = ["fedavg", "fedrep", "fedcp", "cd2pfed", "fed3p2p", "gpfl", "pfedc"]
RUN = "--rounds 3 --lr 0.1"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made = Loopback(tmp_path_factory.mktemp("deployed"))
    try:
        made.run(f"fedtailor partition {DEALT} --out dealt --export sites")
        made.superlink()
        made.register(0, 1)
        for i in (0, 1):
            made.node(i, f"sites/site-{i}.npz")
        yield made
    finally:
        made.close()


@pytest.fixture
def sites(place):
    """Both nodes, running."""
    for i in (0, 1):
        if f"node-{i}" not in place.processes or place.processes[f"node-{i}"].poll() is not None:
            place.node(i, f"sites/site-{i}.npz")
    return place


def result(place: Loopback, out: str) -> dict:
    return json.loads((place.folder / out / "result.json").read_text())


def rounds(place: Loopback, out: str) -> list[dict]:
    path = place.folder / out / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def simulate(place: Loopback, options: str, out: str) -> dict:
    place.run(f"fedtailor run {DEALT} --executor sequential {options} --out {out}")
    return result(place, out)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_gives_the_same_as_simulated(sites, method):
    options = f"--method {method} {RUN}"
    sites.federate(f"{options} --sites 2", f"runs/{method}")
    deployed, simulated = (
        result(sites, f"runs/{method}"),
        simulate(sites, options, f"simulated/{method}"),
    )
    for same in ("hash", "accuracy", "views", "bytes"):
        assert deployed[same] == simulated[same], same


def test_a_model_of_megabytes_passes_in_chunks(sites):
    options = "--method ditto --model resnet32 --rounds 2 --lr 0.1"
    sites.federate(f"{options} --sites 2", "runs/large")
    deployed, simulated = result(sites, "runs/large"), simulate(sites, options, "simulated/large")
    assert deployed["hash"] == simulated["hash"] and deployed["bytes"]["up"] / 4 > 1 << 20


def test_an_app_that_comes_with_a_run_is_not_run_at_a_site(sites):
    """Flower would import it; here it is neither unpacked nor loaded, though the run goes through."""
    trace = sites.folder / "trace"
    code = f"open({str(trace)!r}, 'a').close()"
    command = sites.local(sites.federating(f"--method fedavg {RUN} --sites 2", "runs/foreign"))[1:]
    script = f"import fedtailor.deploy.flower.superlink as link; link.CLIENT = link.CLIENT + {code!r} + chr(10)\n"
    script += f"from fedtailor.cli.main import app; app({command!r})\n"
    (sites.folder / "foreign.py").write_text(script)
    sites.run(f"{sys.executable} foreign.py")
    assert result(sites, "runs/foreign")["rounds"] == 3 and not trace.exists()


def test_a_server_that_is_killed_goes_on_to_the_same_end(sites):
    """The whole SuperLink dies in mid-run, with the run's server; both are started again."""
    options = "--method ditto --rounds 6 --lr 0.1 --epochs 3"
    run = sites.start("federate-killed", sites.federating(f"{options} --sites 2", "runs/killed"))
    sites.until(lambda: len(rounds(sites, "runs/killed")) >= 2, "two rounds")
    sites.kill("superlink")
    sites.until(lambda: run.poll() is not None, "the end of federate")
    assert run.returncode == 2 and "fedtailor: the SuperLink at" in sites.said("federate-killed")
    del sites.processes["federate-killed"]
    sites.until(lambda: not _alive("flwr-serverapp", sites.folder), "the end of the run's server")
    done = len(rounds(sites, "runs/killed"))
    sites.superlink()
    for i in (0, 1):  # nodes connect again by themselves, or are started again
        if sites.processes[f"node-{i}"].poll() is not None:
            sites.node(i, f"sites/site-{i}.npz")
    sites.federate(f"{options} --sites 2 --resume", "runs/killed")
    assert 2 <= done < 6
    assert (
        result(sites, "runs/killed")["hash"] == simulate(sites, options, "simulated/killed")["hash"]
    )


def _alive(name: str, folder: Path) -> bool:
    """Whether a process of this name runs in this folder."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if name in command and Path(f"/proc/{pid}/cwd").resolve() == folder:
                return True
        except OSError:
            continue
    return False


def test_a_node_that_loses_power_is_away_for_rounds_and_rejoins(sites):
    """The whole tree of processes dies at once; the run goes on without it, and it is taken in again later."""
    options = "--method ditto --rounds 30 --lr 0.1"
    run = sites.start(
        "federate-away",
        sites.federating(f"{options} --sites 2 --deadline 4 --absence 2", "runs/away"),
    )
    sites.until(lambda: len(rounds(sites, "runs/away")) >= 2, "two rounds")
    process = sites.processes.pop("node-1")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    sites.until(lambda: any(r["lost"] for r in rounds(sites, "runs/away")), "a round without it")
    sites.until(lambda: rounds(sites, "runs/away")[-1]["clients"] == [0], "rounds of the others")
    sites.node(1, "sites/site-1.npz")
    sites.until(lambda: run.poll() is not None, "the end")
    assert run.returncode == 0, sites.logs()
    del sites.processes["federate-away"]
    took_part = [r["clients"] for r in rounds(sites, "runs/away")]
    assert [0] in took_part and took_part[-1] == [0, 1], took_part
    assert "site 'node-1' is back" in sites.said("federate-away")


def test_replies_after_the_deadline_and_half_of_the_nodes_gone(sites):
    """One of two nodes is stopped (not killed): it answers too late, and the rounds go on without it."""
    node = sites.processes["node-1"]
    sites.federate("--method fedavg --rounds 1 --sites 2", "runs/warm")
    run = sites.start(
        "federate-late",
        sites.federating(f"--method fedavg {RUN} --sites 2 --deadline 5", "runs/late"),
    )
    sites.hears("federate-late", "fedavg on sites")
    os.kill(node.pid, signal.SIGSTOP)
    try:
        sites.until(lambda: run.poll() is not None, "the end")
    finally:
        os.kill(node.pid, signal.SIGCONT)
    assert run.returncode == 0, sites.logs()
    del sites.processes["federate-late"]
    assert any(
        "did not reply within 5 s" in why
        for r in rounds(sites, "runs/late")
        for why in r["lost"].values()
    )
    time.sleep(1)


def test_a_run_that_asks_too_much_stops_by_name(sites):
    sites.end("node-1")
    sites.node(1, "sites/site-1.npz", "--allow none")
    said = sites.federate(f"--method fed3p2p {RUN} --sites 2", "runs/denied", code=2)
    sites.end("node-1")
    assert "fedtailor: site 'node-1' does not allow this run what it asks for: 'count'" in said
    assert "asked for 'count'" in sites.said("node-1")


def test_a_site_with_other_data_is_named(sites):
    sites.end("node-1")
    with np.load(sites.folder / "sites/site-1.npz") as z:
        arrays = dict(z)
    arrays |= {f"x_{part}": arrays[f"x_{part}"][..., :7] for part in ("train", "val", "test")}
    np.savez(sites.folder / "odd.npz", **arrays)
    sites.node(1, "odd.npz")
    said = sites.federate(f"--method fedavg {RUN} --sites 2", "runs/odd", code=2)
    sites.end("node-1")
    assert (
        "fedtailor: site 'node-1' does not fit the run: its inputs have the shape (1, 8, 7), the run's (1, 8, 8)"
        in said
    )


def test_a_site_with_another_method_version_is_named(sites):
    from fedtailor.methods import fedprox

    text = Path(fedprox.__file__).read_text(encoding="utf-8")
    (sites.folder / "mine.py").write_text(text)
    (sites.folder / "old").mkdir()
    (sites.folder / "old/mine.py").write_text(text + "\n# an older version\n")
    for i, path in ((0, "mine.py"), (1, "old/mine.py")):
        sites.end(f"node-{i}")
        sites.node(i, f"sites/site-{i}.npz", f"--method {path}")
    said = sites.federate(f"--method mine.py {RUN} --sites 2", "runs/version", code=2)
    assert "fedtailor: site 'node-1' refuses: this site has another version of method mine" in said
    sites.end("node-1")
    sites.node(1, "sites/site-1.npz", "--method mine.py")
    sites.federate(f"--method mine.py {RUN} --sites 2", "runs/mine")
    assert (
        result(sites, "runs/mine")["hash"]
        == simulate(sites, f"--method mine.py {RUN}", "simulated/mine")["hash"]
    )


def test_a_key_that_is_not_registered_is_told(place):
    secure = f"--superlink {place.address} --root-certificates keys/ca.pem"
    said = place.run(
        f"fedtailor node --data sites/site-0.npz {secure} --key keys/node-3.key", code=2
    )
    assert "does not let this site in" in said and "register its public key" in said
    assert said.strip().splitlines()[-1].startswith("fedtailor: ")


def test_a_certificate_of_another_authority_or_an_insecure_node_is_told(place):
    place.run("fedtailor keys others --nodes 1 --host 127.0.0.1")
    wrong = f"--superlink {place.address} --root-certificates others/ca.pem"
    said = place.run(
        f"fedtailor node --data sites/site-0.npz {wrong} --key keys/node-0.key --name x", code=2
    )
    assert "the certificate of the SuperLink at" in said and "will not do" in said
    said = place.run(f"fedtailor federate --method fedavg {wrong} --out runs/wrong", code=2)
    assert said.strip().splitlines()[-1].startswith("fedtailor: the SuperLink at")


def test_ctrl_c_stops_a_run_which_can_be_resumed(sites):
    options = "--method ditto --rounds 20 --lr 0.1"
    run = sites.start("federate-stop", sites.federating(f"{options} --sites 2", "runs/stop"))
    sites.until(lambda: len(rounds(sites, "runs/stop")) >= 2, "two rounds")
    run.send_signal(signal.SIGINT)
    sites.until(lambda: run.poll() is not None, "the end of federate")
    assert run.returncode == 130 and "go on with --resume" in sites.said("federate-stop")
    del sites.processes["federate-stop"]
    sites.until(lambda: not _alive("flwr-serverapp", sites.folder), "the end of the run's server")
    sites.federate(f"{options} --sites 2 --resume", "runs/stop")
    assert result(sites, "runs/stop")["hash"] == simulate(sites, options, "simulated/stop")["hash"]
