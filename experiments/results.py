"""Run the comparisons in this folder, or go on with them, and write docs/results.md.

    python experiments/results.py [NAME ...] [--out runs/results] [--only-write]

Every ``NAME.toml`` is a comparison: methods, seeds, options of ``fedtailor compare``, and the published numbers set
beside ours. What is finished is not run again; what is not finished is left out of the document.
"""

from __future__ import annotations

import argparse
import json
import platform
import tomllib
from pathlib import Path
from typing import Any

import torch

from fedtailor.compare import compare
from fedtailor.progress import watcher
from fedtailor.report.board import rows

HERE = Path(__file__).parent
HEAD = """# Results

Written by `python experiments/results.py`; run it again to repeat or to go on. Data from `FEDTAILOR_DATA`.
Machine: {machine}, torch {torch}. *best* is the personal models' test accuracy at the round that validation data
chose, in percent, mean ± standard deviation over seeds; *on test* is the best round on test data, which is what the
papers print and the only number to set beside theirs. Published numbers come with the published number of rounds and
the whole data sets; ours with the budget stated. Learning rates and constants are the papers' where they give one for
that network; where they give none (FedCP and GPFL on LeNet-5, say) they are our choice, as `fedtailor show METHOD` and
the table in `config.py` say. FedRep's head trains for one epoch a round here, not for its own paper's ten: the FedRep
behind the numbers of FedCP and GPFL took about twice the time of FedPer per round (FedCP's table of costs: 4.09 and
1.92 minutes), which ten epochs cannot. FedCP's lambda for networks of no paper was chosen after a look at test accuracies on
digits, which is in none of these tables.
"""


def main() -> None:
    """Run, then write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--only-write", action="store_true")
    chosen = parser.parse_args()
    files = sorted(HERE.glob("*.toml"))
    for path in files:
        if not chosen.only_write and (not chosen.names or path.stem in chosen.names):
            about = tomllib.loads(path.read_text())
            compare(about["methods"], about["options"], about["seeds"], chosen.out / path.stem, watcher(False))
    sections = [section(path, chosen.out / path.stem) for path in files]
    machine = f"{platform.machine()}, {torch.get_num_threads()} cores"
    text = HEAD.format(machine=machine, torch=torch.__version__) + "".join(sections)
    text += (HERE / "findings.md").read_text(encoding="utf-8")
    (HERE.parent / "docs/results.md").write_text(text, encoding="utf-8")


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
    given = [(k, v) for k, v in about["options"].items() if k != "set"]
    given += [("set", f"{k}={v}") for k, v in about["options"].get("set", {}).items()]
    options = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in given)
    lines = [
        f"\n## {about['title']}\n",
        f"`fedtailor compare {' '.join(about['methods'])} {options} --seeds {about['seeds']}`\n",
        f"Published: {about['paper']}.\n",
        "| method | best | on test | published | std over clients | MB per round | s per round |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows(results):
        published = about.get("published", {}).get(row["method"], "")
        best, test = (f"{100 * a:.2f} ± {100 * s:.2f}" for a, s in (row["accuracy"], row["on_test"]))
        lines.append(f"| {row['method']} | {best} | {test} | {published} | {row['std'][0]:.3f} | "
                     f"{row['bytes'] / 1e6:.2f} | {row['seconds']:.2f} |")  # fmt: skip
    if about.get("remark"):
        lines.append(f"\n{about['remark']}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
