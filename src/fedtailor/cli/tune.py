"""The command ``fedtailor tune``: a search for hyper-parameters on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedtailor.cli.experiment_options import experiment_options
from fedtailor.engine.stopping import Stopped
from fedtailor.engine.tune import FIRST_SEED, WINNERS
from fedtailor.engine.tune import tune as search
from fedtailor.experiment.config import make_experiment, read_config
from fedtailor.experiment.variants import make_variants
from fedtailor.report.progress import make_total
from fedtailor.report.search_table import print_search

Methods = Annotated[
    list[str],
    typer.Argument(
        help="methods' names, files that hold one, or either with options of its own:"
        " 'fedcp[depth=2]', in quotes",
        metavar="METHOD...",
    ),
]
Over = Annotated[
    list[str] | None,
    typer.Option(
        help="what to vary: 'lr=0.01:1:log,lam=0.1|1|10' (range, log range, choices;"
        " fedcp.lam=... is of one method; may be given again)",
        metavar="SPACE",
    ),
]
Seeds = Annotated[
    int, typer.Option(min=1, help=f"runs of a trial, from seed {FIRST_SEED} on")
]
Config = Annotated[
    Path | None, typer.Option(help="a TOML file with options; flags win over it")
]


@experiment_options(without={"method", "name", "save", "views"})
def tune(
    methods: Methods,
    options: dict[str, Any],
    over: Over = None,
    trials: Annotated[int, typer.Option(min=1, help="of every method")] = 20,
    seeds: Seeds = 1,
    config: Config = None,
    out: Annotated[Path, typer.Option(help="folder of the search")] = Path("runs/tune"),
    quiet: Annotated[bool, typer.Option("--quiet", help="print warnings only")] = False,
) -> None:
    """Search hyper-parameters on validation data; the same command goes on where it stopped."""
    space: Any = over or []
    if config is not None:
        listed = read_config(config)
        space = over or listed.pop("over", [])
        listed.pop("methods", None)
        make_experiment(listed, str(config))
        constants = {**listed.get("set", {}), **options.get("set", {})}
        options = {**listed, **options, "set": constants}
    try:
        winners, found = search(
            make_variants(methods),
            options,
            space,
            trials=trials,
            seeds=seeds,
            out=out,
            progress=make_total(quiet, "trials"),
        )
    except Stopped as stopped:
        text = str(stopped).replace("go on with --resume", "the same command goes on")
        raise Stopped(text) from None
    print_search(Console(), winners, found)
    typer.echo(
        f"next: fedtailor compare --tuned {out / WINNERS}, with the same options"
    )
