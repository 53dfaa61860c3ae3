"""The floor plan and the countable half of the style, as tests: one case a rule.

A room (a folder of ``src/fedtailor``, or a file of the interface) imports from the floors below it
and from itself. ``docs/architecture.md`` describes the same floors.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from fedtailor.deploy.code_digests import ENGINE
from fedtailor.method import Method
from fedtailor.methods import find, names

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/fedtailor"
DOCS = ROOT / "docs/architecture.md"

FLOORS: list[set[str]] = [
    {"core"},
    {"storage", "data", "models"},
    {"training", "maths", "export"},
    {"client"},
    {"method"},
    {"methods", "evaluation", "filters"},
    {"executors"},
    {"experiment"},
    {"engine"},
    {"testing", "deploy", "audit", "serving"},
    {"report"},
    {"api"},
    {"cli"},
]
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
# Files of the root that belong to another room, and those that belong to none.
PART_OF = {
    "method_types": "method",
    "__init__": "api",
    "__main__": "cli",
}
ANYONE_MAY_IMPORT = {"_version"}

METHODS_MAY_IMPORT = {"core", "models", "training", "maths", "client", "method"}
ENGINE_MAY_NOT_IMPORT = {"methods"}  # methods come in as values

# Third-party packages and the only places that may import them.
DOORS = {
    "Crypto": ("maths/secure_sum/primitives.py",),
    "cloudpickle": ("executors/", "methods/__init__.py"),
    "fastapi": ("serving/server.py",),
    "cryptography": ("deploy/keys.py", "maths/secure_sum/primitives.py"),
    "flwr": ("deploy/flower/",),
    "onnx": ("export/onnx_file.py",),
    "onnxruntime": ("export/onnx_file.py",),
    "onnxscript": ("export/onnx_file.py",),
    "matplotlib": ("report/",),
    "optuna": ("engine/sampler.py",),
    "opacus": ("maths/accounting.py",),
    "pydantic": ("experiment/", "methods/__init__.py", "serving/requests.py"),
    "ray": ("executors/ray",),
    "starlette": ("serving/server.py",),
    "tenseal": ("maths/homomorphic.py",),
    "typer": ("cli/",),
    "uvicorn": ("serving/server.py",),
}
# Programs that Flower starts by path; they must not need fedtailor.
STARTED_BY_PATH = ("deploy/flower/courier.py", "deploy/flower/supernode.py")

# Imports that break the plan, as (module, imported module). The list may only become shorter.
KNOWN: set[tuple[str, str]] = set()


# ---------------------------------------------------------------- modules and what they import
def module_name(path: Path) -> str:
    """The dotted name within the package, such as ``core.tree``; its own is ``__init__``."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    if len(parts) > 1 and parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def list_imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full.removeprefix("fedtailor.") in MODULES
                yield full if is_module else node.module


def list_own_imports(path: Path) -> Iterator[str]:
    """The modules of fedtailor that a file imports."""
    for target in list_imports(path):
        if target == "fedtailor":
            yield "__init__"
        elif target.startswith("fedtailor."):
            yield target.removeprefix("fedtailor.")


def room_of(module: str) -> str:
    first = module.split(".")[0]
    return PART_OF.get(first, first)


def find_imports_that_go_up() -> set[tuple[str, str]]:
    """Imports between rooms that do not go to a lower floor."""
    found = set()
    for module, path in MODULES.items():
        here = room_of(module)
        for target in list_own_imports(path):
            there = room_of(target)
            if there == here or {here, there} & ANYONE_MAY_IMPORT:
                continue
            if FLOOR[there] >= FLOOR[here]:
                found.add((module, target))
    return found


def as_lines(breaches: set[tuple[str, str]]) -> str:
    return "\n".join(
        f"{module} imports {target}" for module, target in sorted(breaches)
    )


# ---------------------------------------------------------------- floors
def test_every_room_has_a_floor():
    rooms = {room_of(module) for module in MODULES} - ANYONE_MAY_IMPORT
    assert rooms == FLOOR.keys()


def test_imports_go_down():
    breaches = find_imports_that_go_up() - KNOWN
    assert not breaches, as_lines(breaches)


def test_known_breaches_are_still_there():
    gone = KNOWN - find_imports_that_go_up()
    assert not gone, f"take these out of KNOWN:\n{as_lines(gone)}"


def read_floors(text: str) -> list[set[str]]:
    """The floors in the diagram of docs/architecture.md, the lowest first."""
    diagram = text.split("## Floors")[1].split("```")[1]
    floors: list[set[str]] = []
    for line in diagram.strip("\n").splitlines():
        found = re.match(r" *(\d+)? +((?:[\w.]+(?:/|\.py) *)+)", line)
        assert found, line
        if found[1]:
            floors.append(set())
        rooms = {
            name.removesuffix("/").removesuffix(".py") for name in found[2].split()
        }
        floors[-1] |= {room_of(name) for name in rooms}
    return floors[::-1]


