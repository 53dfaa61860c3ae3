"""How much a reader has to take in per line of code, room by room.

    python tools/density.py                      # a row for every room of the repository
    python tools/density.py src/fedtailor/data   # a row for every folder in there
    python tools/density.py --worst 20           # the densest files and functions
    python tools/density.py --places             # where the counted things are
    python tools/density.py --check              # fail if a room is denser than it may be

A code line is a line with a token outside docstrings and comments. An f-string is one token.
Counted besides:

* parallel assignments, a tuple on both sides of ``=``; a swap (``a, b = b, a``) is none;
* conditional expressions with another one inside;
* functions of more than 40 lines, docstring included;
* lines of more than 100 characters, docstrings and comments included.
"""

from __future__ import annotations

import argparse
import ast
import io
import math
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fedtailor"
OTHER_ROOMS = ("benchmarks", "experiments", "tools")

# What --check allows. These numbers may only go down.
TOKENS_PER_LINE = 9.0
ALLOWANCES: dict[str, float] = {}  # rooms that may have more
BUDGETS = {  # of all rooms together
    "parallel": 0,
    "nested": 0,
    "long": 5,  # the round loop, vmap, two commands' and one function's many options
    "wide": 0,
}

LONGEST_FUNCTION = 40  # lines
WIDEST_LINE = 100  # characters
FEWEST_LINES_OF_A_FILE = 15  # code lines of a file or function that --worst looks at
FEWEST_LINES_OF_A_FUNCTION = 5

NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
# Python 3.12 splits f-strings into tokens
STRING_STARTS = (
    "FSTRING_START",
    "TSTRING_START",
)
STRING_ENDS = ("FSTRING_END", "TSTRING_END")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)


@dataclass
class Measure:
    """Code lines, their tokens, and the places of what is counted."""

    lines: int = 0
    tokens: int = 0
    places: dict[str, list[str]] = field(
        default_factory=lambda: {kind: [] for kind in BUDGETS}
    )

    @property
    def tokens_per_line(self) -> float:
        """Tokens on an average code line."""
        return self.tokens / max(self.lines, 1)

    def count(self, kind: str) -> int:
        """How many places of a kind there are."""
        return len(self.places[kind])

    def add(self, other: Measure) -> None:
        """Take another measure in."""
        self.lines += other.lines
        self.tokens += other.tokens
        for kind, places in other.places.items():
            self.places[kind].extend(places)


@dataclass(frozen=True)
class DensityRow:
    """A file or a function with its tokens per line."""

    tokens_per_line: float
    lines: int
    name: str


def measure_source(source: str, name: str = "") -> Measure:
    """Measure one file's text; places are given as ``name:line``."""
    tree = ast.parse(source)
    tokens = count_tokens(source, find_docstring_lines(tree))
    found = {
        "parallel": find_lines(tree, is_parallel_assignment),
        "nested": find_lines(tree, is_nested_conditional),
        "long": find_lines(tree, is_long_function),
        "wide": find_wide_lines(source),
    }
    measure = Measure(lines=len(tokens), tokens=sum(tokens.values()))
    for kind, lines in found.items():
        measure.places[kind] = [f"{name}:{line}" for line in lines]
    return measure


def count_tokens(source: str, docstring_lines: set[int]) -> dict[int, int]:
    """Tokens of every line that has code; a string of several lines counts on its first line."""
    tokens: dict[int, int] = {}
    depth = 0  # of f-strings in f-strings
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in STRING_ENDS:
            depth -= 1
        inside_string = depth > 0
        if kind in STRING_STARTS:
            depth += 1
        line = token.start[0]
        if token.type in NOT_CODE or line in docstring_lines:
            continue
        for covered in range(line, token.end[0] + 1):
            tokens.setdefault(covered, 0)
        if not inside_string and kind not in STRING_ENDS:
            tokens[line] += 1
    return tokens


def find_docstring_lines(tree: ast.AST) -> set[int]:
    """The lines that docstrings stand on."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, DOCUMENTED):
            continue
        if ast.get_docstring(node, clean=False) is None:
            continue
        docstring = node.body[0]
        lines.update(range(docstring.lineno, last_line(docstring) + 1))
    return lines


def find_lines(tree: ast.AST, is_counted: Callable[[ast.AST], bool]) -> list[int]:
    """The lines on which what is counted begins."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr)]
    return [node.lineno for node in nodes if is_counted(node)]


