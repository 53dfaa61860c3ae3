"""Deployments with Flower's own processes, TLS and authentication on: methods and faults."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from real_superlink import RealSuperLink
from safetensors.torch import load_file

pytest.importorskip("flwr")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("deployed")]

PARTITION = "--data digits --limit 240 --partition dirichlet:0.5 --clients 2"
METHODS = ["fedavg", "fedrep", "fedcp", "cd2pfed", "fed3p2p", "gpfl", "pfedc"]
RUN = "--rounds 3 --lr 0.1"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """One SuperLink for all tests."""
    made = RealSuperLink(tmp_path_factory.mktemp("deployed"))
    try:
        made.run(f"fedtailor partition {PARTITION} --out partition --export sites")
        made.start_superlink()
        made.register(0, 1)
        yield made
    finally:
        made.close()


@pytest.fixture
def sites(real):
    """The SuperLink with both nodes running."""
    restart_nodes(real)
    return real


def restart_nodes(real: RealSuperLink) -> None:
    """Start the nodes that do not run."""
    for i in (0, 1):
        process = real.processes.get(f"node-{i}")
        if process is None or process.poll() is not None:
            real.start_node(i, f"sites/site-{i}.npz")


def read_result(real: RealSuperLink, out: str) -> dict:
    return json.loads((real.folder / out / "result.json").read_text())


def read_journal(real: RealSuperLink, out: str) -> list[dict]:
    path = real.folder / out / "rounds.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for_rounds(real: RealSuperLink, out: str, count: int) -> None:
    real.wait_until(lambda: len(read_journal(real, out)) >= count, f"{count} rounds")


def wait_for_server_end(real: RealSuperLink) -> None:
    real.wait_until(
        lambda: not is_running("flwr-serverapp", real.folder),
        "the end of the run's server",
    )


def is_running(name: str, folder: Path) -> bool:
    """Whether a process of this name runs in this folder."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if name in command and Path(f"/proc/{pid}/cwd").resolve() == folder:
                return True
        except OSError:
            continue
    return False


def simulate(real: RealSuperLink, options: str, name: str) -> dict:
    out = f"simulated/{name}"
    real.run(f"fedtailor run {PARTITION} --executor sequential {options} --out {out}")
    return read_result(real, out)


# -------------------------------------------------------------------- equal to a simulated run
@pytest.mark.parametrize("method", METHODS)
def test_a_method_gives_the_same_as_simulated(sites, method):
    options = f"--method {method} {RUN}"
    sites.federate(f"{options} --sites 2", f"runs/{method}")
    deployed = read_result(sites, f"runs/{method}")
    simulated = simulate(sites, options, method)
    for same in ("hash", "accuracy", "views", "bytes"):
        assert deployed[same] == simulated[same], same


def test_a_model_of_megabytes_passes_in_chunks(sites):
    options = "--method ditto --model resnet32 --rounds 2 --lr 0.1"
    sites.federate(f"{options} --sites 2", "runs/large")
    deployed = read_result(sites, "runs/large")
    assert deployed["hash"] == simulate(sites, options, "large")["hash"]
    assert deployed["bytes"]["up"] / 4 > 1 << 20


def test_an_app_that_comes_with_a_run_is_not_run_at_a_site(sites):
    """Flower would import it; here it is neither unpacked nor loaded, and the run succeeds."""
    trace = sites.folder / "trace"
    code = f"open({str(trace)!r}, 'a').close()\n"
    command = sites.federate_command(f"--method fedavg {RUN} --sites 2", "runs/foreign")
    arguments = sites.localise(command)[1:]
    script = [
        "import fedtailor.deploy.flower.superlink as superlink",
        "from fedtailor.cli.main import app",
        f"superlink.CLIENT += {code!r}",
        f"app({arguments!r})",
    ]
    (sites.folder / "foreign.py").write_text("\n".join(script) + "\n")
    sites.run(f"{sys.executable} foreign.py")
    assert read_result(sites, "runs/foreign")["rounds"] == 3 and not trace.exists()


