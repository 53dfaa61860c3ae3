"""The folder of a run: whom it belongs to, its journal, its models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fedtailor
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.run_folder import FORMAT, RunFolder, read_journal

SMALL = {
    "data": "digits",
    "clients": 3,
    "limit": 200,
    "rounds": 1,
    "executor": "sequential",
}


def begin(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.begin(make_experiment({}), "mine", None)
    return folder


def test_a_folder_is_claimed_by_one_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.claim("mine", resume=False)
    folder.claim("mine", resume=True)
    begin(tmp_path / "a").claim("mine", resume=True)
    with pytest.raises(fedtailor.UserError, match="holds this run already"):
        folder.claim("mine", resume=False)
    with pytest.raises(fedtailor.UserError, match="holds another run"):
        folder.claim("other", resume=True)


def test_what_a_deployed_run_prepares_is_no_run_yet(tmp_path: Path) -> None:
    for name in ("sites.json", "deploy.json", "method.py"):
        (tmp_path / name).write_text("")
        RunFolder(tmp_path).claim("mine", resume=False)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(fedtailor.UserError, match="something else than a run"):
        RunFolder(tmp_path).claim("mine", resume=False)


def test_the_format_is_written_and_an_older_folder_is_refused_in_one_line(
    tmp_path: Path,
) -> None:
    out = tmp_path / "a"
    result = fedtailor.run("fedavg", **SMALL, out=out)
    identity = json.loads((out / "identity.json").read_text())
    assert identity["format"] == FORMAT == 4
    del identity["format"]
    (out / "identity.json").write_text(json.dumps(identity))
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    for resume in (True, False):
        with pytest.raises(
            fedtailor.UserError, match="holds a run of format 1"
        ) as error:
            fedtailor.run("fedavg", **SMALL, out=out, resume=resume)
        assert "reads format 4 only" in str(error.value) and "\n" not in str(
            error.value
        )
    with pytest.raises(fedtailor.UserError, match="holds a run of format 1"):
        fedtailor.load(out).client(0)
    # its format is as it was
    assert fedtailor.load(out).result["hash"] == result["hash"]
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    (out / "identity.json").unlink()
    with pytest.raises(fedtailor.UserError, match="holds a run of format 1"):
        fedtailor.run("fedavg", **SMALL, out=out, resume=True)


def test_a_journal_is_truncated_and_goes_on(tmp_path: Path) -> None:
    folder = begin(tmp_path)
    assert folder.truncate_journal(0) == []
    for t in range(1, 5):
        folder.append_to_journal({"t": t})
    path = tmp_path / "rounds.jsonl"
    with path.open("a") as file:
        file.write('{"t": 5, "clie')  # killed while writing
    assert [record["t"] for record in read_journal(path)] == [1, 2, 3, 4]
    assert folder.truncate_journal(2) == [{"t": 1}, {"t": 2}]
    folder.append_to_journal({"t": 3})
    assert path.read_text() == '{"t": 1}\n{"t": 2}\n{"t": 3}\n'


def test_kept_models_are_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = begin(tmp_path)
    assert folder.kept_models() is None
    folder.keep_models(1, "best", [(k, {"w": torch.zeros(2)}) for k in range(3)])
    folder.keep_models(4, "last", [(0, {"w": torch.ones(2)})])
    assert folder.kept_models() == {"round": 4, "which": "last"}
    names = sorted(path.name for path in (tmp_path / "models").iterdir())
    assert names == ["0.safetensors", "about.json"]


def test_a_folder_without_a_path_is_temporary() -> None:
    folder = RunFolder(None)
    folder.begin(make_experiment({"seed": 3}), "mine", None)
    assert not folder.kept and folder.read_config()["seed"] == 3
    folder.close()
    assert not folder.path.exists()


def test_private_state_goes_when_the_run_is_over(tmp_path: Path) -> None:
    folder = begin(tmp_path)
    state = folder.clear_state()
    state.mkdir(parents=True)
    (state / "0").write_text("")
    assert not folder.clear_state().exists()
    state.mkdir(parents=True)
    folder.close()
    assert not (tmp_path / "state").exists() and (tmp_path / "config.toml").exists()
    assert folder.read_result() is None
