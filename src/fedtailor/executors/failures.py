"""An exception in the code of a method or a network, told so that it can be mended."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from pathlib import Path
from traceback import FrameSummary
from typing import Any

from fedtailor.core.errors import describe_error
from fedtailor.executors.visit import Look, Reply
from fedtailor.executors.world import AnyMethod

PACKAGE = str(Path(__file__).parents[1])
SHIPPED_METHODS = str(Path(PACKAGE) / "methods")
INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
# what a look calls, where no line of a traceback says more
CALLED: dict[Look, str] = {look: "personal" for look in Look}


def describe_failure(
    error: Exception, method: AnyMethod, function: str | Look
) -> Reply:
    """The reply of a client whose code failed: what, where, and the traceback."""
    called = CALLED[function] if isinstance(function, Look) else function
    place = _find_place(error) or _place_of(getattr(type(method), called))
    return Reply(
        0,
        None,
        describe_error(error),
        place=f"'{called}' failed in {place}",
        traceback="".join(traceback.format_exception(error)),
    )


def describe_place(method: AnyMethod, function: str) -> str:
    """File and line of a client function, for faults that show only in what it returns."""
    return f"'{function}' in {_place_of(getattr(type(method), function))}"


def _find_place(error: Exception) -> str:
    """The innermost line of the user's own code, else of a method that is shipped."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_installed(frame.filename)]
    shipped = [frame for frame in frames if frame.filename.startswith(SHIPPED_METHODS)]
    for found in (own, shipped):
        if found:
            return _describe_frame(found[-1])
    return ""


def _is_installed(file: str) -> bool:
    """Whether a file is neither the user's script nor their module."""
    return file.startswith((PACKAGE, *INSTALLED, "<frozen"))


def _describe_frame(frame: FrameSummary) -> str:
    return f"{frame.name}, {frame.filename}, line {frame.lineno}"


def _place_of(function: Any) -> str:
    code = inspect.unwrap(function).__code__
    return f"{code.co_name}, {code.co_filename}, line {code.co_firstlineno}"