def is_parallel_assignment(node: ast.AST) -> bool:
    """``a, b = x, y``, unless it swaps."""
    if not isinstance(node, ast.Assign):
        return False
    value = node.value
    if not isinstance(value, ast.Tuple):
        return False
    targets = [target for target in node.targets if isinstance(target, ast.Tuple)]
    return any(not is_swap(target, value) for target in targets)


def is_swap(target: ast.Tuple, value: ast.Tuple) -> bool:
    """Whether the same expressions stand on both sides, in another order."""
    left = [ast.unparse(element) for element in target.elts]
    right = [ast.unparse(element) for element in value.elts]
    return sorted(left) == sorted(right)


def is_nested_conditional(node: ast.AST) -> bool:
    """``a if x else (b if y else c)`` and the like."""
    if not isinstance(node, ast.IfExp):
        return False
    inner = [child for child in ast.walk(node) if child is not node]
    return any(isinstance(child, ast.IfExp) for child in inner)


def is_long_function(node: ast.AST) -> bool:
    """More lines from ``def`` to the last statement than a function should have."""
    if not isinstance(node, FUNCTIONS):
        return False
    return last_line(node) - node.lineno + 1 > LONGEST_FUNCTION


def find_wide_lines(source: str) -> list[int]:
    """Numbers of the lines that are too wide."""
    lines = source.splitlines()
    return [number for number, line in enumerate(lines, 1) if len(line) > WIDEST_LINE]


def last_line(node: ast.stmt) -> int:
    """The number of a statement's last line."""
    return node.end_lineno or node.lineno


