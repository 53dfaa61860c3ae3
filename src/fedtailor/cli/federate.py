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
from fedtailor.deploy.config import DeployConfig
from fedtailor.deploy.flower.superlink import SuperLinkClient, require_flower
from fedtailor.deploy.progress_log import LogReader
from fedtailor.engine.stopping import Stopped
from fedtailor.experiment.config import make_experiment, read_config, simulation_options
from fedtailor.maths.homomorphic import parse_key
from fedtailor.report.console import make_console
from fedtailor.report.leaderboard import print_summary

DEPLOY = ("sites", "wait", "deadline", "absence", "classes", "shape", "vocabulary")

Superlink = Annotated[str, typer.Option(help="address of the SuperLink, HOST:PORT")]
Certificates = Annotated[Path | None, typer.Option(help="the CA's certificate, ca.pem")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="no TLS, for a trial on one machine")
]
Config = Annotated[
    Path | None,
    typer.Argument(
        help="a TOML file with options; flags win over it", metavar="[FILE]"
    ),
]
SiteCount = Annotated[
    int | None, typer.Option(min=1, help="begin when so many sites are there [2]")
]
Out = Annotated[
    Path | None, typer.Option(help="folder of the run, on the SuperLink's machine")
]
Resume = Annotated[bool, typer.Option("--resume", help="go on with the run in --out")]
Wait = Annotated[float | None, typer.Option(help="seconds to wait for the sites [600]")]
Deadline = Annotated[
    float | None, typer.Option(help="seconds to wait for a reply [600]")
]
Absence = Annotated[
    float | None, typer.Option(help="seconds to wait for a site that is away [60]")
]
Vocabulary = Annotated[
    Path | None, typer.Option(help="words of the run's texts, one a line")
]
HePublic = Annotated[
    Path | None,
    typer.Option(help="the public half of the sites' key, he.pub, to encrypt"),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="say only what must be known")]


@experiment_options(without=simulation_options())
def federate(
    options: dict[str, Any],
    superlink: Superlink,
    file: Config = None,
    root_certificates: Certificates = None,
    insecure: Insecure = False,
    sites: SiteCount = None,
    out: Out = None,
    resume: Resume = False,
    wait: Wait = None,
    deadline: Deadline = None,
    absence: Absence = None,
    vocabulary: Vocabulary = None,
    he_public: HePublic = None,
    quiet: Quiet = False,
) -> None:
    """Run one method on sites that were started with ``fedtailor node``."""
    require_flower("fedtailor federate")
    check_security(root_certificates, insecure)
    given, deploy = read_options(file)
    flags = {
        "sites": sites,
        "wait": wait,
        "deadline": deadline,
        "absence": absence,
        "vocabulary": vocabulary,
    }
    deploy |= {name: value for name, value in flags.items() if value is not None}
    if he_public is not None:
        options = {**options, **name_site_key(he_public, {**given, **options})}
    hyperparameters = {**given.get("set", {}), **options.get("set", {})}
    config = make_config(
        {**given, **options, "set": hyperparameters}, deploy, out, resume
    )
    reader = LogReader(make_console(quiet))
    with tempfile.TemporaryDirectory(prefix="fedtailor-") as home:
        client = SuperLinkClient(superlink, root_certificates, Path(home))
        result = follow_run(client, config, reader)
    if not quiet:
        print_summary(Console(), result, Path(config.out))


def name_site_key(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """What a run is told of the sites' key: its id, and what it is for."""
    key = parse_key(read_text(path), str(path))
    if key.is_secret:
        raise UserError(
            f"{path} holds the secret key, which belongs to sites only: give he.pub"
        )
    wanted = given.get("he", key.scheme)
    if wanted != key.scheme:
        raise UserError(f"{path} is a key for he={key.scheme}, not {wanted}")
    return {"he_key": key.id, "he": key.scheme}


def check_security(root_certificates: Path | None, insecure: bool) -> None:
    """Refuse a command line that asks for neither TLS nor a trial without it, or for both."""
    if (root_certificates is None) != insecure:
        raise UserError(
            "give --root-certificates ca.pem, or --insecure for a trial on one machine"
        )


def read_options(file: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
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


def make_config(
    chosen: dict[str, Any], deploy: dict[str, Any], out: Path | None, resume: bool
) -> DeployConfig:
    """What the server is asked to run; mistakes are told before anything is started."""
    options = make_experiment(chosen)
    if options.encrypt and options.he != "plain" and not options.he_key and not resume:
        raise UserError(
            f"encrypt={options.encrypt}: name the sites' key by --he-public he.pub"
            " (made by 'fedtailor keys')"
        )
    methods.make(methods.find(options.method), options.set)
    if out is None:
        out = Path("runs") / f"{Path(options.method).stem}-sites-s{options.seed}"
    settings: dict[str, Any] = {}
    if "sites" in deploy:
        settings["sites"] = int(deploy["sites"])
    for name in ("wait", "deadline", "absence"):
        if deploy.get(name):
            settings[name] = float(deploy[name])
    if options.method.endswith(".py"):
        settings["source"] = read_text(Path(options.method))
    if "vocabulary" in deploy:
        settings["vocabulary"] = read_words(Path(deploy["vocabulary"]))
    return DeployConfig(
        experiment=chosen,
        out=str(out.resolve()),
        resume=resume,
        data={name: deploy[name] for name in ("classes", "shape") if name in deploy},
        **settings,
    )


def read_words(path: Path) -> list[str]:
    """The words of a vocabulary file, each once."""
    words = read_text(path).split()
    if len(set(words)) != len(words):
        raise UserError(f"{path}: a word is in it twice")
    return words


def read_text(path: Path) -> str:
    """A text file, or one clear line why it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def follow_run(
    client: SuperLinkClient, config: DeployConfig, reader: LogReader
) -> dict[str, Any]:
    """Start the run and show its progress until it is over; returns its result."""
    with client:
        run = client.start_run(config)
        try:
            for chunk in client.stream_log(run):
                reader.read_chunk(chunk)
        except KeyboardInterrupt:
            client.stop_run(run)
            raise Stopped(
                "stopped; the last finished round is saved, go on with --resume"
            ) from None
    if reader.outcome is None:
        last_lines = " | ".join(reader.other_lines[-3:])
        raise UserError(
            f"the run ended without a word; its log's last lines: {last_lines}"
        )
    event, value = reader.outcome
    if event == "error":
        raise UserError(str(value))
    if event == "stopped":
        raise Stopped(str(value))
    result: dict[str, Any] = value
    return result
