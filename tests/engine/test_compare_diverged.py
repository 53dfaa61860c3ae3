"""One run that diverges is a row: the comparison goes on, and does not fall over it again."""

import json

import fedtailor
from fedtailor.engine.compare import compare
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.report.figures import Figures
from fedtailor.report.leaderboard import make_rows, write_leaderboard

OPTIONS = {
    "data": "digits",
    "clients": 4,
    "limit": 160,
    "rounds": 3,
    "partition": "iid",
    "max_silent_rounds": 2,
    "set": {"ditto.lam": 1e9},
}


def test_a_run_that_diverges_is_a_row(tmp_path):
    begun = []

    def watch(folder: RunFolder):
        begun.append(folder.path.name)
        return [Figures(folder)]

    said = []
    for _ in range(2):
        diverged = {}
        results = compare(
            ["ditto", "local"], OPTIONS, 1, tmp_path, watch, diverged=diverged
        )
        said.append(diverged)
        assert list(results) == ["local"]
    assert begun == ["ditto-s0", "local-s0"]  # the second time nothing is run
    assert said[0] == said[1]
    assert said[0]["ditto"][0].startswith("diverged at round 2, loss ")
    assert said[0]["ditto"][0].endswith("(seed 0)")
    assert (tmp_path / "ditto-s0" / "curves.png").exists()
    write_leaderboard(tmp_path, make_rows(results), said[0])
    lines = (tmp_path / "leaderboard.md").read_text().splitlines()
    assert lines[2].startswith("| local |")
    assert lines[3].startswith("| ditto | diverged at round 2, loss ")


def test_journals_hold_no_nan(tmp_path):
    """JSON has none: null stands for it."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.append_to_journal({"t": 1, "x": float("nan"), "y": [float("inf"), 2.0]})
    text = (folder.path / "rounds.jsonl").read_text()
    assert json.loads(text) == {"t": 1, "x": None, "y": [None, 2.0]}
    folder.write_result({"loss": float("nan")})
    assert folder.read_result() == {"loss": None}


def test_a_part_that_the_network_has_not_is_refused(tmp_path):
    path = tmp_path / "heda.py"
    path.write_text(
        '''"""A typo."""
from dataclasses import dataclass
from fedtailor.methods.fedavg import FedAvg, Up

@dataclass(frozen=True)
class Heda(FedAvg):
    """Trains a part by a wrong name."""

    def local(self, c, down, keep):
        return Up(c.train(c.loss, down.w, only="heda")), keep
'''
    )
    options = {key: value for key, value in OPTIONS.items() if key != "set"}
    try:
        fedtailor.run(str(path), **options)
    except fedtailor.core.errors.ClientError as error:
        assert "no part of the network named 'heda'; did you mean head" in error.line
        assert "heda.py, line 10" in error.line
    else:
        raise AssertionError("a typo was not noticed")
