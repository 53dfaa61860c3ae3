"""Run the comparisons in this folder, or go on with them, and write docs/results.md.

    python -m experiments.results [NAME ...] [--methods A,B] [--out runs/results] [--again]
                                  [--only-write]

Every ``comparisons/NAME.toml`` is a comparison: methods, seeds, options of ``fedtailor compare``,
and the published numbers set beside ours. A method whose seeds are finished is recorded in
``records/`` and not run again (``--again`` does); what is not finished is left out of the document,
and goes on from ``--out``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from pathlib import Path

from experiments.comparison import Comparison, read_comparisons
from experiments.document import write_document
from experiments.records import read_records, save_record, summarise_runs
from fedtailor.core.errors import UserError
from fedtailor.engine.compare import compare
from fedtailor.engine.stopping import Stopped
from fedtailor.methods import names
from fedtailor.report.console import make_console


def main(words: list[str] | None = None) -> None:
    """Run, then write; the document is written after every method, as runs take hours."""
    comparisons = read_comparisons()
    chosen = parse_arguments(words, comparisons)
    wanted = chosen.names or list(comparisons)
    if chosen.only_write:
        wanted = []
    for name in wanted:
        comparison = comparisons[name]
        methods = chosen.methods or comparison.methods
        methods = [method for method in comparison.methods if method in methods]
        for group in comparison.group_methods(methods):
            for method in group:
                if not chosen.again and is_recorded(name, comparison, method):
                    continue
                run_method(name, comparison, method, chosen.out / name)
                write_document(comparisons)
    write_document(comparisons)


def parse_arguments(
    words: list[str] | None, comparisons: Collection[str]
) -> argparse.Namespace:
    """The options given on the command line; names that do not exist are refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add(
        "names",
        nargs="*",
        help="comparisons: the files in comparisons/ without .toml (all)",
    )
    add("--out", type=Path, default=Path("runs/results"))
    add(
        "--methods",
        default="",
        help="only these, with commas between; the others can follow",
    )
    again = "record again what is recorded; what --out has is not run again"
    add("--again", action="store_true", help=again)
    add("--only-write", action="store_true")
    chosen = parser.parse_args(words)
    chosen.methods = chosen.methods.split(",") if chosen.methods else []
    check_names(parser, chosen.names, comparisons)
    check_names(parser, chosen.methods, names())
    return chosen


def check_names(
    parser: argparse.ArgumentParser, given: Collection[str], known: Collection[str]
) -> None:
    """Refuse a name that is not known."""
    for name in given:
        if name not in known:
            parser.error(f"there is no {name}; there are {', '.join(known)}")


def is_recorded(name: str, comparison: Comparison, method: str) -> bool:
    """Whether a method is recorded with the options the comparison has now."""
    record = read_records(name).get(method)
    return record is not None and record.command == comparison.command_for([method])


def run_method(name: str, comparison: Comparison, method: str, folder: Path) -> None:
    """Run a method with all its seeds and record it."""
    # personal models are not kept: 260 MB a run on HAR, and nothing here needs them
    options = comparison.options_for([method]) | {"save": "none"}
    seeds = comparison.seeds
    console = make_console(False)
    results = compare([method], options, seeds, folder, lambda _: [console])
    runs = [folder / f"{method}-s{seed}" for seed in range(seeds)]
    command = comparison.command_for([method])
    record = summarise_runs(command, results[method], runs)
    save_record(name, method, record)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
    except Stopped:
        sys.exit("stopped; the same command goes on from here")
