"""All numbers of a finished run by name, for tables with a row for every run."""

from __future__ import annotations

from typing import Any

from fedtailor.evaluation.paired import ClientResult
from fedtailor.report.diagnostics import FLOOR

Result = dict[str, Any]  # what result.json holds
QUOTED = ("best", "last", "best_on_test")


def list_values(result: Result) -> dict[str, float | None]:
    """Every number of a result under a name of its own."""
    values: dict[str, float | None] = {}
    for name in (*QUOTED, "mean_last_10"):
        values[f"accuracy_{name}"] = result["accuracy"].get(name)
        means = result["accuracy_mean_of_clients"]
        values[f"mean_of_clients_{name}"] = means.get(name)
    for name, value in result.get("measures", {}).items():
        if name != "accuracy":
            values[name] = value
    for when, fairness in result.get("fairness_at", {}).items():
        for name, value in fairness.items():
            values[f"{name}_at_{when}"] = value
    values |= list_views(result)
    values |= mean_diagnostics(result)
    values |= list_costs(result)
    return values


def list_views(result: Result) -> dict[str, float | None]:
    """The accuracies of all further evaluations, by view."""
    views = dict(result.get("views", {}))
    external = views.pop("external", {})
    found = {name: view["accuracy"] for name, view in views.items()}
    for name, view in external.items():
        found[f"external_{name}"] = view["accuracy"]
    return {f"view_{name}": value for name, value in found.items()}


def list_costs(result: Result) -> dict[str, float | None]:
    """What a run took, and when it got where."""
    rounds = result["rounds"]
    traffic = result["bytes"]
    values: dict[str, float | None] = {
        "bytes_up_per_round": traffic["up"] / rounds,
        "bytes_down_per_round": traffic["down"] / rounds,
        "calls_per_round": result["calls"] / rounds,
        "trainings_per_round": result.get("trainings", 0) / rounds,
    }
    for name, seconds in result["seconds"].items():
        values[f"seconds_{name}"] = seconds
    values |= result.get("pace", {})
    return values


def mean_diagnostics(result: Result) -> dict[str, float | None]:
    """The method's diagnostics on test data: means over clients, by their test examples."""
    sizes = {str(client["id"]): client["n_test"] for client in result["clients"]}
    means: dict[str, float | None] = {}
    for name, by_client in result["notes"].items():
        numbers = {
            str(k): value
            for k, value in by_client.items()
            if isinstance(value, int | float)
        }
        samples = sum(sizes[k] for k in numbers)
        if name.startswith("test/") and samples:
            total = sum(value * sizes[k] for k, value in numbers.items())
            means[name.removeprefix("test/")] = total / samples
    return means


def is_task_accuracy(name: str) -> bool:
    """Whether a diagnostic is what pFedC's tables show."""
    return name.startswith("acc_task") and not name.endswith(FLOOR)


def list_client_results(runs: list[Result]) -> dict[int, dict[int, ClientResult]]:
    """By seed and client, the accuracy at the chosen round."""
    found: dict[int, dict[int, ClientResult]] = {}
    for run in runs:
        clients = {}
        for client in run["clients"]:
            if client.get("accuracy") is not None:
                result = ClientResult(client["accuracy"], client["n_test"])
                clients[client["id"]] = result
        found[run.get("seed", 0)] = clients
    return found