def test_the_docs_show_these_floors():
    assert read_floors(DOCS.read_text(encoding="utf-8")) == FLOORS


def test_the_root_holds_the_interface_only():
    expected = {
        "__init__",
        "__main__",
        "_version",
        "api",
        "client",
        "method",
        "method_types",
    }
    assert {path.stem for path in PACKAGE.glob("*.py")} == expected


def test_the_tests_have_the_rooms_of_the_source():
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert folders - {"__pycache__", "tools"} <= FLOOR.keys()


# ---------------------------------------------------------------- who may import what
def list_base_modules(path: Path) -> set[str]:
    """The modules of the classes from which the classes of a file derive."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    origin = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                origin[alias.asname or alias.name] = node.module.removeprefix(
                    "fedtailor."
                )
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = [
        base.id for cls in classes for base in cls.bases if isinstance(base, ast.Name)
    ]
    return {origin[name] for name in bases if name in origin}


def test_methods_import_the_interface_and_mathematics():
    """And another method only to derive from it."""
    breaches = set()
    for name in names():
        path = PACKAGE / f"methods/{name}.py"
        bases = list_base_modules(path)
        for target in list_own_imports(path):
            if room_of(target) not in METHODS_MAY_IMPORT and target not in bases:
                breaches.add((f"methods.{name}", target))
    assert not breaches, as_lines(breaches)


def test_the_engine_does_not_know_the_methods():
    breaches = set()
    for module, path in MODULES.items():
        if room_of(module) == "engine":
            for target in list_own_imports(path):
                if room_of(target) in ENGINE_MAY_NOT_IMPORT:
                    breaches.add((module, target))
    assert not breaches, as_lines(breaches)


def test_third_parties_have_one_door():
    breaches = set()
    for module, path in MODULES.items():
        place = path.relative_to(PACKAGE).as_posix()
        for target in list_imports(path):
            doors = DOORS.get(target.split(".")[0])
            if doors and not place.startswith(doors):
                breaches.add((module, target))
    assert not breaches, as_lines(breaches)


def test_programs_that_are_started_by_path_stand_alone():
    for place in STARTED_BY_PATH:
        assert list(list_own_imports(PACKAGE / place)) == [], place


# ---------------------------------------------------------------- what two sites compare
def list_reachable(first: list[str]) -> set[str]:
    """All modules that these modules import, directly or not."""
    waiting = list(first)
    reached: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in MODULES and module not in reached:
            reached.add(module)
            waiting += list_own_imports(MODULES[module])
    return reached


def test_the_digest_covers_all_that_a_clients_numbers_depend_on():
    """By it two sites know that they run the same engine; a method's own file has another one."""
    first = [f"methods.{name}" for name in names()]
    first += [module for module in MODULES if room_of(module) == "filters"]
    first.append("executors.client_runner")
    missing = []
    for module in sorted(list_reachable(first)):
        place = MODULES[module].relative_to(PACKAGE).as_posix()
        is_covered = any(
            place == part or place.startswith(f"{part}/") for part in ENGINE
        )
        if room_of(module) != "methods" and not is_covered:
            missing.append(place)
    assert not missing, f"not in the engine's digest: {missing}"


# ---------------------------------------------------------------- style
def search_sources(pattern: str) -> list[str]:
    """Where a pattern occurs in the source, as file:line."""
    found = []
    for path in MODULES.values():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return found


def test_modules_begin_with_a_sentence_that_says_what_they_hold():
    silent = [
        module
        for module, path in MODULES.items()
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent, silent


def test_module_names_say_something():
    empty = {"utils", "helpers", "common", "base", "manager", "misc"}
    assert not [module for module in MODULES if module.split(".")[-1] in empty]


def test_nothing_is_left_to_do():
    found = search_sources(r"\b(TODO|FIXME|XXX)\b")
    assert not found, "\n".join(found)


def test_randomness_is_a_value_and_not_a_global_state():
    found = search_sources(r"torch\.manual_seed|random\.seed\(")
    assert not found, "\n".join(found)


def test_methods_are_found_by_file_name():
    for name in names():
        assert issubclass(find(name), Method)


# ---------------------------------------------------------------- dependencies
def test_pinned_versions_are_in_the_declared_ranges():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        declared += extra
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().split():
        name, _, version = line.partition("==")
        pinned[name.lower().replace("_", "-")] = version
    for requirement in map(Requirement, declared):
        if requirement.name == project["name"]:  # its own extras
            continue
        version = pinned.get(requirement.name.lower().replace("_", "-"))
        assert version, f"{requirement.name} has no pinned version"
        assert requirement.specifier.contains(version), (
            f"{requirement} excludes {version}"
        )
