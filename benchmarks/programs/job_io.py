"""How a program reads its job and prints its results: JSON in, one JSON line a part out."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# begins a line with a result: frameworks print lines of their own
RESULT_MARK = "@result "


def read_parts() -> list[dict[str, Any]]:
    """The parts of the job, from the file named by the first argument."""
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    parts: list[dict[str, Any]] = job["parts"]
    return parts


def print_result(name: str, result: dict[str, Any]) -> None:
    """Print the result of one part."""
    text = json.dumps({"name": name, **result})
    # one write, past all buffers: other processes print on the same output
    os.write(1, f"\n{RESULT_MARK}{text}\n".encode())
