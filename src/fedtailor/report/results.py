"""What ``fedtailor.run`` and ``fedtailor.compare`` give: dictionaries that show themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from fedtailor.experiment.shown import html_table
from fedtailor.report import leaderboard
from fedtailor.report.comparison import print_comparison

Record = dict[str, Any]  # a line of the journal


class RunResult(dict[str, Any]):
    """What ``result.json`` holds, with the records of all rounds in ``history``.

    ``repr`` and notebooks show a summary; it is a dictionary in every other respect.
    """

    def __init__(
        self,
        result: dict[str, Any],
        history: Sequence[Record] = (),
        folder: Path | None = None,
    ) -> None:
        super().__init__(result)
        self.history = list(history)  # one record a round, as in rounds.jsonl
        self.folder = folder  # None where nothing was kept

    def rows(self) -> list[tuple[str, str]]:
        """The summary, as names and texts."""
        return leaderboard.summarise(self, self.folder)

    @property
    def title(self) -> str:
        """Which run it is."""
        return f"{self['name']} on {self['data']}, seed {self['seed']}"

    def __repr__(self) -> str:
        lines = [f"{self.title}, {self['rounds']} rounds"]
        lines += [f"  {name:12}{text}" for name, text in self.rows()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table(self.rows(), caption=self.title)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield f"[bold]{self.title}[/bold], {self['rounds']} rounds"
        yield leaderboard.make_summary(self.rows())


class ComparisonResult(dict[str, list[Any]]):
    """By the label of every variant, its results (``RunResult``), one a seed."""

    def __init__(
        self, results: dict[str, list[RunResult]], folder: Path | None = None
    ) -> None:
        super().__init__(results)
        self.folder = folder  # None where nothing was kept

    def leaderboard(self) -> list[leaderboard.Row]:
        """A row for every variant, the most accurate first."""
        return leaderboard.make_rows(dict(self))

    def __repr__(self) -> str:
        console = Console(width=80, record=True, quiet=True)
        with console.capture() as captured:
            console.quiet = False
            leaderboard.print_leaderboard(console, self.leaderboard())
        return captured.get().strip("\n")

    def _repr_html_(self) -> str:
        rows = self.leaderboard()
        cells = [leaderboard.list_cells(row) for row in rows]
        columns = leaderboard.name_columns(rows)
        notes = leaderboard.explain(rows)
        return html_table(cells, columns, leaderboard.TITLE, notes)

    def show(self) -> None:
        """All tables of the comparison, on the screen."""
        print_comparison(Console(), dict(self))
