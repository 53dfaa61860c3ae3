"""The command ``fedtailor``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import click
import torch
import typer
from rich.console import Console

from fedtailor import data as data_sets
from fedtailor import methods as registry
from fedtailor._version import __version__
from fedtailor.cli import pictures
from fedtailor.cli.audit import audit as audit_command
from fedtailor.cli.experiment_options import experiment_options, flag_of
from fedtailor.cli.federate import federate as federate_command
from fedtailor.cli.grouped_help import GroupedCommand
from fedtailor.cli.keys import keys as keys_command
from fedtailor.cli.keys import register as register_command
from fedtailor.cli.node import node as node_command
from fedtailor.cli.paper import paper as paper_command
from fedtailor.cli.production import export as export_command
from fedtailor.cli.production import predict as predict_command
from fedtailor.cli.production import serve as serve_command
from fedtailor.cli.report import report_command
from fedtailor.cli.tune import tune as tune_command
from fedtailor.core.errors import DISK_FULL, ClientError, UserError
from fedtailor.data.partition.saved import save_partition
from fedtailor.deploy.site.data import export_clients
from fedtailor.engine import compare as comparison
from fedtailor.engine.start import run_experiment
from fedtailor.engine.stopping import Stopped
from fedtailor.experiment.config import (
    RENAMED,
    Experiment,
    make_experiment,
    options_in,
    read_config,
)
from fedtailor.experiment.prepare import prepare, prepare_federation
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.experiment.variants import Variant, check_labels, make_variants
from fedtailor.experiment.winners import add_tuned, read_winners, warn_of_seeds
from fedtailor.report import catalogue, leaderboard
from fedtailor.report.comparison import print_comparison, write_comparison
from fedtailor.report.console import make_console, show_downloads
from fedtailor.report.figures import Figures
from fedtailor.report.partition_chart import draw_partition
from fedtailor.report.progress import make_total
from fedtailor.report.skew_examples import draw_skew_examples
from fedtailor.testing.conformance import check_method

ABOUT = (
    "Personalised federated learning: one federation, a model tailored to every client."
)
PLAIN: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}
app = typer.Typer(help=ABOUT, no_args_is_help=True, **PLAIN)
datasets = typer.Typer(
    help="What data sets there are, and getting them.",
    invoke_without_command=True,
    **PLAIN,
)
app.add_typer(datasets, name="datasets")
app.command("report", cls=GroupedCommand)(report_command)
app.command("audit", cls=GroupedCommand)(audit_command)
app.command("paper", cls=GroupedCommand)(paper_command)
app.command("keys", cls=GroupedCommand)(keys_command)
app.command("node", cls=GroupedCommand)(node_command)
app.command("federate", cls=GroupedCommand)(federate_command)
app.command("predict", cls=GroupedCommand)(predict_command)
app.command("export", cls=GroupedCommand)(export_command)
app.command("serve", cls=GroupedCommand)(serve_command)
app.command("register", cls=GroupedCommand)(register_command)
app.command("tune", cls=GroupedCommand)(tune_command)
app.command("features", cls=GroupedCommand)(pictures.features)
app.command("tsne", cls=GroupedCommand)(pictures.tsne)
app.command("gradcam", cls=GroupedCommand)(pictures.gradcam)

DEMO_METHODS = [
    "local",
    "fedavg",
    "fedper",
    "fedrep",
    "ditto",
    "fedcp",
    "cd2pfed",
    "fed3p2p",
    "gpfl",
    "pfedc",
]
# Rounds, batch and learning rate were picked from seven settings by the accuracies of seed 0, one
# of the three seeds shown, so as to learn something in three minutes: the leaderboard shows what
# the tool does, not which method wins.
DEMO_OPTIONS: dict[str, Any] = {
    "data": "digits",
    "partition": "dirichlet:0.1",
    "clients": 20,
    "rounds": 14,
    "lr": 0.2,
    "evaluate_every": 2,
    "executor": "processes",
}

FILE_HELP = "a TOML file with options; flags win over it"
ConfigFile = Annotated[Path | None, typer.Argument(help=FILE_HELP, metavar="[FILE]")]
ConfigOption = Annotated[Path | None, typer.Option(help=FILE_HELP)]
Out = Annotated[
    Path | None, typer.Option(help="folder of the run [runs/METHOD-DATA-sSEED]")
]
Resume = Annotated[bool, typer.Option("--resume", help="go on with the run in --out")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="delete the run in --out first")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="print warnings only")]
DataDir = Annotated[
    Path | None, typer.Option(help="the folder of data sets (else $FEDTAILOR_DATA)")
]
MethodName = Annotated[
    str, typer.Argument(help="a method's name, or a file that holds one")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedtailor {__version__}, torch {torch.__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="print the version"
    ),
]


@app.callback(help=ABOUT)
def all_commands(version: Version = False) -> None:
    """What may stand before a command."""


# ---------------------------------------------------------------- runs


@app.command(cls=GroupedCommand)
@experiment_options()
def run(
    options: dict[str, Any],
    file: ConfigFile = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Run one method."""
    chosen = make_experiment(_add_file_options(file, options))
    folder = RunFolder(out or _unused_folder(chosen))
    observers = [make_console(quiet), Figures(folder)]
    setup = prepare(chosen)
    if overwrite:
        folder.empty(resume)
    result = run_experiment(setup, folder, observers, resume=resume)
    folder.close()
    if not quiet:
        leaderboard.print_summary(Console(), result, folder.path)


