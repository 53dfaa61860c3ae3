"""The command ``fedtailor audit``: what a client's uploads and models give away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.audit.audit_client import ATTACKS, Audit, Plan, audit_client
from fedtailor.audit.gradient import Search
from fedtailor.audit.papers import TABLES, repeat_table
from fedtailor.audit.report import write_report
from fedtailor.core.errors import UserError, unknown
from fedtailor.experiment.config import make_experiment, read_config
from fedtailor.experiment.prepare import Setup, prepare
from fedtailor.experiment.run_folder import CONFIG
from fedtailor.report.recovered_images import draw_recovered

ALL = ",".join(ATTACKS)
Source = Annotated[
    Path | None,
    typer.Argument(help="folder of a run, or a TOML file", metavar="[RUN|CONFIG]"),
]
Victim = Annotated[int, typer.Option(help="whose uploads")]
Attacks = Annotated[str, typer.Option(help=f"by commas, of {', '.join(ATTACKS)}")]
Iterations = Annotated[int, typer.Option(min=1, help="steps of a search for images")]
Restarts = Annotated[int, typer.Option(min=1, help="starts of a search")]
Shadows = Annotated[int, typer.Option(min=0, help="shadow runs of LiRA; 0: none")]
Round = Annotated[
    int | None,
    typer.Option("--round", min=1, help="attack this round (2; models: 10)"),
]
Paper = Annotated[
    str | None,
    typer.Option(help=f"repeat a paper's table instead: {', '.join(TABLES)}"),
]
Out = Annotated[Path | None, typer.Option(help="folder of the report")]
DataDir = Annotated[
    Path | None, typer.Option(help="the folder of data sets (else $FEDTAILOR_DATA)")
]


def audit(
    source: Source = None,
    client: Victim = 0,
    attack: Attacks = ALL,
    iterations: Iterations = 400,
    restarts: Restarts = 6,
    shadows: Shadows = 8,
    at: Round = None,
    paper: Paper = None,
    seed: Annotated[int, typer.Option(min=0, help="of the attacker")] = 0,
    data_dir: DataDir = None,
    out: Out = None,
) -> None:
    """Attack what a client of a run really sent, and report what was found."""
    search = Search(iterations, restarts, seed=seed)
    if paper is not None:
        if paper not in TABLES:
            raise unknown("paper's table", paper, TABLES)
        folder = out or Path("runs") / f"audit-{paper.replace('/', '-')}"
        files = repeat_table(paper, client, search, folder, data_dir, typer.echo)
        typer.echo(f"written: {', '.join(map(str, files))}")
        return
    if source is None:
        raise UserError("name the folder of a run or a TOML file, or give --paper")
    plan = Plan(tuple(attack.split(",")), search, shadows, at)
    setup = read_setup(source, data_dir)
    found = audit_client(setup, client, plan, typer.echo)
    folder = out or Path("runs") / f"audit-{Path(found.method).stem}-c{client}"
    files = write_report(folder, found)
    files += draw_leaks(folder, found)
    typer.echo(f"written: {', '.join(map(str, files))}")


def read_setup(source: Path, data_dir: Path | None) -> Setup:
    """The experiment in a run's folder or in a file."""
    path = source / CONFIG if source.is_dir() else source
    if not path.exists():
        raise UserError(f"{source} is neither the folder of a run nor a TOML file")
    options = read_config(path)
    options.pop("deploy", None)
    if data_dir is not None:
        options["data_dir"] = data_dir
    return prepare(make_experiment(options, str(path)))


def draw_leaks(folder: Path, found: Audit) -> list[Path]:
    """Pictures of what the gradient attacks recovered."""
    files = []
    for i, leak in enumerate(found.leaks):
        rows = []
        for outcome in leak.outcomes:
            caption = f"{outcome.attack}, {outcome.view}\n{outcome.psnr:.1f} dB"
            rows.append((caption, outcome.pictures))
        stem = folder / f"recovered_{i + 1}"
        files += draw_recovered(stem, leak.originals, rows, leak.limits)
    return files
