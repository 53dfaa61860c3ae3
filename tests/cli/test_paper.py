"""``fedtailor paper``: the list, published numbers, and every table's first cell end to end."""

from __future__ import annotations

import csv

import pytest
from typer.testing import CliRunner

from fedtailor.cli.main import app
from fedtailor.experiment.paper_table import list_tables

IMAGES = {"fedcp/t9": "cifar100", "gpfl/t5": "cifar100", "cd2/f4": None}


def invoke(*words):
    return CliRunner().invoke(app, ["paper", *words])


def test_all_are_listed():
    told = invoke().output
    assert all(name in told for name in list_tables())


def test_published_numbers_are_shown():
    told = invoke("gpfl/t6", "--show").output
    assert "39.48" in told
    assert "without GCE" in told


def test_ours_stand_beside_theirs(tmp_path):
    done = invoke(
        "cd2/t1",
        "--scale",
        "smoke",
        "--methods",
        "local,fedper",
        "--columns",
        "Local test,New test",
        "--seeds",
        "2",
        "--quiet",
        "--out",
        str(tmp_path),
    )
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert [row["theirs"] for row in rows] == ["87.92", "10.03", "83.29", "57.77"]
    assert all(row["seeds"] == "2" for row in rows)
    text = (tmp_path / "table.md").read_text()
    assert "(87.92 ± 2.14)" in text
    assert "says nothing of the table" in " ".join(text.split())
    assert "\\pm" in (tmp_path / "table.tex").read_text()
    assert (tmp_path / "figure.png").stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.parametrize("name", list_tables())
def test_the_first_cell_of_every_table_runs(name, tmp_path, real_data):
    data = []
    if name in IMAGES:
        if IMAGES[name] is None:
            pytest.skip("no pictures of HISTO-FED can be had here")
        data = ["--data-dir", str(real_data(IMAGES[name]))]
    done = invoke(name, "--scale", "smoke", "--quiet", "--out", str(tmp_path), *data)
    assert done.exit_code == 0, done.output
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert any(path.suffix in (".md", ".png") for path in files)