@app.command(cls=GroupedCommand)
@experiment_options(without={"method", "name"})
def compare(
    options: dict[str, Any],
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            help="methods' names, files that hold one, or either with options of its own:"
            " 'fedcp[lam=1,epochs=2]', in quotes",
            metavar="METHOD...",
        ),
    ] = None,
    config: ConfigOption = None,
    tuned: Annotated[
        Path | None,
        typer.Option(help="winners of fedtailor tune: each is compared, too"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="seeds per method")] = 3,
    out: Annotated[Path, typer.Option(help="folder of the comparison")] = Path(
        "runs/compare"
    ),
    quiet: Quiet = False,
) -> None:
    """Run several methods on equal terms; an interrupted comparison goes on where it stopped."""
    listed, options = _read_methods(config, methods, options)
    variants = make_variants(listed) if listed or tuned is None else []
    first = int(options.get("seed", 0))
    if tuned is not None:
        winners = read_winners(tuned)
        variants = add_tuned(variants, winners)
        check_labels(variants)
        for text in warn_of_seeds(winners, first, seeds):
            typer.echo(text, err=True)
    _run_comparison(variants, options, seeds, out, quiet)


@app.command(cls=GroupedCommand)
def demo(
    out: Annotated[Path, typer.Option(help="folder of the demonstration")] = Path(
        "runs/demo"
    ),
) -> None:
    """What FedTailor does, in three minutes: the main methods on scikit-learn's digits."""
    there = [name for name in DEMO_METHODS if name in registry.names()]
    flags = " ".join(f"{flag_of(name)} {value}" for name, value in DEMO_OPTIONS.items())
    typer.echo(f"fedtailor compare {' '.join(there)} {flags} --seeds 3 --out {out}")
    _run_comparison(make_variants(there), DEMO_OPTIONS, 3, out, quiet=False)
    typer.echo(
        "A show of the tool, no benchmark:"
        " 14 rounds on easy data, one learning rate for all, picked by seed 0."
    )


