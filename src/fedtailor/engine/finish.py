"""The end of a run: final evaluations, digest, result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from fedtailor.core.wire import Flat, encode
from fedtailor.engine.final_views import evaluate_views
from fedtailor.engine.protection import describe_protection
from fedtailor.engine.result import compose_result
from fedtailor.engine.run import Run
from fedtailor.executors.visit import Look
from fedtailor.experiment.run_folder import JOURNAL, read_journal
from fedtailor.storage.files import fingerprint
from fedtailor.training.task import Task

CLOSE = 0.005  # a gain of half a percent is none


def finish_run(run: Run) -> dict[str, Any]:
    """Evaluate the final models in all ways asked for, and write the result."""
    state = run.state
    began = time.monotonic()
    keep = run.models_to_keep()
    if keep == "last" or (keep == "best" and run.folder.kept_models() is None):
        run.keep_models(state.t, "last")
    digest = fingerprint(encode(state.server, "server"), private_states(run))
    clients = run.available_clients(state.t)
    views = evaluate_views(run, run.honest(clients))
    protection = describe_protection(run, run.honest(clients))
    if run.is_remote:
        run.look(Look.CLOSE, run.downs(run.available_clients(state.t)))
        run.keep_server_models()
    state.total_seconds += time.monotonic() - began
    remarks = run.method.closing_remarks(state.server)
    result = compose_result(
        run.config,
        run.world,
        state,
        views=views,
        executor=run.executor_name,
        models=None if run.is_remote else run.folder.kept_models(),
        hash=digest,
        remarks=remarks,
        groups=list_groups(run),
        lost=list_lost_clients(run),
        **protection,
    )
    for remark in [*remarks, *warn_if_trivial(run.world.task, result)]:
        run.observer.message(remark)
    run.folder.write_result(result)
    return result


def list_groups(run: Run) -> dict[str, list[list[int]]]:
    """The groups of clients that the method has formed; empty ones are left out."""
    found = run.method.formed_groups(run.state.server)
    named = {
        name: [sorted(map(int, one)) for one in groups]
        for name, groups in found.items()
    }
    return {name: groups for name, groups in named.items() if any(groups)}


def list_lost_clients(run: Run) -> list[dict[str, Any]]:
    """Every client whose reply was not used in some round: in which, and why at last."""
    found: dict[int, dict[str, Any]] = {}
    name = run.world.federation.find_name
    for record in read_journal(run.folder.path / JOURNAL):
        for k, why in record["lost"].items():
            entry = found.setdefault(int(k), {"id": int(k), "rounds": []})
            entry["rounds"].append(record["t"])
            entry["name"] = name(int(k)) or k
            entry["why"] = why
    return [found[k] for k in sorted(found)]


def warn_if_trivial(task: Task, result: dict[str, Any]) -> list[str]:
    """A warning where the models are no better than an answer that looks at no input."""
    quoted = result[task.primary]
    value = quoted["last"] if quoted["best"] is None else quoted["best"]
    trivial = result["views"]["personal"].get("trivial")
    if value is None or trivial is None:
        return []
    sign = 1 if task.higher_is_better else -1
    gain = sign * (value - trivial)
    if gain > CLOSE * abs(trivial):
        return []
    return [
        f"warning: {task.primary} {value:.4f} is no better than {trivial:.4f}, that of"
        f" {task.trivial_answer}"
    ]


def private_states(run: Run) -> Iterator[tuple[int, Flat | str]]:
    """Every private state, or its digest where the state is at a site."""
    if run.is_remote:
        clients = run.available_clients(run.state.t)
        digests = run.look(Look.DIGEST, dict.fromkeys(clients))
        for k, digest in sorted(digests.items()):
            if digest:
                yield k, str(digest)
    store = run.executor.store
    for k in store.clients():
        yield k, store.get(k) or {}
