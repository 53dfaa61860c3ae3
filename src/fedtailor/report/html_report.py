"""The page that tells the story of runs: one file that opens without a network."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtailor.core.errors import UserError, writing
from fedtailor.report.story.content import compose_content
from fedtailor.report.story.reported_runs import read_runs
from fedtailor.storage.files import write_bytes

PAGE = Path(__file__).parent / "page"
REPORT = "report.html"
LIBRARIES = ("vendor/d3.min.js", "vendor/plot.min.js")
LICENCES = ("vendor/d3-LICENSE.txt", "vendor/plot-LICENSE.txt")
SCRIPTS = ("elements.js", "charts.js", "clients.js", "tables.js", "page.js")
LARGEST = 3_000_000  # bytes of a page, for 30 runs


def write_report(
    paths: Sequence[str | Path], out: str | Path = REPORT, title: str = ""
) -> Path:
    """Write the page on runs and comparisons.

    Args:
        paths: folders of runs and of comparisons.
        out: the file; its folder is made.
        title: a heading; else it says which methods on which data.

    Raises:
        UserError: there is no finished run, or the file cannot be written.
    """
    if not paths:
        raise UserError("name at least one folder of a run or a comparison")
    out = Path(out)
    if out.is_dir():
        out = out / REPORT
    reported = read_runs([Path(path) for path in paths])
    page = fill_page(compose_content(reported, title))
    with writing(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, page.encode())
    return out


def fill_page(content: dict[str, Any]) -> str:
    """The page with its style, scripts and data in it."""
    style = (PAGE / "style.css").read_text(encoding="utf-8")
    libraries = "\n".join(_read_script(name) for name in LIBRARIES)
    scripts = "\n".join(_read_script(name) for name in SCRIPTS)
    licences = "\n".join((PAGE / name).read_text(encoding="utf-8") for name in LICENCES)
    pieces = {
        "TITLE": html.escape(content["title"]),
        "HEADLINE": html.escape(content["headline"]["sentence"]),
        "STYLE": style,
        "LICENCES": html.escape(licences),
        "DATA": embed_json(content),
        "LIBRARIES": libraries,
        "SCRIPTS": scripts,
    }
    page = (PAGE / "template.html").read_text(encoding="utf-8")
    parts = page.split("%%")  # text and names take turns
    return "".join(pieces[part] if i % 2 else part for i, part in enumerate(parts))


def embed_json(value: Any) -> str:
    """JSON that may stand in a script element, whatever texts are in it."""
    text = json.dumps(
        without_nan(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    # no end of the script, no comment, no line break that JavaScript would see
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def without_nan(value: Any) -> Any:
    """The same with None for numbers that are none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    return value


def _read_script(name: str) -> str:
    text = (PAGE / name).read_text(encoding="utf-8")
    return f"/* ---- {name} ---- */\n{text}"
