"""What a search for hyper-parameters found, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from fedtailor.engine.tune import COMPLETE, FAILED, PRUNED, Trial, describe_values
from fedtailor.experiment.variants import name_of
from fedtailor.experiment.winners import Winners
from fedtailor.report.screen_table import fold_label, make_table

NOTES = (
    "on validation data, the mean over seeds of the best round: no test data were used",
    "given up: by successive halving, after some rounds of the first seed",
)


def print_search(console: Console, found: Winners, trials: Sequence[Trial]) -> None:
    """A row for every method: its best trial, and how the trials ended."""
    columns = ["best", "values", "trial", "ended", "given up", "failed"]
    table = make_table("Best values", columns, NOTES)
    table.columns[2].justify = "left"
    for winner in found.winners:
        mine = [trial for trial in trials if name_of_winner(winner.of) == trial.method]
        ends = Counter(trial.state for trial in mine)
        table.add_row(
            fold_label(name_of_winner(winner.of)),
            f"{winner.score:.4f}",
            describe_values(winner.values),
            str(winner.trial),
            str(ends[COMPLETE]),
            str(ends[PRUNED]),
            str(ends[FAILED]),
        )
    console.print(table)


def name_of_winner(written: str) -> str:
    """The label of a variant, from how it was written."""
    method, bracket, rest = written.partition("[")
    return name_of(method) + bracket + rest
