"""``fedtailor report``: the story of runs as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.report.html_report import REPORT, write_report


def report_command(
    runs: Annotated[
        list[Path], typer.Argument(help="folders of finished runs and of comparisons")
    ],
    out: Annotated[Path, typer.Option(help="the file to write")] = Path(REPORT),
    title: Annotated[
        str, typer.Option(help="a heading (which methods on which data)")
    ] = "",
) -> None:
    """Write a page on runs and comparisons that opens without a network."""
    path = write_report(runs, out, title)
    size = path.stat().st_size / 1e6
    typer.echo(f"{path} ({size:.1f} MB): open it in a browser, or mail it")
