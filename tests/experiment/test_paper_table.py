"""The papers' tables: every file can be read, every cell is there, every run can be planned."""

from __future__ import annotations

import pytest

from fedtailor import methods
from fedtailor.core.errors import UserError
from fedtailor.experiment.paper_table import (
    LOST,
    SCALES,
    find_table,
    list_tables,
    plan_runs,
    read_cell,
    read_measure,
)

# Printed numbers of every table, counted in the specification of the papers' experiments.
# An empty cell, one that is lost and one that says "diverged" are no numbers.
NUMBERS = {
    "fedcp/t1": 9,
    "fedcp/t2": 12 * 9,
    "fedcp/t3": 12 * 3,
    "fedcp/t4": 12 * 9 - 2 - 1,  # Per-FedAvg beyond 100 clients; FedAMP diverged
    "fedcp/t5": 12 * 3,
    "fedcp/t6": 12 * 4,
    "fedcp/t7": 10 * 3,
    "fedcp/t8": 5 + 1 + 1,
    "fedcp/t9": 3,
    "fedcp/t10": 8 + 5,
    "cd2/t1": 5 * 2,
    "cd2/t2": 5 * 2,
    "cd2/t3": 4 * 2,
    "cd2/t4": 5 * 4,
    "cd2/t5": 8 * 2,
    # two numbers a data set are missing for Local and the three clustered methods
    "fed3p2p/t1": 14 * 9 - 4 * 6 - 3,  # and one of Per-FedAvg
    "fed3p2p/t2": 4 * 6 - 3,
    "fed3p2p/t3": 11 * 9 - 6 - 3,
    "gpfl/t1": 11 * 8,
    "gpfl/t2": 11 * 7 - 1,
    "gpfl/t3": 11 * 8,
    "gpfl/t4": 9 * 3,
    "gpfl/t5": 9,
    "gpfl/t6": 6,
    "pfedc/t1": 7 * 4,
    "pfedc/t2": 7 * 12,
    "pfedc/t3": 7 * 4 - 1,
    "pfedc/t4": 4 * 3,
    "pfedc/t5": 5 * 4,
    "pfedc/t6": 1 + 4 + 3 + 3 + 4,
}


def test_every_table_of_the_papers_is_there():
    assert set(NUMBERS) <= set(list_tables())
    figures = {name for name in list_tables() if "/t" not in name}
    assert len(figures) == 49 - len(NUMBERS)


@pytest.mark.parametrize("name", NUMBERS)
def test_every_published_number_is_there(name):
    table = find_table(name)
    cells = [cell for row in table.rows for cell in row.cells]
    assert sum(read_cell(cell) is not None for cell in cells) == NUMBERS[name]
    others = {cell for cell in cells if read_cell(cell) is None}
    assert others <= {"", LOST, "diverged"}


@pytest.mark.parametrize("name", list_tables())
def test_every_run_can_be_planned(name):
    table = find_table(name)
    for row in table.rows:
        assert len(row.cells) in (0, len(table.columns))
        methods.make(methods.find(row.method), row.set)
    for scale in SCALES:
        runs = plan_runs(table, scale)
        places = {cell for run in runs for cell in run.cells}
        assert len(places) == len(table.rows) * len(table.columns)
    assert table.cpu["words"]


def test_known_cells():
    table = find_table("fedcp/t2")
    names = [row.name for row in table.rows]
    columns = [column.name for column in table.columns]
    row = names.index("FedCP")
    assert table.published(row, columns.index("CIFAR-100")) == (59.56, 0.08)
    assert table.rows[row].cells[columns.index("AG News")] == "96.78 ± 0.09"


def test_columns_that_differ_in_the_measure_share_their_runs():
    table = find_table("fed3p2p/t1")
    runs = plan_runs(table, "full", methods=["fedavg"], seeds=1)
    assert len(runs) == 3
    assert len(runs[0].cells) == 3


def test_row_options_win_over_those_of_the_scale():
    table = find_table("pfedc/t1")
    rounds = {run.config.method: run.config.rounds for run in plan_runs(table, "cpu")}
    assert rounds["pfedc"] == 40
    assert rounds["fedavg"] == 60


def test_a_typo_is_one_line():
    with pytest.raises(UserError, match="did you mean fedcp/t2"):
        find_table("fedcp/t22")
    table = find_table("fedcp/t2")
    with pytest.raises(UserError, match="no method of"):
        plan_runs(table, "cpu", methods=["gpffl"])
    with pytest.raises(UserError, match="AG News"):
        plan_runs(table, "cpu", columns=["AG Newss"])


def test_measures_are_read_by_their_place():
    result = {
        "views": {"new": {"accuracy": 0.5}},
        "clients": [{"accuracy": 0.1}, {"accuracy": 0.2}],
        "seconds": {"to_converge": 120.0, "training_per_round": None},
        "notes": {"test/acc_task_all": {"0": 0.9, "1": 0.7}},
    }
    assert read_measure(result, "views.new.accuracy") == 0.5
    assert read_measure(result, "clients.1.accuracy") == 0.2
    assert read_measure(result, "minutes_to_converge") == 2
    assert read_measure(result, "minutes_per_round") is None
    assert read_measure(result, "task_accuracy") == pytest.approx(0.8)
    assert read_measure(result, "views.after.accuracy") is None
