"""The server of a deployed run: wait for the sites, agree on their data, run the usual loop."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor import methods
from fedtailor.core.errors import UserError
from fedtailor.deploy.code_digests import digest_engine, digest_method
from fedtailor.deploy.config import DeployConfig
from fedtailor.deploy.data_facts import DataSpec
from fedtailor.deploy.messages import Header, Hello, write_hello
from fedtailor.deploy.server.executor import SiteExecutor
from fedtailor.deploy.server.sites import Sites
from fedtailor.deploy.server.transport import MessageTransport
from fedtailor.engine.observer import Observer
from fedtailor.engine.start import run_experiment
from fedtailor.experiment.config import Experiment, make_experiment
from fedtailor.experiment.prepare import Setup, prepare
from fedtailor.experiment.run_folder import CONFIG, RunFolder
from fedtailor.storage.checkpoint import Checkpoints
from fedtailor.storage.files import write_bytes

SITES = "sites.json"
STARTS = "deploy.json"  # the run's id, and how often it has been started


class RunStart(NamedTuple):
    """A start of the server of a run."""

    run: str  # id of the run
    attempt: int  # 1 for the first start
    since: int  # the round after which it goes on


def serve(
    transport: MessageTransport, config: DeployConfig, observer: Observer
) -> dict[str, Any]:
    """Run an experiment on the sites that come; returns its result."""
    out = Path(config.out)
    options = choose_options(config)
    start = claim_folder(out, config.resume)
    hello = make_hello(start, options, config.vocabulary)

    # The sites say what data they have; from here on the run looks like a simulated one.
    sites = Sites(transport, write_hello(hello), out / SITES)
    sites.wait_for_sites(config.sites, config.wait, observer.message)
    federation = sites.make_federation(config.data)
    setup = prepare(options, data=federation, check_data=False)

    header = make_request_header(start, hello, setup)
    executor = SiteExecutor(
        transport,
        sites,
        setup.world.method,
        header,
        deadline=config.deadline,
        absence=config.absence,
    )
    begun = time.monotonic()
    result = run_experiment(
        setup, RunFolder(out), [observer], resume=config.resume, executor=executor
    )
    seconds = time.monotonic() - begun
    count = len(sites.entries)
    observer.message(
        f"{result['rounds']} rounds with {count} sites took {seconds:.1f} s"
    )
    return result


def make_hello(start: RunStart, options: Experiment, vocabulary: list[str]) -> Hello:
    """The first message to every node."""
    return Hello(
        run=start.run,
        method=digest_method(methods.find(options.method)),
        engine=digest_engine(),
        experiment=dump_options(options),
        vocabulary=vocabulary,
    )


def make_request_header(start: RunStart, hello: Hello, setup: Setup) -> Header:
    """What the header of every request says of the run."""
    return {
        "run": start.run,
        "method": hello.method,
        "engine": hello.engine,
        "attempt": start.attempt,
        "since": start.since,
        "experiment": dump_options(setup.options),
        "data": asdict(DataSpec.of(setup.world.federation)),
    }


def dump_options(options: Experiment) -> dict[str, Any]:
    """An experiment's options as JSON has them."""
    return options.model_dump(mode="json", exclude_none=True)


def choose_options(config: DeployConfig) -> Experiment:
    """The experiment, with what a deployment decides; what it cannot do is refused."""
    given = dict(config.experiment)
    if config.source:
        given["method"] = str(write_method_file(config))
    options = make_experiment(
        {"checkpoint_every": 1, **given, "data": "sites", "executor": "auto"}
    )
    # One file serves simulation and deployment: how the first partitions data means nothing here.
    simulated = {"partition": None, "limit": None, "clients": None, "data_dir": None}
    options = options.model_copy(update=simulated)
    if config.resume:
        options = recall_sums(options, RunFolder(Path(config.out)))
    if options.encrypt and options.he != "plain" and not options.he_key:
        raise UserError(
            f"encrypt={options.encrypt}: the sites' key must be named (--he-public)"
        )
    for name, default in (("late_clients", None), ("new_clients", 0)):
        value = getattr(options, name)
        if value != default:
            raise UserError(
                f"{name}={value} is for simulations: sites join when they come, and all train"
            )
    views = options.views.split(",")
    for view in ("new", "external"):
        if view in views:
            raise UserError(
                f"views={view} needs all data in one place, which a deployment does not have"
            )
    return options


def recall_sums(options: Experiment, folder: RunFolder) -> Experiment:
    """The options with the room that sums had at first, as sites may have joined since."""
    if not (folder.path / CONFIG).exists():
        return options
    before = folder.read_config()
    known: dict[str, Any] = {}
    for name in ("sum_clients", "sum_weight", "he_key"):
        if getattr(options, name) is None and name in before:
            known[name] = before[name]
    return options.model_copy(update=known)


def write_method_file(config: DeployConfig) -> Path:
    """Write a method's source to the run's folder, as its file may not be on this machine."""
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / Path(config.experiment["method"]).name
    write_bytes(path, config.source.encode())
    return path


def claim_folder(out: Path, resume: bool) -> RunStart:
    """Count this start of the run in its folder; a folder of another run is refused."""
    known = read_starts(out / STARTS) if resume else new_starts()
    if not resume and (out / "config.toml").exists():
        raise UserError(
            f"{out} holds a run already; go on with --resume, or choose another --out"
        )
    if known["attempt"] == 0:
        (out / SITES).unlink(missing_ok=True)
    known["attempt"] += 1
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(out / STARTS, json.dumps(known).encode())
    return RunStart(
        known["run"], known["attempt"], find_newest_round(out) if resume else 0
    )


def read_starts(path: Path) -> dict[str, Any]:
    """The run's id and the number of its starts, as an earlier start wrote them."""
    if not path.exists():
        return new_starts()
    starts: dict[str, Any] = json.loads(path.read_text())
    return starts


def new_starts() -> dict[str, Any]:
    """A new id, for a run that has not been started."""
    return {"run": uuid.uuid4().hex, "attempt": 0}


def find_newest_round(out: Path) -> int:
    """The round of the newest checkpoint, or 0."""
    newest = Checkpoints(out).newest()
    if newest is None:
        return 0
    return int(newest.name.removeprefix("round-"))
