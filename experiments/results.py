"""Run the comparisons in this folder, or go on with them, and write docs/results.md.

    python experiments/results.py [NAME ...] [--methods A,B] [--out runs/results] [--only-write]

Every ``NAME.toml`` is a comparison: methods, seeds, options of ``fedtailor compare``, and the published numbers set
beside ours. What is finished is not run again; what is not finished is left out of the document.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from fedtailor.compare import compare
from fedtailor.folder import JOURNAL, journal
from fedtailor.progress import watcher
from fedtailor.report.board import rows

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
"""


def main() -> None:
    """Run, then write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--methods", help="only these, with commas between; the others can follow later")
    parser.add_argument("--only-write", action="store_true")
    chosen = parser.parse_args()
    files = sorted(HERE.glob("*.toml"))
    for path in files:
        if not chosen.only_write and (not chosen.names or path.stem in chosen.names):
            about = tomllib.loads(path.read_text())
            wanted = chosen.methods.split(",") if chosen.methods else about["methods"]
            for methods, options in groups(about, [m for m in about["methods"] if m in wanted]):
                options["save"] = "none"  # personal models: 260 MB a run on HAR, and nobody asks for them here
                compare(methods, options, about["seeds"], chosen.out / path.stem, watcher(False))
    sections = [section(path, chosen.out / path.stem) for path in files]
    machine = f"{platform.machine()}, {torch.get_num_threads()} cores"
    text = HEAD.format(machine=machine, torch=torch.__version__) + "".join(sections)
    text += (HERE / "findings.md").read_text(encoding="utf-8")
    (HERE.parent / "docs/results.md").write_text(text, encoding="utf-8")


def groups(about: dict[str, Any], methods: list[str]) -> list[tuple[list[str], dict[str, Any]]]:
    """Methods with the options they share; one with options of its own (MOCHA's linear model) stands apart."""
    own = about.get("own", {})
    sets: dict[str, Any] = about["options"].get("set", {})

    def fit(names: list[str], more: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        mine = {k: v for k, v in sets.items() if k.split(".")[0] in names}
        return names, about["options"] | more | {"set": mine}

    together = [m for m in methods if m not in own]
    return ([fit(together, {})] if together else []) + [fit([m], own[m]) for m in methods if m in own]


def section(path: Path, folder: Path) -> str:
    """One comparison as a table, of those methods whose seeds are all there."""
    about = tomllib.loads(path.read_text())
    results: dict[str, list[dict[str, Any]]] = {}
    for method in about["methods"]:
        found = [folder / f"{method}-s{seed}" / "result.json" for seed in range(about["seeds"])]
        if all(p.exists() for p in found):
            results[method] = [json.loads(p.read_text()) for p in found]
    if not results:
        return ""
    papers: dict[str, dict[str, float]] = about.get("published", {})
    shown = [spell(names, options, about["seeds"]) for names, options in groups(about, list(results))]
    lines = [
        f"\n## {about['title']}\n",
        "\n".join(f"    {line}" for line in shown),
        f"\nPublished: {about['paper']}.\n",
        "| method | best | on test | " + "".join(f"{p} | " for p in papers)
        + "last third | std over clients | MB per round |",
        "|---|---:|---:|" + "---:|" * (len(papers) + 3),
    ]  # fmt: skip
    for row in rows(results):
        published = "".join(f"{t[row['method']]:.2f} | " if row["method"] in t else "| " for t in papers.values())
        spread = about["seeds"] > 1
        best, test = (
            f"{100 * a:.2f}" + (f" ± {100 * s:.2f}" if spread else "") for a, s in (row["accuracy"], row["on_test"])
        )
        rise = statistics.fmean(gain(folder / f"{row['method']}-s{seed}") for seed in range(about["seeds"]))
        lines.append(f"| {row['method']} | {best} | {test} | {published}{100 * rise:+.1f} | {row['std'][0]:.3f} | "
                     f"{row['bytes'] / 1e6:.2f} |")  # fmt: skip
    lines += [f"\n{told}" for paper, table in papers.items() if (told := order(paper, table, results))]
    if about.get("remark"):
        lines.append(f"\n{about['remark'].strip()}")
    missing = [m for m in about["methods"] if m not in results]
    if missing:
        lines.append(f"\nNot run yet: {', '.join(missing)}.")
    return "\n".join(lines) + "\n"


def gain(run: Path) -> float:
    """What the last third of the rounds added to the test accuracy: much, where a method has not learned all yet."""
    looks = {r["t"]: r["evaluation"]["test"]["accuracy"] for r in journal(run / JOURNAL) if r.get("evaluation")}
    last = max(looks)
    before = max((t for t in looks if t <= 2 * last / 3), default=last)
    return float(looks[last] - looks[before])


def spell(methods: list[str], options: dict[str, Any], seeds: int) -> str:
    """The command that does the same."""
    given = [(k, v) for k, v in options.items() if k != "set"]
    given += [("set", f"{k}={v}") for k, v in options["set"].items()]
    words = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in given)
    return f"fedtailor compare {' '.join(methods)} {words} --seeds {seeds}"


def order(paper: str, table: dict[str, float], results: dict[str, list[dict[str, Any]]]) -> str:
    """Where our order contradicts a paper's by more than chance.

    Chance: two standard errors of the difference, of seeds or of the finite test sets, whichever is larger.
    """
    ours = {m: [r["accuracy"]["best_on_test"] for r in results[m]] for m in table if m in results}
    pairs = [(a, b) for a, b in combinations(ours, 2) if table[a] != table[b]]
    if not pairs:
        return ""
    against, same = [], 0
    for one, other in pairs:
        high, low = (one, other) if table[one] > table[other] else (other, one)
        gap = statistics.fmean(ours[low]) - statistics.fmean(ours[high])
        same += gap < 0
        errors = []
        for m in (high, low):
            mean, n = statistics.fmean(ours[m]), results[m][0]["views"]["personal"]["n"]
            spread = statistics.variance(ours[m]) / len(ours[m]) if len(ours[m]) > 1 else 0.0
            errors.append(max(spread, mean * (1 - mean) / n))
        if gap > 2 * math.sqrt(sum(errors)):
            against.append(
                f"{low} before {high} by {100 * gap:.1f} points ({paper}: {table[high] - table[low]:.1f} behind)"
            )
    told = f"Pairs of methods in {paper}'s order: {same} of {len(pairs)}. Contradicting it beyond chance: "
    return told + (f"{len(against)}. {'; '.join(against)}." if against else "none.")


if __name__ == "__main__":
    main()
