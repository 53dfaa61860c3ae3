"""A comparison as its file says: methods, seeds, options, and the papers' numbers."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "comparisons"


@dataclass(frozen=True)
class Comparison:
    """The content of a file in ``comparisons/``."""

    title: str
    paper: str  # where the published numbers come from
    methods: list[str]
    seeds: int
    options: dict[str, Any]  # of `fedtailor compare`
    # options of single methods
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    # by paper and method
    published: dict[str, dict[str, float]] = field(default_factory=dict)
    remark: str = ""

    def group_methods(self, methods: Sequence[str]) -> list[list[str]]:
        """Methods that share all options together, those with options of their own apart."""
        together = [method for method in methods if method not in self.own]
        apart = [[method] for method in methods if method in self.own]
        if not together:
            return apart
        return [together, *apart]

    def options_for(self, group: Sequence[str]) -> dict[str, Any]:
        """The options of one group, without what is set for other methods."""
        options = self.options | self.own.get(group[0], {})
        constants = {}
        for name, value in options.get("set", {}).items():
            if name.split(".")[0] in group:
                constants[name] = value
        return options | {"set": constants}

    def command_for(self, group: Sequence[str]) -> str:
        """The command that runs one group."""
        options = self.options_for(group)
        constants = options.pop("set")
        words = ["fedtailor", "compare", *group]
        for name, value in options.items():
            words += write_option(name.replace("_", "-"), value)
        for name, value in constants.items():
            words += ["--set", f"{name}={value}"]
        words += ["--seeds", str(self.seeds)]
        return " ".join(words)


def write_option(name: str, value: Any) -> list[str]:
    """An option as the command line takes it; those that are true or false have no value there."""
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    return [f"--{name}", str(value)]


def read_comparisons() -> dict[str, Comparison]:
    """All comparisons, by the name of their file."""
    comparisons = {}
    for path in sorted(FOLDER.glob("*.toml")):
        comparisons[path.stem] = Comparison(**tomllib.loads(path.read_text()))
    return comparisons
