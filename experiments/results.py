"""Run the comparisons in this folder, or go on with them, and write docs/results.md.

    python experiments/results.py [NAME ...] [--methods A,B] [--out runs/results] [--again] [--only-write]

Every ``NAME.toml`` is a comparison: methods, seeds, options of ``fedtailor compare``, and the published numbers set
beside ours. A method whose seeds are finished is recorded in ``records/`` and not run again (``--again`` does); what is
not finished is left out of the document, and goes on from ``--out``.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import overview
import records
import torch
from records import Record

from fedtailor.core.errors import UserError
from fedtailor.engine.compare import compare
from fedtailor.report.console import watcher
from fedtailor.engine.stopping import Stopped
from fedtailor.methods import names

HERE = Path(__file__).parent
HEAD = """# Results

Written by `python experiments/results.py`; run it again to repeat or to go on. Data from `FEDTAILOR_DATA`.
Machine: {machine}, torch {torch}. *best* is the personal models' test accuracy at the round that validation data
chose, in percent, mean ± standard deviation over seeds; *on test* is the best round on test data, which is what the
papers print and the only number to set beside theirs. Published numbers come with the published number of rounds and
the whole data sets; ours with the budget stated. *last third*: how many points the last third of the rounds added to
the test accuracy; a method that still gains much has not had rounds enough.

Learning rates and constants are the papers' where they give one for that network; where they give none (FedCP and
GPFL on LeNet-5, say) they are our choice, as `fedtailor show METHOD` and the table in `config.py` say. FedRep's head
trains for one epoch a round here, not for its own paper's ten: the FedRep behind the numbers of FedCP and GPFL took
about twice the time of FedPer per round (FedCP's table of costs: 4.09 and 1.92 minutes), which ten epochs cannot.
On HAR FedPer keeps all three linear layers at home (`layers=3`), as FedRep does and both do behind GPFL's numbers.
FedCP's lambda for networks of no paper was chosen after a look at test accuracies on digits. MOCHA trains linear
models only, so its rows have one. The convolutional networks have no BatchNorm, and FedBN without it is FedAvg.

Under every table: in how many pairs of methods our order (*on test*) is the paper's, and which pairs contradict it by
more than two standard errors of their difference (over seeds, or of the finite test sets, whichever is larger).
The rows are kept in `experiments/records/`; those without `seconds` there are known to the printed digits only.
"""
OVERVIEW = """
![Accuracy of every method in every comparison](pictures/results.png)

*best* of every method in every comparison of eight or more, the best in bold; methods in the order of how many others
stand before them. All budgets are small: whoever learns fast leads here, and the findings at the end say who would
gain by more.
"""


def main() -> None:
    """Run, then write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="comparisons: the files here without .toml (all)")
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument(
        "--methods", help="only these, with commas between; the others can follow later"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="record again what is recorded; what --out has is not run again",
    )
    parser.add_argument("--only-write", action="store_true")
    chosen = parser.parse_args()
    wanted = chosen.methods.split(",") if chosen.methods else []
    comparisons = {
        path.stem: tomllib.loads(path.read_text()) for path in sorted(HERE.glob("*.toml"))
    }
    for word, known in [*((w, comparisons) for w in chosen.names), *((w, names()) for w in wanted)]:
        if word not in known:
            parser.error(f"there is no {word}; there are {', '.join(known)}")
    for name in [] if chosen.only_write else chosen.names or comparisons:
        about = comparisons[name]
        for methods, options in groups(
            about, [m for m in about["methods"] if not wanted or m in wanted]
        ):
            for method in methods:
                if catch_up(
                    name,
                    method,
                    alone([method], options),
                    about["seeds"],
                    chosen.out / name,
                    chosen.again,
                ):
                    write(comparisons)
    write(comparisons)


def catch_up(
    name: str, method: str, options: dict[str, Any], seeds: int, folder: Path, again: bool
) -> bool:
    """Run a method with all its seeds and record it, unless it is recorded; whether it was not."""
    command = spell([method], options, seeds)
    known = records.read(name).get(method)
    if known and known.command == command and not again:
        return False
    # personal models are not kept: 260 MB a run on HAR, and nobody asks for them here
    results = compare([method], options | {"save": "none"}, seeds, folder, watcher(False))[method]
    runs = [folder / f"{method}-s{seed}" for seed in range(seeds)]
    records.keep(name, method, records.condense(command, results, runs))
    return True


