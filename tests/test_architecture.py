"""The floor plan, as a test: a room imports only from the floors below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"
FLOORS: list[set[str]] = [
    {"core"},
    {"storage", "data", "models"},
    {"training", "maths"},
    {"client"},
    {"method"},
    {"method_types"},
    {"methods", "evaluation", "filters"},
    {"executors"},
    {"experiment"},
    {"engine"},
    {"testing", "deploy"},
    {"report"},
    {"api"},
    {"cli"},
]
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
METHODS_MAY_IMPORT = {"core", "models", "training", "maths", "client", "method"}
PRESETS = {  # a method that is another one with other defaults -> that other one
    "fedtailor.methods.pfedma": "fedtailor.methods.fedma",
}
ONLY = {  # third-party package -> the only rooms (or folders) that may import it
    "flwr": ("deploy/flower/",),
    "ray": ("executors/ray",),
    "matplotlib": ("report/",),
    "typer": ("cli/",),
    "pydantic": ("experiment/", "methods/__init__"),
    "cloudpickle": ("executors/", "methods/__init__"),
}
KNOWN: set[tuple[str, str]] = set()  # debts: (module, imported module); may only shrink

MODULES = {
    ".".join(p.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): p
    for p in (SRC / "fedtailor").rglob("*.py")
}


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                yield full if full in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def room(module: str) -> str:
    """The room of a module: the word after the package's name."""
    return module.split(".")[1] if "." in module else "api"


@pytest.mark.parametrize(
    "module",
    sorted(
        m for m in MODULES if m not in ("fedtailor", "fedtailor.__main__", "fedtailor._version")
    ),
)
def test_imports_go_down(module: str) -> None:
    here = room(module)
    for target in imports(MODULES[module]):
        ours = target == "fedtailor" or target.startswith(
            "fedtailor."
        )  # the package itself counts as api
        if not ours or target == "fedtailor._version" or (module, target) in KNOWN:
            continue
        there = room(target)
        assert there == here or FLOOR[there] < FLOOR[here], (
            f"{module} imports {target}: {there} is not below {here}"
        )
        if here == "methods" and not module.endswith(".methods"):
            is_preset = PRESETS.get(module) == target
            assert there in METHODS_MAY_IMPORT or is_preset, f"a method imports {target}"


def test_third_parties_have_one_door() -> None:
    for path in MODULES.values():
        where = path.relative_to(SRC / "fedtailor").as_posix()
        for target in imports(path):
            doors = ONLY.get(target.split(".")[0])
            assert doors is None or where.startswith(doors), (
                f"{where} imports {target}; only {doors} may"
            )


def test_what_decides_a_clients_numbers_is_what_a_site_compares() -> None:
    """The digest by which two sites know that they run the same engine covers all that a client's numbers depend on."""
    from fedtailor.deploy.code_digests import ENGINE

    todo = [m for m in MODULES if m.startswith("fedtailor.methods.")] + [
        "fedtailor.executors.client_runner"
    ]
    reached: set[str] = set()
    while todo:
        module = todo.pop()
        if module in MODULES and module not in reached:
            reached.add(module)
            todo += list(imports(MODULES[module]))
    for module in sorted(m for m in reached if room(m) != "methods"):
        path = MODULES[module].relative_to(SRC / "fedtailor").as_posix()
        assert any(path == name or path.startswith(f"{name}/") for name in ENGINE), (
            f"{path} is not in the engine's digest"
        )


def test_the_root_holds_the_interface_alone() -> None:
    names = {p.stem for p in (SRC / "fedtailor").glob("*.py")}
    assert names <= {
        "__init__",
        "__main__",
        "_version",
        "api",
        "client",
        "method",
        "method_types",
    }, names
