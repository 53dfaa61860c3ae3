"""Ours beside theirs: differences, intervals, verdicts, the order of methods; runs of a table."""

from __future__ import annotations

import dataclasses

import pytest
from scipy import stats

from fedtailor.engine.paper import Cell, Outcome, Repeated, make_cell, repeat_table
from fedtailor.experiment.paper_table import Published, find_table, plan_runs


def cell(values, published):
    return Cell(tuple(values), published, (), published_seeds=5)


def test_the_interval_is_welchs():
    ours = [71.0, 72.0, 74.0]
    theirs = Published(70.0, 0.5)
    low, high = cell(ours, theirs).interval()
    spread = stats.tstd(ours)
    test = stats.ttest_ind_from_stats(
        sum(ours) / 3, spread, 3, 70.0, 0.5, 5, equal_var=False
    )
    # the interval touches zero exactly where Welch's p is 5 %
    assert (low > 0) == (test.pvalue < 0.05)
    middle = (low + high) / 2
    assert middle == pytest.approx(sum(ours) / 3 - 70)
    shifted = cell([x - low for x in ours], theirs)
    p = stats.ttest_ind_from_stats(
        shifted.mean, spread, 3, 70.0, 0.5, 5, equal_var=False
    ).pvalue
    assert p == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("values", "published", "verdict"),
    [
        ([70.0, 70.1, 69.9], Published(70.0, 0.5), "equal"),
        ([80.0, 80.1, 79.9], Published(70.0, 0.5), "higher"),
        ([60.0, 60.1, 59.9], Published(70.0, 0.5), "lower"),
        ([60.0], Published(70.0, 0.5), "no interval"),
        ([60.0, 61.0], Published(70.0, None), "no interval"),
        ([60.0, 61.0], None, "not printed"),
        ([], Published(70.0, 0.5), "not run"),
    ],
)
def test_verdicts(values, published, verdict):
    assert cell(values, published).verdict == verdict


def test_the_order_of_methods():
    table = find_table("fedcp/t2")
    theirs = [table.published(i, 0) for i in range(4)]
    same = {
        (i, 0): cell([published.mean / 2], published)
        for i, published in enumerate(theirs)
    }
    turned = {
        (i, 0): cell([-published.mean], published) for i, published in enumerate(theirs)
    }
    assert Repeated(table, "cpu", same, {}).agreement(0).tau == pytest.approx(1)
    assert Repeated(table, "cpu", turned, {}).agreement(0).tau == pytest.approx(-1)
    assert Repeated(table, "cpu", {(0, 0): same[0, 0]}, {}).agreement(0).tau is None


def test_rows_with_another_measure_have_no_place_in_the_order():
    table = find_table("pfedc/t1")
    cells = {
        (i, 0): cell([float(i)], table.published(i, 0)) for i in range(len(table.rows))
    }
    assert Repeated(table, "cpu", cells, {}).agreement(0).methods == len(table.rows) - 1


def test_a_result_without_the_measure_says_so():
    table = find_table("cd2/t1")
    outcome = Outcome("folder", 0, {"accuracy": {"best_on_test": 0.5}})
    assert make_cell(table, (0, 0), [outcome]).values == (50.0,)
    missing = make_cell(table, (0, 1), [outcome])
    assert missing.verdict == "failed"
    assert missing.errors == ("the run has no views.new.accuracy",)


def test_a_table_is_run_once_and_goes_on_where_it_stopped(tmp_path):
    table = find_table("gpfl/t6")
    runs = plan_runs(table, "smoke", methods=["GPFL", "without CoV and GCE"])
    assert [len(run.cells) for run in runs] == [1, 1]
    first = repeat_table(table, "smoke", runs[:1], tmp_path)
    journal = tmp_path / "runs" / runs[0].folder / "rounds.jsonl"
    written = journal.stat().st_mtime_ns
    both = repeat_table(table, "smoke", runs, tmp_path)
    assert journal.stat().st_mtime_ns == written
    assert both.cells[0, 0].values == first.cells[0, 0].values
    assert len(both.cells) == 2


def test_a_run_that_cannot_be_made_is_a_cell_that_says_why(tmp_path):
    table = find_table("pfedc/t1")
    rows = [dataclasses.replace(table.rows[0], method="mocha"), table.rows[1]]
    table = dataclasses.replace(table, rows=rows, columns=table.columns[:1])
    found = repeat_table(table, "smoke", plan_runs(table, "smoke"), tmp_path)
    assert found.cells[0, 0].verdict == "failed"
    assert "linear" in found.cells[0, 0].errors[0]
    assert found.cells[1, 0].values
