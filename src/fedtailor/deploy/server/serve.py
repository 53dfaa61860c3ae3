"""The server's side of a deployed run: gather the sites, agree on their data, conduct the loop of a simulated run."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

from fedtailor import methods
from fedtailor.core.errors import UserError
from fedtailor.deploy import messages as letters
from fedtailor.deploy.code_digests import digest_engine, digest_method
from fedtailor.deploy.server.data_agreement import spec_of
from fedtailor.deploy.server.executor import Flower, Post
from fedtailor.deploy.server.sites import Sites
from fedtailor.engine.loop import conduct
from fedtailor.engine.progress import Watcher
from fedtailor.experiment.config import Experiment, make_experiment
from fedtailor.experiment.prepare import prepare
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.storage.checkpoint import Checkpoints
from fedtailor.storage.files import write_bytes

SITES, ABOUT = "sites.json", "deploy.json"
WAIT, DEADLINE, ABSENCE = 600.0, 600.0, 60.0  # seconds


def serve(post: Post, order: dict[str, Any], watcher: Watcher) -> dict[str, Any]:
    """Carry an order out: ``experiment``, ``out``, ``sites`` and, where given, ``wait``, ``deadline``, ``absence``,
    ``resume``, ``data`` (what is known of the sites' data), ``vocabulary`` and ``source`` (of a method file)."""
    out, resume = Path(order["out"]), bool(order.get("resume"))
    options = _options(order, out)
    run, attempt, since = _claim(out, resume)
    cls = methods.find(options.method)
    about = {"run": run, "method": digest_method(cls), "engine": digest_engine()}
    hello = letters.write(
        {
            "hello": {
                **about,
                "experiment": options.model_dump(mode="json", exclude_none=True),
                "vocabulary": order.get("vocabulary") or [],
            }
        }
    )
    sites = Sites(post, lambda: hello, out / SITES)
    sites.gather(int(order["sites"]), float(order.get("wait") or WAIT), watcher.say)
    federation = sites.agree(order.get("data") or {})
    setup = prepare(options, data=federation, check_data=False)
    settled = setup.options.model_dump(mode="json", exclude_none=True)
    head = {
        **about,
        "attempt": attempt,
        "since": since,
        "experiment": settled,
        "data": spec_of(federation),
    }
    executor = Flower(
        post,
        sites,
        setup.world.method,
        lambda: head,
        deadline=float(order.get("deadline") or DEADLINE),
        absence=float(order.get("absence") or ABSENCE),
    )
    begun = time.monotonic()
    result = conduct(setup, RunFolder(out), watcher, resume=resume, executor=executor)
    watcher.say(
        f"{result['rounds']} rounds with {len(sites.entries)} sites took {time.monotonic() - begun:.1f} s"
    )
    return result


def _options(order: dict[str, Any], out: Path) -> Experiment:
    """The experiment, with what a deployment decides; what it cannot do is refused."""
    given = dict(order["experiment"])
    source = order.get("source")
    if source:  # the method's file may not be on this machine: it becomes part of the run's folder
        path = out / Path(given["method"]).name
        out.mkdir(parents=True, exist_ok=True)
        write_bytes(path, str(source).encode())
        given["method"] = str(path)
    options = make_experiment({"checkpoint_every": 1, **given, "data": "sites", "executor": "auto"})
    # One file serves the simulation and the deployment: how data are dealt there means nothing here.
    options = options.model_copy(
        update={"partition": None, "limit": None, "clients": None, "data_dir": None}
    )
    for name, usual in (("late_clients", None), ("new_clients", 0)):
        if getattr(options, name) != usual:
            raise UserError(
                f"{name}={getattr(options, name)} is for simulations: sites join when they come, and all train"
            )
    wrong = [view for view in ("new", "external") if view in options.views.split(",")]
    if wrong:
        raise UserError(
            f"views={wrong[0]} needs everybody's data in one place, which a deployment does not have"
        )
    return options


def _claim(out: Path, resume: bool) -> tuple[str, int, int]:
    """The run's id, how often it has been started, and the round from which it goes on."""
    path = out / ABOUT
    known: dict[str, Any] = (
        json.loads(path.read_text())
        if resume and path.exists()
        else {"run": uuid.uuid4().hex, "attempt": 0}
    )
    if not resume and (out / "config.toml").exists():
        raise UserError(f"{out} holds a run already; go on with --resume, or choose another --out")
    if not known["attempt"] and (out / SITES).exists():
        (out / SITES).unlink()
    known["attempt"] += 1
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(path, json.dumps(known).encode())
    newest = Checkpoints(out).newest() if resume else None
    return known["run"], known["attempt"], int(newest.name.removeprefix("round-")) if newest else 0
