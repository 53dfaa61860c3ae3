"""The report: numbers for programs, sentences for people, pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedtailor.audit.audit_client import Audit, NotApplicable, Plan, audit_client
from fedtailor.audit.gradient import Search
from fedtailor.audit.report import compose_text
from fedtailor.cli.audit import read_setup
from fedtailor.cli.main import app
from fedtailor.core.errors import UserError
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare

CONFIG = """method = "METHOD"
data = "digits"
clients = 4
limit = 120
rounds = 2
executor = "sequential"
"""
QUICK = ["--iterations", "3", "--restarts", "1", "--shadows", "1", "--round", "1"]


def write_config(folder: Path, method: str, more: str = "") -> Path:
    path = folder / "audit.toml"
    path.write_text(CONFIG.replace("METHOD", method) + more)
    return path


def run_audit(config: Path, out: Path, *more: str) -> str:
    """The command line's output."""
    arguments = ["audit", str(config), "--client", "1", *QUICK, "--out", str(out)]
    found = CliRunner().invoke(app, [*arguments, *more])
    assert found.exit_code == 0, found.output
    return found.output


def test_report_files_of_a_whole_audit(tmp_path: Path) -> None:
    out = tmp_path / "audit"
    text = run_audit(write_config(tmp_path, "fedcp"), out)
    assert "plain grey" in text
    report = json.loads((out / "report.json").read_text())
    leak = report["leaks"][0]
    assert {"noise", "grey", "outcomes"} <= leak.keys()
    assert {found["attack"] for found in leak["outcomes"]} == {
        "inverting",
        "idlg",
        "dlg",
    }
    assert report["findings"][0]["name"] == "personal head"
    assert report["findings"][0]["error"] < 1e-6
    assert {score["model"] for score in report["membership"]} == {"personal"}
    assert 0 <= report["shares"]["error"] <= 1
    written = (out / "report.md").read_text()
    assert "a search begins at" in written
    assert "plain grey" in written
    assert "**personal head**: recovered" in written
    for picture in out.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(list(out.glob("recovered_*.png"))) == len(report["leaks"]) == 2


def test_of_a_protected_run_it_says_that_nothing_can_be_read(tmp_path: Path) -> None:
    pytest.importorskip("Crypto")
    out = tmp_path / "audit"
    config = write_config(tmp_path, "fedcp", "secure_sum = true\n")
    run_audit(config, out, "--attack", "gradient,algebra,property")
    report = json.loads((out / "report.json").read_text())
    assert set(report["not_applicable"]) == {"gradient", "algebra", "property"}
    assert all("sealed" in why for why in report["not_applicable"].values())


def test_a_private_run_is_played_with_its_noise(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    noisy = 'dp = "client"\ndp_noise = 0.5\ndp_accountant = "rdp"\n'
    config = write_config(tmp_path, "fedper", noisy)
    run_audit(config, tmp_path / "audit", "--attack", "property")


def test_a_single_attack_that_cannot_be_made_is_refused() -> None:
    options = {"method": "local", "data": "digits", "clients": 4, "limit": 120}
    setup = prepare(make_experiment({**options, "executor": "sequential"}))
    plan = Plan(("gradient",), Search(1, 1), rounds=1)
    with pytest.raises(NotApplicable, match="sent no trained parameters"):
        audit_client(setup, 0, plan, lambda _: None)


def test_bad_input_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no attack 'gradiant'; did you mean gradient"):
        Plan(("gradiant",))
    with pytest.raises(UserError, match="neither the folder of a run nor a TOML file"):
        read_setup(tmp_path / "nowhere", None)
    setup = read_setup(write_config(tmp_path, "fedavg"), None)
    with pytest.raises(UserError, match="no client 9: those that train are 0 to 3"):
        audit_client(setup, 9, Plan(("algebra",)), lambda _: None)
    with pytest.raises(UserError, match="round 5 is none"):
        audit_client(setup, 0, Plan(("algebra",), rounds=5), lambda _: None)


def test_a_report_without_parts_is_short() -> None:
    text = compose_text(Audit("fedavg", "digits", 2, 0))
    assert text.startswith("# Audit of client 2: fedavg on digits, seed 0")


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["cd2pfed", "fed3p2p", "fedcp", "fedma", "gpfl", "mocha", "pacfl", "pfedc"],
)
def test_every_seed_method_can_be_audited(tmp_path: Path, method: str) -> None:
    model = 'model = "linear"\n' if method == "mocha" else ""
    config = write_config(tmp_path, method, model)
    run_audit(config, tmp_path / "audit")
    assert (tmp_path / "audit" / "report.md").exists()
