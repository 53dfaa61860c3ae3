"""The runs that a report is about: found in folders, read, and grouped by method."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor import methods
from fedtailor.core.errors import UserError
from fedtailor.experiment.config import Experiment
from fedtailor.experiment.run_folder import CONFIG, JOURNAL, RunFolder, read_journal
from fedtailor.experiment.variants import name_of
from fedtailor.report.colours import Style, choose_styles
from fedtailor.report.headline import quoted
from fedtailor.report.measures import Measure, deciding_measure
from fedtailor.report.run_values import Result

Record = dict[str, Any]  # a line of the journal


class ReportedRun(NamedTuple):
    """One finished run, as its folder has it."""

    path: Path
    config: dict[str, Any]
    result: Result
    records: list[Record]  # of all rounds
    log: list[dict[str, Any]]

    @property
    def seed(self) -> int:
        """What everything random follows from."""
        return int(self.result.get("seed") or 0)

    @property
    def evaluated(self) -> list[Record]:
        """The records of the evaluated rounds."""
        return [record for record in self.records if record.get("evaluation")]

    @property
    def chosen_round(self) -> int:
        """The round that validation data chose, or the last one."""
        best = quoted(self.result).get("best_round")
        return int(self.result["rounds"] if best is None else best)


class Group(NamedTuple):
    """The runs of one method with the same settings, one a seed."""

    label: str
    method: str
    runs: list[ReportedRun]

    @property
    def title(self) -> str:
        """The label, with the method's name as its paper writes it."""
        if not self.label.startswith(self.method):
            return self.label
        return title_of_method(self.method) + self.label.removeprefix(self.method)

    @property
    def results(self) -> list[Result]:
        """What the runs left behind."""
        return [run.result for run in self.runs]


class Reported(NamedTuple):
    """All runs of a report."""

    groups: list[Group]  # the best first
    measure: Measure
    styles: dict[str, Style]  # by label
    left_out: list[str]  # folders that could not be read, and why

    def group(self, method: str) -> Group | None:
        """The group of a method, where there is exactly one."""
        found = [group for group in self.groups if group.method == method]
        return found[0] if len(found) == 1 else None


def read_runs(paths: Sequence[Path]) -> Reported:
    """Everything in the folders of runs and comparisons.

    Raises:
        UserError: a folder holds no run, or none that is finished.
    """
    runs: list[ReportedRun] = []
    left_out: list[str] = []
    for path in find_run_folders(paths):
        try:
            runs.append(read_run(path))
        except UserError as error:
            left_out.append(str(error))
    if not runs:
        raise UserError(left_out[0])
    return group_runs(runs, left_out)


def find_run_folders(paths: Sequence[Path]) -> list[Path]:
    """The runs' folders in the given ones, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise UserError(f"there is no folder {path}")
        inner = [path] if (path / CONFIG).exists() else list_inner_runs(path)
        if not inner:
            raise UserError(
                f"{path} holds neither a run nor a comparison"
                f" (a run has {CONFIG} in it, a comparison has runs in it)"
            )
        for folder in inner:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def list_inner_runs(path: Path) -> list[Path]:
    """The runs in the folder of a comparison."""
    if not path.is_dir():
        return []
    return sorted(inner.parent for inner in path.glob(f"*/{CONFIG}"))


def read_run(path: Path) -> ReportedRun:
    """One folder.

    Raises:
        UserError: the run is not finished, of another version, or damaged.
    """
    folder = RunFolder(path)
    try:
        folder.check_format()
        result = folder.read_result()
        if result is None:
            raise UserError(f"the run in {path} is not finished: go on with --resume")
        records = read_journal(path / JOURNAL) if (path / JOURNAL).exists() else []
        config = folder.read_config()
        log = folder.read_log()
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return ReportedRun(path, config, result, records, log)


# ---------------------------------------------------------------- groups


def group_runs(runs: Sequence[ReportedRun], left_out: Sequence[str] = ()) -> Reported:
    """Runs of the same settings together, the best group first."""
    by_settings: dict[str, list[ReportedRun]] = {}
    for run in runs:
        seeds = by_settings.setdefault(describe_settings(run), [])
        if run.seed not in [other.seed for other in seeds]:
            seeds.append(run)
    members = [
        sorted(found, key=lambda run: run.seed) for found in by_settings.values()
    ]
    labels = label_groups(members)
    measure = deciding_measure(runs[0].result)
    groups = [
        Group(label, name_of(found[0].result["method"]), found)
        for label, found in zip(labels, members, strict=True)
    ]
    groups.sort(key=lambda group: -measure.sign * mean_result(group))
    styles = choose_styles(labels)
    return Reported(groups, measure, styles, list(left_out))


def list_settings(run: ReportedRun) -> dict[str, Any]:
    """The options that results depend on, but the seed."""
    decisive = {
        name
        for name, field in Experiment.model_fields.items()
        if (field.json_schema_extra or {}).get("decides", True)  # type: ignore[union-attr]
    }
    settings = {
        name: value
        for name, value in run.config.items()
        if name in decisive and name not in ("seed", "set", "executor", "name")
    }
    settings["rounds"] = run.result["rounds"]
    hyper = run.config.get("set", {})
    return settings | {f"set {name}": value for name, value in hyper.items()}


def describe_settings(run: ReportedRun) -> str:
    """The same text for runs that differ in their seed only."""
    return repr(sorted(list_settings(run).items()))


def label_groups(groups: Sequence[Sequence[ReportedRun]]) -> list[str]:
    """The method's name, and what else tells groups of the same method apart."""
    told = [tell_names(runs) for runs in groups]
    if all(told) and len(set(told)) == len(told):
        return told  # what a comparison calls its variants
    names = [name_of(runs[0].result["method"]) for runs in groups]
    settings = [list_settings(runs[0]) for runs in groups]
    labels = []
    for i, name in enumerate(names):
        alike = [settings[j] for j, other in enumerate(names) if other == name]
        labels.append(name + tell_apart(settings[i], alike))
    return labels


def tell_names(runs: Sequence[ReportedRun]) -> str:
    """What all runs of a group are called; empty where they are called differently."""
    names = {str(run.result.get("name") or "") for run in runs}
    return names.pop() if len(names) == 1 else ""


def tell_apart(mine: dict[str, Any], alike: Sequence[dict[str, Any]]) -> str:
    """`` (lr 0.1)``: the settings in which groups of one method differ."""
    if len(alike) < 2:
        return ""
    differing = [
        name
        for name in dict.fromkeys(name for one in alike for name in one)
        if len({repr(one.get(name)) for one in alike}) > 1
    ]
    told = [
        f"{name.removeprefix('set ')} {mine.get(name, 'default')}" for name in differing
    ]
    return f" ({', '.join(told)})"


def title_of_method(name: str) -> str:
    """``FedPer`` for fedper: how the method's own file begins; a stranger's name as it is."""
    name, bracket, options = name.partition("[")
    if name not in methods.names():
        return name + bracket + options
    text = sys.modules[methods.find(name).__module__].__doc__ or ""
    title, colon, _ = text.strip().partition(":")
    shown = title if colon and len(title) < 20 else name
    return shown + bracket + options


# ---------------------------------------------------------------- results


def chosen_result(result: Result) -> float | None:
    """The deciding measure at the chosen round."""
    found = quoted(result)
    value = found["last"] if found["best"] is None else found["best"]
    return None if value is None else float(value)


def mean_result(group: Group) -> float:
    """The mean over seeds; minus infinity where there is no result."""
    values = [chosen_result(result) for result in group.results]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("-inf")