# -------------------------------------------------------------------- encrypted
def read_kept_models(folder: Path) -> dict[str, torch.Tensor]:
    """The numbers of all personal models below a folder, by client and name."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.rglob("models/[0-9]*.safetensors")):
        if len(path.stem) < 8:  # the others are candidates, by round
            for name, value in load_file(path).items():
                found[f"{path.stem}/{name}"] = value
    return found


def test_privacy_pfedc_with_real_ciphertexts_is_as_near_as_promised(sites):
    """Bit for bit as the same sums in clear, and within 1e-4 of the run without encryption."""
    pytest.importorskip("tenseal")
    for i in (0, 1):
        sites.kill(f"node-{i}")
        more = f"--he-key keys/he.key --state private-{i}"
        sites.start_node(i, f"sites/site-{i}.npz", more)
    options = f"--method pfedc {RUN} --encrypt heads"
    sites.federate(f"{options} --he-public keys/he.pub --sites 2", "runs/private")
    deployed = read_result(sites, "runs/private")
    plain = simulate(sites, f"{options} --he plain", "private-plain")
    for same in ("hash", "accuracy", "views"):
        assert deployed[same] == plain[same], same
    assert deployed["encryption"]["scheme"] == "bfv"
    simulate(sites, f"--method pfedc {RUN} --set distribute=all", "private-float")
    clear = read_kept_models(sites.folder / "simulated/private-float")
    private = {}
    for i in (0, 1):
        private |= read_kept_models(sites.folder / f"private-{i}")
    assert private.keys() == clear.keys()
    gaps = [float((private[name] - x).abs().max()) for name, x in clear.items()]
    assert 0 < max(gaps) < 1e-4
    secret = (sites.folder / "keys/he.key").read_text()[-400:-20].encode()
    for path in (sites.folder / "runs/private").rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes()


# -------------------------------------------------------------------- faults
def test_a_server_that_is_killed_goes_on_to_the_same_end(sites):
    """The whole SuperLink dies in mid-run, with the run's server; both are started again."""
    options = "--method ditto --rounds 6 --lr 0.1 --epochs 3"
    out = "runs/killed"
    sites.start("federate-killed", sites.federate_command(f"{options} --sites 2", out))
    wait_for_rounds(sites, out, 2)
    sites.kill("superlink")
    sites.wait_for_end("federate-killed", code=2)
    assert "fedtailor: the SuperLink at" in sites.read_log("federate-killed")
    wait_for_server_end(sites)
    assert 2 <= len(read_journal(sites, out)) < 6
    sites.start_superlink()
    restart_nodes(sites)  # where they have not connected again by themselves
    sites.federate(f"{options} --sites 2 --resume", out)
    assert read_result(sites, out)["hash"] == simulate(sites, options, "killed")["hash"]


def test_a_node_that_loses_power_is_away_for_rounds_and_rejoins(sites):
    """Its whole tree of processes dies at once; the run goes on until it has taken it in again."""
    out = "runs/away"
    options = "--method ditto --rounds 1000 --lr 0.1 --sites 2 --deadline 4 --absence 2"
    run = sites.start("federate-away", sites.federate_command(options, out))
    wait_for_rounds(sites, out, 2)
    process = sites.processes.pop("node-1")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    sites.wait_until(
        lambda: any(record["lost"] for record in read_journal(sites, out)),
        "a round without it",
    )
    sites.wait_until(
        lambda: read_journal(sites, out)[-1]["clients"] == [0],
        "rounds of the other site",
    )
    sites.start_node(1, "sites/site-1.npz")
    sites.wait_until(
        lambda: read_journal(sites, out)[-1]["clients"] == [0, 1],
        "a round of both sites",
    )
    sites.wait_for_text("federate-away", "site 'node-1' is back")
    run.send_signal(signal.SIGINT)
    sites.wait_for_end("federate-away", code=130)
    wait_for_server_end(sites)


def test_replies_after_the_deadline_and_half_of_the_nodes_gone(sites):
    """A node that is stopped, not killed, answers too late; the rounds go on without it."""
    out = "runs/late"
    node = sites.processes["node-1"]
    sites.federate("--method fedavg --rounds 1 --sites 2", "runs/warm")
    command = sites.federate_command(
        f"--method fedavg {RUN} --sites 2 --deadline 5", out
    )
    sites.start("federate-late", command)
    sites.wait_for_text("federate-late", "fedavg on sites")
    os.kill(node.pid, signal.SIGSTOP)
    try:
        sites.wait_for_end("federate-late")
    finally:
        os.kill(node.pid, signal.SIGCONT)
    reasons = [
        why for record in read_journal(sites, out) for why in record["lost"].values()
    ]
    assert any("did not reply within 5 s" in why for why in reasons)
    time.sleep(1)


