"""Writes docs/results.md: a table for every comparison, of what is recorded."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import torch

from experiments.comparison import Comparison
from experiments.overview import draw_overview
from experiments.records import Record, measure_difference, read_records
from fedtailor.evaluation.paired import judge

FINDINGS = Path(__file__).parent / "findings.md"
DOCS = Path(__file__).parents[1] / "docs"
HEAD = """# Results

Written by `python -m experiments.results`; run it again to repeat or to go on. Data from
`FEDTAILOR_DATA`.
Machine: {machine}, torch {torch}.

*best* is the personal models' test accuracy at the round that validation data chose, in percent,
mean ± standard deviation over seeds; *on test* is the best round on test data, which is what the
papers print. It is still not the same: unless the command says otherwise ours train on 67.5 % of a
client's samples (a tenth of the 75 % is held out to choose the round), stratified, and the best is
of some ten looks, theirs of up to 2,000; pFedC's and Fed3+2p's papers also look after local
training, the tables here before it. Published numbers come with the published number of rounds and
the whole data sets; ours with the budget stated, which is far smaller: no table here repeats one of
a paper's, and none refutes one. *last third*: how many points
the last third of the rounds added to the test accuracy; a method that still gains much has not had
rounds enough.

Learning rates and constants are the papers' where they give one for that network; where they give
none (FedCP and GPFL on LeNet-5, say) they are our choice, as `fedtailor show METHOD` and the table
in `config.py` say. FedRep's head trains for one epoch a round here, not for its own paper's ten:
the FedRep behind the numbers of FedCP and GPFL took about twice the time of FedPer per round
(FedCP's table of costs: 4.09 and 1.92 minutes), which ten epochs cannot. On HAR FedPer keeps all
three linear layers at home (`layers=3`), as FedRep does and both do behind GPFL's numbers. FedCP's
lambda for networks of no paper is now chosen by validation data (`python -m
experiments.studies.fedcp_lambda`); rows that were run before name theirs in the command
(`fedcp.lam`). MOCHA trains linear models only, so its rows have one. The convolutional networks
have no BatchNorm, and FedBN without it is FedAvg.

Rounds are not equal time: in the first phase of Fed3+2p clients train one after the other in
chains, about the square root of their number in a round, so that after equal rounds its models have
seen that many times as many sequential trainings as the others'. No row here is corrected for it.

Under every table: in how many pairs of methods our order is the paper's, in how many of them
beyond chance, and which pairs contradict it beyond chance. One test says both, with p < 0.05 after
Holm's correction for the number of pairs: paired over seeds and clients at the chosen round where
the records hold them (`by_seed`); where they do not, by t of *on test* with its standard error
(over seeds, or of the finite test sets, whichever is larger), and with one seed nothing is beyond
chance. The rows are kept in `experiments/records/`;
those without `seconds` there are known to the printed digits only.
"""
OVERVIEW = """
![Accuracy of every method in every comparison](pictures/results.png)

*best* of every method in every comparison of eight or more, the best in bold; methods in the order
of how many others are better. All budgets are small: methods that learn fast lead here, and the
findings at the end say which would gain by more.
"""


def write_document(comparisons: dict[str, Comparison]) -> None:
    """Write the document of all that is recorded, and the picture in it."""
    recorded = {}
    for name, comparison in comparisons.items():
        recorded[name] = select_current(comparison, read_records(name))
    machine = f"{platform.machine()}, {torch.get_num_threads()} cores"
    text = HEAD.format(machine=machine, torch=torch.__version__)
    if draw_overview(recorded, DOCS / "pictures/results.png"):
        text += OVERVIEW
    for name, comparison in comparisons.items():
        if recorded[name]:
            text += write_section(comparison, recorded[name])
    text += FINDINGS.read_text(encoding="utf-8")
    (DOCS / "results.md").write_text(text, encoding="utf-8")


def select_current(
    comparison: Comparison, records: dict[str, Record]
) -> dict[str, Record]:
    """The records that were made with the options the comparison has now."""
    current = {}
    for group in comparison.group_methods(comparison.methods):
        for method in group:
            record = records.get(method)
            if record and record.command == comparison.command_for([method]):
                current[method] = record
    return current


def write_section(comparison: Comparison, records: dict[str, Record]) -> str:
    """One comparison as a table of the methods that are recorded."""
    lines = [f"\n## {comparison.title}\n"]
    for group in comparison.group_methods(list(records)):
        lines.append(f"    {comparison.command_for(group)}")
    lines.append(f"\nPublished: {comparison.paper}.\n")
    lines += write_table(comparison, records)
    for paper, published in comparison.published.items():
        order = compare_orders(paper, published, records)
        if order:
            lines.append(f"\n{order}")
    if comparison.remark:
        lines.append(f"\n{comparison.remark.strip()}")
    missing = [method for method in comparison.methods if method not in records]
    if missing:
        lines.append(f"\nNot run yet: {', '.join(missing)}.")
    return "\n".join(lines) + "\n"


def write_table(comparison: Comparison, records: dict[str, Record]) -> list[str]:
    """A line for every method, the most accurate first."""
    titles = ["method", "best", "on test", *comparison.published]
    titles += ["last third", "std over clients", "MB per round"]
    lines = [write_line(titles), "|---|" + "---:|" * (len(titles) - 1)]
    for method in sorted(records, key=lambda method: -records[method].best[0]):
        record = records[method]
        cells = [
            method,
            show_accuracy(record.best, record),
            show_accuracy(record.on_test, record),
        ]
        for published in comparison.published.values():
            cells.append(f"{published[method]:.2f}" if method in published else "")
        cells.append(f"{100 * record.rise:+.1f}")
        cells.append(f"{record.std:.3f}")
        cells.append(f"{record.bytes / 1e6:.2f}")
        lines.append(write_line(cells))
    return lines


def write_line(cells: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def show_accuracy(pair: tuple[float, float], record: Record) -> str:
    """Mean and, where there are several seeds, standard deviation, in percent."""
    mean, deviation = pair
    if record.seeds == 1:
        return f"{100 * mean:.2f}"
    return f"{100 * mean:.2f} ± {100 * deviation:.2f}"


def compare_orders(
    paper: str, published: dict[str, float], records: dict[str, Record]
) -> str:
    """In how many pairs our order is the paper's, and which contradict it by more than chance."""
    pairs = list_pairs(published, records)
    if not pairs:
        return ""
    differences = [measure_difference(records[a], records[b]) for a, b in pairs]
    verdicts = judge(differences)
    contradictions = []
    for (high, low), ours, verdict in zip(pairs, differences, verdicts, strict=True):
        if verdict < 0:
            theirs = published[high] - published[low]
            text = f"{low} before {high} by {-100 * ours.mean:.1f} points"
            contradictions.append(f"{text} ({paper}: {theirs:.1f} behind)")
    same = sum(difference.mean > 0 for difference in differences)
    text = f"Pairs of methods in {paper}'s order: {same} of {len(pairs)},"
    text += f" {verdicts.count(1)} of them beyond chance. "
    text += "Contradicting it beyond chance: "
    if not contradictions:
        return f"{text}none."
    return f"{text}{len(contradictions)}. {'; '.join(contradictions)}."


def list_pairs(
    published: dict[str, float], records: dict[str, Record]
) -> list[tuple[str, str]]:
    """Pairs of recorded methods that a paper tells apart, the paper's better one first."""
    known = [method for method in published if method in records]
    pairs = []
    for one, other in combinations(known, 2):
        if published[one] > published[other]:
            pairs.append((one, other))
        elif published[one] < published[other]:
            pairs.append((other, one))
    return pairs
