"""``fedtailor predict`` and ``export`` as commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedtailor
from fedtailor.cli.main import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedtailor", *words])
        with pytest.raises(SystemExit) as end:
            main()
        seen = capsys.readouterr()
        return int(end.value.code or 0), seen.out, seen.err

    return call


def make_run(folder: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["age,dose,label,client"]
    for i in range(80):
        age = rng.normal()
        owner = ["north", "south"][i % 2]
        lines.append(f"{age:.3f},{rng.normal():.3f},{int(age > 0)},{owner}")
    (folder / "data.csv").write_text("\n".join(lines))
    options = {"rounds": 20, "lr": 0.3, "executor": "sequential"}
    fedtailor.run("local", str(folder / "data.csv"), **options, out=folder / "run")


def test_predictions_as_csv_json_and_numbers(command: Command, tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "new.csv").write_text("dose,age\n0,2\n0,-2\n")
    asked = ["predict", "run", "--client", "north", "--input", "new.csv"]
    code, out, err = command(*asked)
    lines = out.splitlines()
    assert code == 0 and not err
    assert lines[0] == "input,prediction,p(0),p(1)"
    assert lines[1].startswith("line 2,1,") and lines[2].startswith("line 3,0,")
    code, out, _ = command(*asked, "--format", "json")
    entries = json.loads(out)
    assert [entry["prediction"] for entry in entries] == ["1", "0"]
    assert sum(entries[0]["probabilities"].values()) == pytest.approx(1)
    code, out, err = command(*asked, "--out", "p.json")
    assert (code, out) == (0, "") and "2 predictions are in p.json" in err
    assert json.loads((tmp_path / "p.json").read_text()) == entries
    assert command(*asked, "--out", "p.npy")[0] == 0
    assert np.load(tmp_path / "p.npy").tolist() == [1, 0]

    for wrong, complaint in (
        (["--format", "jsn"], "did you mean json?"),
        (["--format", "npy"], "give --out"),
        (["--out", "nowhere/p.csv"], "there is no folder nowhere"),
        (["--out", "p.xlsx"], "no format of predictions 'xlsx'"),
    ):
        code, out, err = command(*asked, *wrong)
        assert code == 2 and complaint in err and err.count("\n") == 1

    # without a client; a misspelt one
    asked = ["predict", "run", "--input", "new.csv"]
    assert "say which, one of north, south" in command(*asked)[2]
    assert "did you mean north?" in command(*asked, "--client", "nort")[2]
    assert "holds no run" in command("predict", ".", "--input", "new.csv")[2]


def test_a_model_is_exported_and_asked_again(command: Command, tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "new.csv").write_text("dose,age\n0,2\n0,-2\n")
    words = ["export", "run", "--client", "south", "--to", "south"]
    code, out, err = command(*words)
    assert code == 0 and "client south's model" in out, err
    _, expected, _ = command(
        "predict", "run", "--client", "south", "--input", "new.csv"
    )
    code, out, _ = command("predict", "south", "--input", "new.csv")
    assert code == 0 and out == expected
    code, _, err = command(*words)
    assert code == 2 and "south is there already" in err and err.count("\n") == 1
    assert command(*words, "--overwrite")[0] == 0
    code, _, err = command("export", "run", "--client", "south", "--to", "m.onxn")
    assert code == 2 and "did you mean .onnx?" in err
    code, _, err = command("export", "south", "--to", "other")
    assert code == 2 and "holds no run" in err
    code, _, err = command("export", "run", "--client", "shared", "--to", "m.pt2")
    assert code == 2 and "local has no global model" in err