def test_ctrl_c_stops_a_run_which_can_be_resumed(sites):
    options = "--method ditto --rounds 20 --lr 0.1"
    out = "runs/stop"
    run = sites.start(
        "federate-stop", sites.federate_command(f"{options} --sites 2", out)
    )
    wait_for_rounds(sites, out, 2)
    run.send_signal(signal.SIGINT)
    sites.wait_for_end("federate-stop", code=130)
    assert "go on with --resume" in sites.read_log("federate-stop")
    wait_for_server_end(sites)
    sites.federate(f"{options} --sites 2 --resume", out)
    assert read_result(sites, out)["hash"] == simulate(sites, options, "stop")["hash"]


# -------------------------------------------------------------------- what is refused
def test_a_run_that_asks_too_much_stops_by_name(sites):
    sites.stop("node-1")
    sites.start_node(1, "sites/site-1.npz", "--allow none")
    said = sites.federate(f"--method fed3p2p {RUN} --sites 2", "runs/denied", code=2)
    sites.stop("node-1")
    assert (
        "fedtailor: site 'node-1' does not allow this run what it asks for: 'count'"
        in said
    )
    assert "asked for 'count'" in sites.read_log("node-1")


def test_a_site_with_other_data_is_named(sites):
    sites.stop("node-1")
    with np.load(sites.folder / "sites/site-1.npz") as file:
        arrays = dict(file)
    for split in ("train", "val", "test"):
        arrays[f"x_{split}"] = arrays[f"x_{split}"][..., :7]
    np.savez(sites.folder / "odd.npz", **arrays)
    sites.start_node(1, "odd.npz")
    said = sites.federate(f"--method fedavg {RUN} --sites 2", "runs/odd", code=2)
    sites.stop("node-1")
    misfit = "its inputs have the shape (1, 8, 7), the run's (1, 8, 8)"
    assert f"fedtailor: site 'node-1' does not fit the run: {misfit}" in said


def test_a_site_with_another_method_version_is_named(sites):
    from fedtailor.methods import fedprox

    text = Path(fedprox.__file__).read_text(encoding="utf-8")
    (sites.folder / "mine.py").write_text(text)
    (sites.folder / "old").mkdir()
    (sites.folder / "old/mine.py").write_text(text + "\n# an older version\n")
    for i, path in ((0, "mine.py"), (1, "old/mine.py")):
        sites.stop(f"node-{i}")
        sites.start_node(i, f"sites/site-{i}.npz", f"--method {path}")
    options = f"--method mine.py {RUN}"
    said = sites.federate(f"{options} --sites 2", "runs/version", code=2)
    assert (
        "fedtailor: site 'node-1' refuses: this site has another version of method mine"
        in said
    )
    sites.stop("node-1")
    sites.start_node(1, "sites/site-1.npz", "--method mine.py")
    sites.federate(f"{options} --sites 2", "runs/mine")
    simulated = simulate(sites, options, "mine")
    assert read_result(sites, "runs/mine")["hash"] == simulated["hash"]


def test_a_key_that_is_not_registered_is_told(real):
    secure = f"--superlink {real.address} --root-certificates keys/ca.pem --key keys/node-3.key"
    said = real.run(f"fedtailor node --data sites/site-0.npz {secure}", code=2)
    assert "does not let this site in" in said and "register its public key" in said
    assert said.strip().splitlines()[-1].startswith("fedtailor: ")


def test_a_certificate_of_another_authority_is_told(real):
    real.run("fedtailor keys others --nodes 1 --host 127.0.0.1")
    wrong = f"--superlink {real.address} --root-certificates others/ca.pem"
    node = (
        f"fedtailor node --data sites/site-0.npz {wrong} --key keys/node-0.key --name x"
    )
    said = real.run(node, code=2)
    assert "the certificate of the SuperLink at" in said and "will not do" in said
    said = real.run(
        f"fedtailor federate --method fedavg {wrong} --out runs/wrong", code=2
    )
    assert said.strip().splitlines()[-1].startswith("fedtailor: the SuperLink at")
