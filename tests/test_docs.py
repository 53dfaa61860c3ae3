"""What the documentation shows works as shown."""

import re
import shlex
import sys
from pathlib import Path

import pytest

import fedtailor
from fedtailor.cli.main import main
from fedtailor.experiment.run_folder import JOURNAL, read_journal
from fedtailor.methods import find
from fedtailor.testing.conformance import check_method
from fedtailor.testing.small_world import digits

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_readmes_method_passes_the_conformance_suite(tmp_path):
    source = next(b for b in BLOCKS if "class Blend" in b)
    (tmp_path / "blend.py").write_text(source)
    told = []
    assert check_method(find(str(tmp_path / "blend.py")), told.append), "\n".join(told)


def test_the_readmes_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(
        compile(next(b for b in BLOCKS if "fedtailor.load" in b), "README.md", "exec"),
        {},
    )


def test_the_readmes_commands_are_commands(tmp_path, monkeypatch, capsys):
    """Every command line of the README is understood; those on data that must be fetched
    complain about just that.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    (tmp_path / "blend.py").write_text(next(b for b in BLOCKS if "class Blend" in b))
    shown = re.findall(r"^    (fedtailor .*)$", README, re.MULTILINE)
    lines = [x for line in shown for x in line.split("#")[0].split(";")]
    assert len(lines) > 10
    for line in lines:
        words = shlex.split(line)[1:]
        if words[0] in ("predict", "export", "serve", "check", "methods"):
            continue  # they need inputs, extras or a stop; all have tests of their own
        if words[0] in ("run", "compare"):
            words = [*words, "--limit", "300", "--evaluate-every", "50"]
            words = [*words, "--rounds", "2"] if "--rounds" not in words else words
            words = [
                w if w != "50" and w != "80" else {"50": "2", "80": "3"}[w]
                for w in words
            ]
        if "--seeds" in words:
            words[words.index("--seeds") + 1] = "1"
        monkeypatch.setattr(sys, "argv", ["fedtailor", *words])
        with pytest.raises(SystemExit) as end:
            main()
        seen = capsys.readouterr()
        assert (
            end.value.code in (0, None)
            or "no files of har:ordered are there" in seen.err
        ), (
            line,
            seen.err,
        )


def test_architecture_names_files_that_exist():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./*]+(?:\.py|/))`", text))
    assert len(named) > 40
    package = ROOT / "src/fedtailor"
    missing = [
        name
        for name in named
        if not any(package.glob(name)) and not (ROOT / name).exists()
    ]
    assert not missing, missing


def test_every_measure_that_the_documentation_names_is_measured(tmp_path):
    text = (ROOT / "docs/measures.md").read_text(encoding="utf-8")
    out = tmp_path / "run"
    result = fedtailor.run(
        "fedavg", digits(), rounds=1, lr=0.1, views="after,global,new", out=out
    )
    (record,) = read_journal(out / JOURNAL)
    for measure in record["evaluation"]["test"].keys() - {"n"}:
        assert f"`{measure}`" in text, measure
    for measure in record["evaluation"]["fairness"]:
        assert f"`{measure}`" in text, measure
    for view in record["views"]:
        assert f"`views.{view}`" in text, view
    for name in re.findall(r"`seconds\.(\w+)`", text):
        assert name in result["seconds"], name
    for name in ("accuracy", "fairness_at", "pace", "trainings"):
        assert f"`{name}`" in text and name in result, name
