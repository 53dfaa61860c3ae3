"""How runs were made: what left the clients, protections, settings, commands, versions, losses."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from fedtailor import methods
from fedtailor.core.errors import UserError
from fedtailor.experiment.config import Experiment
from fedtailor.experiment.run_about import read_sessions
from fedtailor.report.story.curves import thin_places
from fedtailor.report.story.reported_runs import (
    Group,
    Reported,
    ReportedRun,
    list_settings,
)
from fedtailor.testing.method_card import MessageField, describe_method

KNOWN_ELSEWHERE = ("method", "set", "seed", "out")


# ---------------------------------------------------------------- privacy


def compose_privacy(reported: Reported) -> list[dict[str, Any]]:
    """For every method what left its clients, what never did, and what protected it."""
    parts = []
    for group in reported.groups:
        result = group.results[0]
        part: dict[str, Any] = {"method": group.label, **list_messages(group.method)}
        part["bytes_up"] = sum(one["bytes"]["up"] for one in group.results)
        part["runs"] = len(group.runs)
        part["protections"] = list_protections(group.runs[0])
        part["spent"] = result.get("privacy")
        part["attack"] = result.get("attack")
        part["epsilon"] = list_epsilon(group.runs[0])
        parts.append(part)
    return parts


def list_messages(method: str) -> dict[str, Any]:
    """What a shipped method sends, and what it keeps."""
    if method not in methods.names():
        return {"left": None, "kept": None}
    card = describe_method(methods.find(method))
    sent = [field for call in card.calls for field in call.up]
    return {"left": tell_fields(sent), "kept": tell_fields(card.keep)}


def tell_fields(fields: list[MessageField]) -> list[str]:
    """What the fields hold, each said once."""
    return list(dict.fromkeys(field.doc or field.name for field in fields))


def list_protections(run: ReportedRun) -> list[list[str]]:
    """The options of protection that are not at rest: name, value, what it is."""
    found = []
    for name, field in Experiment.model_fields.items():
        tags: Any = field.json_schema_extra or {}
        value = run.config.get(name)
        if tags.get("part") != "protection" or name in ("attack", "attackers"):
            continue
        if value in (None, field.default):
            continue
        if name.startswith("dp_") and not run.config.get("dp"):
            continue
        found.append([name, str(value), field.description or ""])
    if run.config.get("filters"):
        found.append(
            ["filters", str(run.config["filters"]), "what every message passed"]
        )
    return found


def list_epsilon(run: ReportedRun) -> list[list[float]]:
    """By round, what of the privacy was spent."""
    spent = [
        [record["t"], round(record["privacy"]["epsilon"], 4)]
        for record in run.records
        if record.get("privacy", {}).get("epsilon") is not None
    ]
    return [spent[i] for i in thin_places(len(spent), 100)]


# ---------------------------------------------------------------- settings and commands


def compose_settings(reported: Reported) -> dict[str, Any]:
    """What all runs have in common, and where they differ."""
    settings = {
        group.label: drop_idle(list_settings(group.runs[0]))
        for group in reported.groups
    }
    names = dict.fromkeys(name for one in settings.values() for name in one)
    common = []
    own: dict[str, list[str]] = {label: [] for label in settings}
    for name in names:
        if name == "method":
            continue
        values = {label: one[name] for label, one in settings.items() if name in one}
        is_common = len(values) == len(settings)
        if is_common and len({repr(value) for value in values.values()}) == 1:
            common.append([name, tell_value(next(iter(values.values())))])
            continue
        for label, value in values.items():
            own[label].append(f"{name.removeprefix('set ')} = {tell_value(value)}")
    seeds = sorted({run.seed for group in reported.groups for run in group.runs})
    return {"common": common, "own": own, "seeds": seeds}


def drop_idle(settings: dict[str, Any]) -> dict[str, Any]:
    """Without the settings of what is switched off."""
    idle = set()
    if not settings.get("dp"):
        idle |= {name for name in settings if name.startswith("dp_")}
    if not settings.get("attack"):
        idle.add("attackers")
    return {name: value for name, value in settings.items() if name not in idle}


def tell_value(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "none"


def compose_commands(reported: Reported) -> list[str]:
    """A line for every group that makes its runs again."""
    lines = []
    for group in reported.groups:
        for run in group.runs:
            lines.append(compose_command(run))
    return lines


def compose_command(run: ReportedRun) -> str:
    """The run's command, with every option that is not the default."""
    words = ["fedtailor", "run", "--method", str(run.config["method"])]
    for name, field in Experiment.model_fields.items():
        value = run.config.get(name)
        if name in ("method", "set", "executor") or value is None:
            continue
        if value == field.default or str(value) == str(field.default):
            continue
        words += tell_flag(name, value)
    for name, value in run.config.get("set", {}).items():
        if value != _default_of(run, name):
            words += ["--set", f"{name}={value}"]
    return shlex.join(words)