def find_rooms(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """Python files by room.

    Without folders, these are the rooms of the package and what stands beside it; otherwise the
    folders in the given ones. Files in no deeper folder are the room ``interface`` of the package,
    or have the given folder's name.
    """
    if folders:
        return find_folders(folders)
    rooms = find_folders([PACKAGE])
    rooms["interface"] = rooms.pop(PACKAGE.name)
    for name in OTHER_ROOMS:
        rooms[name] = sorted((ROOT / name).rglob("*.py"))
    return rooms


def find_folders(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """Python files by the folder in one of ``folders`` that they are in."""
    found: dict[str, list[Path]] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            inner, *rest = path.relative_to(folder).parts
            name = inner if rest else folder.resolve().name
            found.setdefault(name, []).append(path)
    return found


def measure_files(paths: Iterable[Path]) -> Measure:
    """The sum over files."""
    total = Measure()
    for path in paths:
        source = path.read_text(encoding="utf-8")
        total.add(measure_source(source, shorten_path(path)))
    return total


def shorten_path(path: Path) -> str:
    """A path from the repository's folder on, where it is in there."""
    whole = path.resolve()
    if whole.is_relative_to(ROOT):
        return str(whole.relative_to(ROOT))
    return str(path)


def show_table(measures: dict[str, Measure], total: Measure) -> str:
    """A row for every room, and one for all."""
    kinds = "".join(f"{kind:>10}" for kind in BUDGETS)
    rows = [f"{'room':12}{'code lines':>12}{'tokens/line':>13}{kinds}"]
    for name, measure in [*sorted(measures.items()), ("all", total)]:
        counts = "".join(f"{measure.count(kind):>10}" for kind in BUDGETS)
        rows.append(
            f"{name:12}{measure.lines:>12}{measure.tokens_per_line:>13.2f}{counts}"
        )
    return "\n".join(rows)


def list_dense_files(paths: Iterable[Path]) -> list[DensityRow]:
    """Files, the densest first."""
    found = []
    for path in paths:
        measure = measure_files([path])
        if measure.lines >= FEWEST_LINES_OF_A_FILE:
            found.append(
                DensityRow(measure.tokens_per_line, measure.lines, shorten_path(path))
            )
    return sorted(found, key=lambda row: -row.tokens_per_line)


def list_dense_functions(paths: Iterable[Path]) -> list[DensityRow]:
    """Functions, the densest first; an inner function counts in the outer one, too."""
    found: list[DensityRow] = []
    for path in paths:
        found.extend(measure_functions(path))
    return sorted(found, key=lambda row: -row.tokens_per_line)


def measure_functions(path: Path) -> Iterator[DensityRow]:
    """Every function of a file that is not too short to tell."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    tokens = count_tokens(source, find_docstring_lines(tree))
    for node in ast.walk(tree):
        if not isinstance(node, FUNCTIONS):
            continue
        numbers = range(node.lineno, last_line(node) + 1)
        own = [tokens[number] for number in numbers if number in tokens]
        if len(own) < FEWEST_LINES_OF_A_FUNCTION:
            continue
        name = f"{shorten_path(path)}:{node.lineno} {node.name}"
        yield DensityRow(sum(own) / len(own), len(own), name)


def show_worst(paths: list[Path], many: int) -> str:
    """The densest files and functions."""
    rows = ["", "densest files (tokens/line, code lines)"]
    for row in list_dense_files(paths)[:many]:
        rows.append(f"{row.tokens_per_line:8.2f}{row.lines:6}  {row.name}")
    rows += ["", "densest functions"]
    for row in list_dense_functions(paths)[:many]:
        rows.append(f"{row.tokens_per_line:8.2f}{row.lines:6}  {row.name}")
    return "\n".join(rows)


def show_places(total: Measure) -> str:
    """Where everything that is counted stands."""
    rows: list[str] = []
    for kind, places in total.places.items():
        rows += ["", f"{kind}: {len(places)}", *(f"  {place}" for place in places)]
    return "\n".join(rows)


def find_faults(measures: dict[str, Measure], total: Measure) -> list[str]:
    """What exceeds the limits at the top of this file."""
    faults = []
    for name, measure in sorted(measures.items()):
        allowed = ALLOWANCES.get(name, TOKENS_PER_LINE)
        tokens = round(measure.tokens_per_line, 2)
        if tokens > allowed:
            faults.append(f"{name} has {tokens} tokens a line, {allowed} are allowed")
    for kind, budget in BUDGETS.items():
        count = total.count(kind)
        if count > budget:
            faults.append(f"{kind}: {count} in all rooms, {budget} are allowed")
    return faults


def find_slack(measures: dict[str, Measure], total: Measure) -> list[str]:
    """Limits that can be lowered, so that what was gained is not lost again."""
    slack = []
    for name, allowed in ALLOWANCES.items():
        tokens = measures[name].tokens_per_line if name in measures else 0.0
        needed = max(math.ceil(10 * tokens) / 10, TOKENS_PER_LINE)
        if needed < allowed:
            slack.append(f"{name} {allowed} -> {needed}")
    for kind, budget in BUDGETS.items():
        count = total.count(kind)
        if count < budget:
            slack.append(f"{kind} {budget} -> {count}")
    return slack


def check(measures: dict[str, Measure], total: Measure) -> int:
    """Print what is too much, or which limits can be lowered; the exit code."""
    faults = find_faults(measures, total)
    if faults:
        for fault in faults:
            print(f"too dense: {fault}")
        print("python tools/density.py --worst 20 --places says where")
        return 1
    slack = find_slack(measures, total)
    if slack:
        print(f"limits in tools/density.py that can be lowered: {', '.join(slack)}")
    return 0


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    """The options given on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folders", nargs="*", type=Path, help="measure these (the repository)"
    )
    parser.add_argument(
        "--worst", type=int, default=0, help="list so many files and functions"
    )
    parser.add_argument(
        "--places", action="store_true", help="list where the counted things are"
    )
    parser.add_argument("--check", action="store_true", help="fail above the limits")
    chosen = parser.parse_args(words)
    if chosen.check and chosen.folders:
        parser.error("--check measures the whole repository")
    return chosen


def main(words: list[str] | None = None) -> int:
    """Measure, print, and check if asked to."""
    chosen = parse_arguments(words)
    rooms = find_rooms(chosen.folders)
    measures = {name: measure_files(paths) for name, paths in rooms.items()}
    total = Measure()
    for measure in measures.values():
        total.add(measure)
    print(show_table(measures, total))
    if chosen.worst:
        paths = [path for room in rooms.values() for path in room]
        print(show_worst(paths, chosen.worst))
    if chosen.places:
        print(show_places(total))
    if chosen.check:
        return check(measures, total)
    return 0


if __name__ == "__main__":
    sys.exit(main())
