"""The first thing that a report says: one sentence of result, with its uncertainty."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from fedtailor.report.comparison_tables import LOCAL
from fedtailor.report.headline import quoted
from fedtailor.report.measures import Measure
from fedtailor.report.story.gains import (
    ONE_MODEL,
    GroupGain,
    find_references,
    measure_gains,
    tell_clients,
    tell_gain,
)
from fedtailor.report.story.reported_runs import (
    Group,
    Reported,
    ReportedRun,
    chosen_result,
    mean_result,
)


class Headline(NamedTuple):
    """The sentence, and what must be known beside it."""

    sentence: str
    remarks: list[str]


def compose_headline(reported: Reported) -> Headline:
    """The most accurate federated method, against training alone where there is that."""
    federated = [group for group in reported.groups if group.method != LOCAL]
    first = federated[0] if federated else reported.groups[0]
    measure = reported.measure
    references = find_references(reported)
    remarks = []
    sentence = f"{tell_result(first, measure)}."
    alone = references.get(LOCAL)
    gain = None
    if alone is not None and alone is not first:
        gain = _find_gain(reported, alone, first)
    if gain is not None:
        sentence = compose_sentence(first, gain, measure)
        remarks += tell_correction(first, gain, len(federated))
    elif first.method != LOCAL:
        remarks.append(tell_missing(alone is not None))
    common = references.get(ONE_MODEL)
    if common is not None and common is not first:
        over_one = _find_gain(reported, common, first)
        if over_one is not None:
            text = tell_gain(over_one, measure, "FedAvg's one model for all")
            remarks.append(f"{first.title} is {text}.")
    remarks += tell_how_many(first)
    return Headline(sentence, remarks)


def compose_sentence(first: Group, gain: GroupGain, measure: Measure) -> str:
    """The result and what it is worth against training alone; also where it is worth nothing."""
    result = tell_result(first, measure)
    versus = tell_gain(gain, measure, "training alone")
    clients = tell_clients(gain)
    if gain.difference.mean > 0:
        return f"{result}, {versus}; {clients}."
    if gain.is_certain:
        return f"Federation does not pay here: {result}, {versus}; {clients}."
    return f"Federation shows no gain here: {result}, {versus}; {clients}."


def tell_result(group: Group, measure: Measure) -> str:
    """What the personal models of a method achieve."""
    values = [chosen_result(result) for result in group.results]
    known = [value for value in values if value is not None]
    if not known:
        return f"{group.title} has no test data to tell a result by"
    value = measure.show(mean_result(group))
    deviation = ""
    if len(known) > 1:
        spread = measure.show(statistics.stdev(known)).removesuffix(" %")
        deviation = f" (± {spread} over {len(known)} seeds)"
    if measure.name == "accuracy":
        who = "clients trained alone" if group.method == LOCAL else "personal models"
        return f"{group.title}'s {who} are right in {value} of cases{deviation}"
    return (
        f"{group.title}'s personal models reach a {measure.label} of {value}{deviation}"
    )


def tell_correction(first: Group, gain: GroupGain, count: int) -> list[str]:
    """What choosing the best of several methods does to the interval."""
    if count < 2:
        return []
    text = (
        f"{first.title} is the best of {count} federated methods on these very test data,"
        " so that its result is somewhat flattered."
    )
    if gain.is_certain and not gain.survives_correction:
        text += (
            f" Corrected for that many comparisons (Holm) the difference may be chance:"
            f" p = {gain.corrected:.2f}."
        )
    return [text]


def tell_missing(has_local: bool) -> str:
    """Why there is no gain to tell."""
    if has_local:
        return "Training alone was run on other data or other seeds, so that no gain can be told."
    return (
        "Clients that train alone are not among these runs, so that no gain can be told:"
        " `fedtailor compare local METHOD` runs both on the same data."
    )


def tell_how_many(group: Group) -> list[str]:
    """What the uncertainty does not cover."""
    remarks = []
    if len(group.runs) == 1:
        remarks.append(
            "One seed only: intervals hold for other clients of this kind, not for other runs."
        )
    if any(not chose_a_round(run) for run in group.runs):
        remarks.append(
            "There were no validation data to choose a round by: results are those of the"
            " last round."
        )
    return remarks


def chose_a_round(run: ReportedRun) -> bool:
    """Whether validation data chose the round that is told."""
    return quoted(run.result)["best"] is not None


def _find_gain(reported: Reported, reference: Group, group: Group) -> GroupGain | None:
    for gain in measure_gains(reported, reference):
        if gain.label == group.label:
            return gain
    return None
