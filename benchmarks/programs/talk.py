"""How a program hears what to do and tells what came of it: JSON in, one JSON line a part out."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MARK = "@result "  # at the start of a line that is a result: frameworks print lines of their own


def listen() -> dict[str, Any]:
    """The job: the file named by the first argument."""
    with open(sys.argv[1], encoding="utf-8") as f:
        job: dict[str, Any] = json.load(f)
    return job


def tell(name: str, result: dict[str, Any]) -> None:
    """One part is done."""
    os.write(
        1, f"\n{MARK}{json.dumps({'name': name, **result})}\n".encode()
    )  # in one piece, past all buffers
