"""All that a page holds, as one value for JSON."""

from __future__ import annotations

from typing import Any

from fedtailor._version import __version__
from fedtailor.report.story import (
    about_runs,
    clients,
    curves,
    diagnostics,
    gains,
    standings,
)
from fedtailor.report.story.headline import compose_headline
from fedtailor.report.story.reported_runs import Reported

PIXELS = {
    "solid": "",
    "dashed": "7 4",
    "dotted": "2 4",
    "dashdot": "8 3 2 3",
}


def compose_content(reported: Reported, title: str = "") -> dict[str, Any]:
    """What the page shows, in its order."""
    headline = compose_headline(reported)
    return {
        "title": title or compose_title(reported),
        "subtitle": compose_subtitle(reported),
        "version": __version__,
        "measure": reported.measure.name,
        "measures": standings.compose_measures(reported),
        "methods": list_methods(reported),
        "headline": headline._asdict(),
        "gains": gains.compose_gains(reported),
        "leaderboard": standings.compose_leaderboard(reported),
        "differences": standings.compose_differences(reported),
        "views": standings.compose_views(reported),
        "curves": curves.compose_curves(reported),
        "events": curves.compose_events(reported.groups),
        "heat": clients.compose_heat_maps(reported),
        "fairness": clients.compose_fairness(reported),
        "partitions": clients.compose_partitions(reported),
        "cost": clients.compose_cost(reported),
        "diagnostics": diagnostics.compose_diagnostics(reported),
        "privacy": about_runs.compose_privacy(reported),
        "settings": about_runs.compose_settings(reported),
        "commands": about_runs.compose_commands(reported),
        "versions": about_runs.compose_versions(reported),
        "messages": about_runs.compose_messages(reported),
        "losses": about_runs.compose_losses(reported),
        "folders": about_runs.list_folders(reported),
    }


def list_methods(reported: Reported) -> list[dict[str, str]]:
    """Every group with its name, its colour, its line and its mark."""
    found = []
    for group in reported.groups:
        style = reported.styles[group.label]
        about = {"id": group.label, "name": group.title, "colour": style.colour}
        look = {"dash": PIXELS[style.line], "mark": style.mark}
        found.append({**about, **look})
    return found


def compose_title(reported: Reported) -> str:
    """``FedPer on digits``, or how many methods there are."""
    data = list(
        dict.fromkeys(
            str(result["data"]) for group in reported.groups for result in group.results
        )
    )
    names = [group.title for group in reported.groups]
    who = names[0] if len(names) == 1 else f"{len(names)} methods"
    return f"{who} on {', '.join(data)}"


def compose_subtitle(reported: Reported) -> str:
    """Clients, network, rounds, seeds."""
    first = reported.groups[0].runs[0]
    count = len(first.result["clients"])
    rounds = sorted({run.result["rounds"] for g in reported.groups for run in g.runs})
    seeds = sorted({run.seed for g in reported.groups for run in g.runs})
    told_rounds = " to ".join(map(str, dict.fromkeys([rounds[0], rounds[-1]])))
    told_seeds = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    clients_told = f"{count} client" if count == 1 else f"{count} clients"
    return f"{clients_told} · {first.result['model']} · {told_rounds} rounds · {told_seeds}"
