"""The countable half of the house's style, as assertions."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from fedtailor.method import Method
from fedtailor.methods import find, names

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src/fedtailor")))
def test_files_are_short_and_say_what_they_are(path):
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), (
        "a module begins with one sentence that says what it holds"
    )
    assert len(text.splitlines()) <= 300, "a file of about 250 lines at most holds one thing"
    assert path.stem not in {"utils", "helpers", "common", "base", "manager", "misc"}
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)
    assert not re.search(r"torch\.manual_seed|random\.seed\(", text), (
        "randomness is a value, not a state"
    )


def test_methods_are_found_by_file_name_and_stand_alone():
    for name in names():
        assert find(name).__bases__ == (Method,) or Method in find(name).__bases__


def test_pins_satisfy_the_declared_ranges():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert pins["torch"] == "2.13.0" and pins["flwr"] == "1.41.0"
    for need in declared:
        assert re.match(r"[\w-]+", need).group().lower() in {
            p.lower().replace("_", "-") for p in pins
        }, need