def tell_flag(name: str, value: Any) -> list[str]:
    """An option as it is typed."""
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [flag, str(value)]


def _default_of(run: ReportedRun, name: str) -> Any:
    """A hyper-parameter's own default; what comes from the backbone is written out."""
    try:
        method = methods.find(str(run.config["method"]))()
    except (UserError, OSError):
        return None
    default = getattr(method, name, None)
    if isinstance(default, frozenset):
        return ",".join(sorted(default))
    return default


# ---------------------------------------------------------------- what happened


def compose_versions(reported: Reported) -> list[dict[str, Any]]:
    """Which versions ran, with the number of runs; older folders do not say."""
    counts: Counter[tuple[tuple[str, str], ...]] = Counter()
    for group in reported.groups:
        for run in group.runs:
            counts[tuple(read_versions(run).items())] += 1
    return [{"runs": count, "versions": dict(key)} for key, count in counts.items()]


def read_versions(run: ReportedRun) -> dict[str, str]:
    """What the last start of a run noted of itself; the host's name stays out of the page."""
    sessions = read_sessions(run.path)
    if not sessions:
        return {}
    machine = sessions[-1].get("machine", {})
    names = ("torch", "python", "system", "processor", "cores")
    found = {name: str(machine[name]) for name in names if machine.get(name)}
    return {"fedtailor": str(sessions[-1].get("version", "")), **found}


def compose_messages(reported: Reported) -> dict[str, list[str]]:
    """Warnings and methods' remarks, each once with the runs that had it."""
    warnings: dict[str, list[str]] = {}
    remarks: dict[str, list[str]] = {}
    for group in reported.groups:
        for run in group.runs:
            name = f"{group.label}, seed {run.seed}"
            for line in run.log:
                text = str(line.get("message", ""))
                if text.startswith("warning"):
                    warnings.setdefault(text.removeprefix("warning: "), []).append(name)
            for text in run.result.get("remarks", []):
                remarks.setdefault(text, []).append(name)
    for text in reported.left_out:
        warnings[f"left out of this report: {text}"] = []
    return {"warnings": tell_runs(warnings), "remarks": tell_runs(remarks)}


def tell_runs(found: dict[str, list[str]]) -> list[str]:
    """Each text with the runs it is about."""
    lines = []
    for text, runs in found.items():
        unique = list(dict.fromkeys(runs))
        about = f"{', '.join(unique[:3])}{' and others' if len(unique) > 3 else ''}"
        lines.append(f"{text} ({about})" if unique else text)
    return lines[:200]


def compose_losses(reported: Reported) -> list[dict[str, Any]]:
    """By run, clients whose replies were lost and why, and rounds without any reply."""
    rows = []
    for group in reported.groups:
        for run in group.runs:
            row = count_losses(group, run)
            if row is not None:
                rows.append(row)
    return rows


def count_losses(group: Group, run: ReportedRun) -> dict[str, Any] | None:
    """What a run lost; None where it lost nothing."""
    reasons: Counter[str] = Counter()
    clients = set()
    skipped = 0
    for record in run.records:
        lost = record["lost"]
        clients |= set(lost)
        reasons.update(lost.values())
        skipped += set(map(int, lost)) >= set(record["clients"])
    if not clients and not skipped:
        return None
    told = [f"{why}: {count}" for why, count in reasons.most_common(3)]
    return {
        "method": group.label,
        "seed": run.seed,
        "clients": sorted(clients, key=int)[:50],
        "replies": sum(reasons.values()),
        "skipped": skipped,
        "reasons": told,
    }


def list_folders(reported: Reported) -> list[str]:
    """Where the runs are."""
    parents: dict[Path, None] = {}
    for group in reported.groups:
        for run in group.runs:
            parents.setdefault(run.path, None)
    return [str(path) for path in parents]
