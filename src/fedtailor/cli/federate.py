"""The command ``fedtailor federate``: start a run at a SuperLink and follow it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedtailor import methods
from fedtailor.cli.experiment_options import experiment_options
from fedtailor.core.errors import UserError, unknown
from fedtailor.deploy.flower.superlink import Link, need_flower
from fedtailor.deploy.progress_log import Listener
from fedtailor.engine.progress import watcher
from fedtailor.engine.stopping import Stopped
from fedtailor.experiment.config import make_experiment, read_config, simulation_options
from fedtailor.report.leaderboard import print_summary

DEPLOY = ("sites", "wait", "deadline", "absence", "classes", "shape", "vocabulary")

Superlink = Annotated[str, typer.Option(help="address of the SuperLink, HOST:PORT")]
Certificates = Annotated[Path | None, typer.Option(help="the CA's certificate, ca.pem")]
Insecure = Annotated[bool, typer.Option("--insecure", help="no TLS, for a trial on one machine")]


@experiment_options(without=simulation_options())
def federate(
    options: dict[str, Any],
    superlink: Superlink,
    file: Annotated[
        Path | None,
        typer.Argument(help="a TOML file with options; flags win over it", metavar="[FILE]"),
    ] = None,
    root_certificates: Certificates = None,
    insecure: Insecure = False,
    sites: Annotated[
        int | None, typer.Option(min=1, help="begin when so many sites are there [2]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the run, on the SuperLink's machine")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
    wait: Annotated[float | None, typer.Option(help="seconds to wait for the sites [600]")] = None,
    deadline: Annotated[
        float | None, typer.Option(help="seconds to wait for a reply [600]")
    ] = None,
    absence: Annotated[
        float | None, typer.Option(help="seconds to wait for a site that is away [60]")
    ] = None,
    vocabulary: Annotated[
        Path | None, typer.Option(help="words of the run's texts, one a line")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="say only what must be known")] = False,
) -> None:
    """Run one method on sites that were started with ``fedtailor node``."""
    need_flower("fedtailor federate")
    if (root_certificates is None) != insecure:
        raise UserError("give --root-certificates ca.pem, or --insecure for a trial on one machine")
    given, deploy = _read(file)
    flags = {
        "sites": sites,
        "wait": wait,
        "deadline": deadline,
        "absence": absence,
        "vocabulary": vocabulary,
    }
    deploy |= {k: v for k, v in flags.items() if v is not None}
    chosen = {**given, **options, "set": {**given.get("set", {}), **options.get("set", {})}}
    order = make_order(chosen, deploy, out, resume)
    shown = watcher(quiet)
    with tempfile.TemporaryDirectory(prefix="fedtailor-") as home:
        result = _follow(Link(superlink, root_certificates, Path(home)), order, Listener(shown))
    if not quiet:
        print_summary(Console(), result, Path(order["out"]))


def make_order(
    chosen: dict[str, Any], deploy: dict[str, Any], out: Path | None, resume: bool
) -> dict[str, Any]:
    """What the server is asked to do."""
    options = make_experiment(chosen)
    methods.make(
        methods.find(options.method), options.set
    )  # a mistake is told before anything is started
    folder = (out or Path("runs") / f"{Path(options.method).stem}-sites-s{options.seed}").resolve()
    order: dict[str, Any] = {"experiment": chosen, "out": str(folder), "resume": resume, "sites": 2}
    order |= {k: deploy[k] for k in ("sites", "wait", "deadline", "absence") if k in deploy}
    order["data"] = {k: deploy[k] for k in ("classes", "shape") if k in deploy}
    if options.method.endswith(".py"):
        order["source"] = _text(Path(options.method))
    if "vocabulary" in deploy:
        words = _text(Path(deploy["vocabulary"])).split()
        if len(set(words)) != len(words):
            raise UserError(f"{deploy['vocabulary']}: a word is in it twice")
        order["vocabulary"] = words
    return order


def _read(file: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a file, and those of its table [deploy]."""
    if file is None:
        return {}, {}
    given = read_config(file)
    deploy = given.pop("deploy", {})
    for key in deploy:
        if key not in DEPLOY:
            raise UserError(f"{file}: {unknown('option of [deploy]', key, DEPLOY)}")
    make_experiment(given, str(file))
    return given, deploy


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _follow(link: Link, order: dict[str, Any], listener: Listener) -> dict[str, Any]:
    """Start the run and show its news until it is over."""
    with link:
        run = link.start(order)
        try:
            for piece in link.log(run):
                listener.take(piece)
        except KeyboardInterrupt:
            link.stop(run)
            raise Stopped(
                "stopped; the last finished round is saved, go on with --resume"
            ) from None
    value: Any
    what, value = listener.outcome or (
        "error",
        "the run ended without a word; its log's last lines: " + " | ".join(listener.other[-3:]),
    )
    if what == "error":
        raise UserError(str(value))
    if what == "stopped":
        raise Stopped(str(value))
    found: dict[str, Any] = value
    return found