def write(comparisons: dict[str, dict[str, Any]]) -> None:
    """The document, of all that is recorded, and the picture in it."""
    known = {name: current(about, records.read(name)) for name, about in comparisons.items()}
    machine = f"{platform.machine()}, {torch.get_num_threads()} cores"
    text = HEAD.format(machine=machine, torch=torch.__version__)
    if overview.draw(known, HERE.parent / "docs/pictures/results.png"):
        text += OVERVIEW
    text += "".join(section(about, known[name]) for name, about in comparisons.items())
    text += (HERE / "findings.md").read_text(encoding="utf-8")
    (HERE.parent / "docs/results.md").write_text(text, encoding="utf-8")


def current(about: dict[str, Any], known: dict[str, Record]) -> dict[str, Record]:
    """What is recorded of a comparison with the options it has now."""
    commands = {
        m: spell([m], alone([m], options), about["seeds"])
        for group, options in groups(about, about["methods"])
        for m in group
    }
    return {
        m: known[m] for m, command in commands.items() if m in known and known[m].command == command
    }


def groups(about: dict[str, Any], methods: list[str]) -> list[tuple[list[str], dict[str, Any]]]:
    """Methods with the options they share; one with options of its own (MOCHA's linear model) stands apart."""
    own = about.get("own", {})
    together = [m for m in methods if m not in own]
    sets = [(together, {}), *(([m], own[m]) for m in methods if m in own)]
    return [(group, alone(group, about["options"] | more)) for group, more in sets if group]


def alone(methods: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """The options without what is set for other methods."""
    return options | {
        "set": {k: v for k, v in options.get("set", {}).items() if k.split(".")[0] in methods}
    }


def section(about: dict[str, Any], known: dict[str, Record]) -> str:
    """One comparison as a table, of the methods that are recorded."""
    if not known:
        return ""
    papers: dict[str, dict[str, float]] = about.get("published", {})
    shown = [spell(group, options, about["seeds"]) for group, options in groups(about, list(known))]
    lines = [
        f"\n## {about['title']}\n",
        "\n".join(f"    {line}" for line in shown),
        f"\nPublished: {about['paper']}.\n",
        "| method | best | on test | "
        + "".join(f"{p} | " for p in papers)
        + "last third | std over clients | MB per round |",
        "|---|---:|---:|" + "---:|" * (len(papers) + 3),
    ]
    for method, r in sorted(known.items(), key=lambda item: -item[1].best[0]):
        published = "".join(f"{t[method]:.2f} | " if method in t else "| " for t in papers.values())
        best, test = (
            f"{100 * a:.2f}" + (f" ± {100 * s:.2f}" if r.seeds > 1 else "")
            for a, s in (r.best, r.on_test)
        )
        lines.append(
            f"| {method} | {best} | {test} | {published}{100 * r.rise:+.1f} | {r.std:.3f} | {r.bytes / 1e6:.2f} |"
        )
    lines += [
        f"\n{told}" for paper, table in papers.items() if (told := order(paper, table, known))
    ]
    if about.get("remark"):
        lines.append(f"\n{about['remark'].strip()}")
    missing = [m for m in about["methods"] if m not in known]
    if missing:
        lines.append(f"\nNot run yet: {', '.join(missing)}.")
    return "\n".join(lines) + "\n"


def spell(methods: list[str], options: dict[str, Any], seeds: int) -> str:
    """The command that does the same."""
    given = [(k, v) for k, v in options.items() if k != "set"]
    given += [("set", f"{k}={v}") for k, v in options["set"].items()]
    words = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in given)
    return f"fedtailor compare {' '.join(methods)} {words} --seeds {seeds}"


def order(paper: str, table: dict[str, float], known: dict[str, Record]) -> str:
    """Where our order contradicts a paper's by more than chance."""
    pairs = [
        (a, b) for a, b in combinations([m for m in table if m in known], 2) if table[a] != table[b]
    ]
    if not pairs:
        return ""
    against, same = [], 0
    for one, other in pairs:
        high, low = (one, other) if table[one] > table[other] else (other, one)
        gap = known[low].on_test[0] - known[high].on_test[0]
        same += gap < 0
        if records.contradicts(known[high], known[low]):
            against.append(
                f"{low} before {high} by {100 * gap:.1f} points ({paper}: {table[high] - table[low]:.1f} behind)"
            )
    told = f"Pairs of methods in {paper}'s order: {same} of {len(pairs)}. Contradicting it beyond chance: "
    return told + (f"{len(against)}. {'; '.join(against)}." if against else "none.")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
    except Stopped:
        sys.exit("stopped; the same command goes on from here")