def _add_file_options(file: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """The options of a file and of the command line, which wins.

    Those of the file are checked on their own, so that an error names the file.
    """
    if file is None:
        return flags
    options = read_config(file)
    for other in ("deploy", "methods", "over"):  # of other commands
        options.pop(other, None)
    make_experiment(options, str(file))
    hyper_parameters = {**options.get("set", {}), **flags.get("set", {})}
    return {**options, **flags, "set": hyper_parameters}


def _unused_folder(chosen: Experiment) -> Path:
    """The first of runs/ditto-digits-s0, ...-2, ...-3 that does not exist."""
    method = Path(chosen.method).stem
    data = Path(chosen.data).stem.replace(":", "-")
    stem = f"{method}-{data}-s{chosen.seed}"
    path = Path("runs") / stem
    number = 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{stem}-{number}"
    return path


def _read_methods(
    file: Path | None, methods: list[str] | None, flags: dict[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """Methods and options; a file may list methods, which those of the command replace."""
    if file is None:
        return methods or [], flags
    listed = read_config(file).get("methods", [])
    if not isinstance(listed, list) or not all(isinstance(x, str) for x in listed):
        raise UserError(f'{file}: write methods = ["fedavg", "fedcp[lam=1]"]')
    return methods or listed, _add_file_options(file, flags)


def _run_comparison(
    variants: list[Variant], options: dict[str, Any], seeds: int, out: Path, quiet: bool
) -> None:
    try:
        diverged: dict[str, list[str]] = {}
        results = comparison.compare(
            variants,
            options,
            seeds,
            out,
            lambda folder: [Figures(folder)],
            progress=make_total(quiet),
            diverged=diverged,
        )
    except Stopped as stopped:
        text = str(stopped).replace("go on with --resume", "the same command goes on")
        raise Stopped(text) from None
    print_comparison(Console(), results, diverged)
    written = write_comparison(out, results, diverged)
    names = ", ".join(path.name for path in written)
    typer.echo(f"runs, tables and figures are in {out}: {names}")


# ---------------------------------------------------------------- methods, models, data


@app.command(cls=GroupedCommand)
def methods() -> None:
    """What methods there are."""
    catalogue.print_methods(Console())


@app.command(cls=GroupedCommand)
def show(name: MethodName) -> None:
    """All about one method: paper, hyper-parameters, what is sent and kept, bytes."""
    catalogue.print_method(Console(), name)


@app.command(cls=GroupedCommand)
def check(name: MethodName) -> None:
    """Run the conformance suite on a method."""
    if not check_method(registry.find(name), typer.echo):
        raise typer.Exit(1)


@app.command(cls=GroupedCommand)
def models() -> None:
    """What backbones there are."""
    catalogue.print_models(Console())


@datasets.callback()
def list_datasets(context: typer.Context, data_dir: DataDir = None) -> None:
    """What data sets there are."""
    if context.invoked_subcommand is None:
        catalogue.print_datasets(Console(), data_dir)


@datasets.command("fetch", cls=GroupedCommand)
def fetch_dataset(
    name: Annotated[str, typer.Argument(help="a data set's name")],
    data_dir: DataDir = None,
) -> None:
    """Download a data set from its official place."""
    with show_downloads() as report:
        files = data_sets.fetch_dataset(name, data_dir, report)
    if files:
        typer.echo(
            f"{name}: {len(files)} files are in {data_sets.find_data_folder(data_dir)}"
        )
    else:
        typer.echo(f"{name} is built in")


@app.command(cls=GroupedCommand)
@experiment_options(only=options_in("data"))
def partition(
    options: dict[str, Any],
    out: Annotated[Path, typer.Option(help="stem of the files")] = Path("partition"),
    to: Annotated[
        Path | None,
        typer.Option(
            "--export", help="write each client's data to a file in this folder"
        ),
    ] = None,
) -> None:
    """Divide a data set among clients: a table, the bubble chart, and the partition as a file."""
    federation, _ = prepare_federation(make_experiment(options))
    catalogue.print_partition(Console(), federation)
    files = draw_partition(federation, out)
    if federation.settings.get("skew"):
        files.extend(draw_skew_examples(federation, f"{out}-examples"))
    files.append(save_partition(federation, f"{out}.npz"))
    if to:
        files.extend(export_clients(federation, to))
    typer.echo(f"hash {federation.hash}, written to {', '.join(map(str, files))}")


# ---------------------------------------------------------------- errors


def main() -> None:
    """The entry of the command: a mistake is one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help() if error.ctx else ABOUT)
        sys.exit(0)
    except click.NoSuchOption as error:
        sys.exit(_complain(_describe_unknown_option(error), 2))
    except click.ClickException as error:
        sys.exit(_complain(error.format_message(), 2))
    except UserError as error:
        sys.exit(_complain(str(error), 2))
    except ClientError as error:
        print(error.traceback, end="", file=sys.stderr)
        hint = (
            "" if not error.traceback else "; --tolerate goes on without such clients"
        )
        sys.exit(_complain(error.line + hint, 1))
    except OSError as error:
        if error.filename is None and error.errno not in DISK_FULL:
            raise
        sys.exit(_complain(f"{error.filename or 'a file'}: {error.strerror}", 2))
    except Stopped as stopped:
        sys.exit(_complain(str(stopped), 130))
    except (KeyboardInterrupt, click.Abort):
        sys.exit(
            _complain("stopped at once; --resume goes on from the last checkpoint", 130)
        )
    sys.exit(code if isinstance(code, int) else 0)


def _describe_unknown_option(error: click.NoSuchOption) -> str:
    """The name that an option of an earlier version has now, or what click says."""
    for old, new in RENAMED.items():
        if error.option_name == flag_of(old) and _has_option(error.ctx, new):
            return f"{flag_of(old)} is now {flag_of(new)}"
    return error.format_message()


def _has_option(context: click.Context | None, name: str) -> bool:
    if context is None:
        return False
    return any(parameter.name == name for parameter in context.command.params)


def _complain(text: str, code: int) -> int:
    print(f"fedtailor: {' '.join(text.split())}", file=sys.stderr)
    return code
