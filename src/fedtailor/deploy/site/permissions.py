"""What a run may ask of a site beyond training: the switch ``fedtailor node --allow``.

A method declares in ``setup_calls`` which client functions its ``setup`` calls (label counts,
directions of the data ...). A site answers those that ``--allow`` names. A call of setup that the
method does not declare is never answered.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import get_args, get_type_hints

from fedtailor.core.errors import UserError
from fedtailor.executors.world import AnyMethod
from fedtailor.filters import SETUP_CALLS
from fedtailor.method import Method
from fedtailor.method_types import client_functions

# What every run may call: training, and receiving first values, which sends nothing.
ALWAYS_ALLOWED = ("local", Method.receive.__name__)


def list_setup_calls(cls: type[AnyMethod]) -> tuple[str, ...]:
    """The client functions that a method declares to call in setup."""
    functions = client_functions(cls)
    for name in cls.setup_calls:
        if name not in functions:
            raise UserError(
                f"{cls.__name__}.setup_calls: '{name}' is no client function"
            )
    return cls.setup_calls


def needs_permission(cls: type[AnyMethod], name: str, call: int) -> bool:
    """Whether a call is one of setup: a declared function at any time, or any other before a round.

    A declared function needs permission whatever the number of its call, because that number is
    what the server says it is.
    """
    if name in ALWAYS_ALLOWED:
        return False
    return name in list_setup_calls(cls) or call > SETUP_CALLS


def find_denial(cls: type[AnyMethod], name: str, allow: Collection[str] | None) -> str:
    """Why a call of setup is not answered here, or nothing; ``allow=None`` allows all declared."""
    if name not in list_setup_calls(cls):
        return f"called in setup, which {cls.__name__}.setup_calls does not declare"
    if allow is None or name in allow:
        return ""
    return f"not allowed here (--allow {','.join(sorted(allow)) or 'none'})"


def describe_client_function(cls: type[AnyMethod], name: str) -> str:
    """What a client function does and sends, in the words of the method's author."""
    function = getattr(cls, name)
    upload = get_args(get_type_hints(function)["return"])[0]
    documentation = inspect.getdoc(function) or inspect.getdoc(upload) or ""
    first_line = documentation.split("\n", 1)[0]
    fields = ", ".join(getattr(upload, "_fields", ())) or "nothing"
    return f"{first_line} (sends {getattr(upload, '__name__', '')}: {fields})"
