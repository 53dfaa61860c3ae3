"""The types a method declares: of its states and messages, and of its client functions."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_origin, get_type_hints

from fedtailor.method import Method


def server_type(method: Method[Any, Any, Any, Any]) -> Any:
    """The declared type of the server's state."""
    return _generic(type(method))[0]


def keep_type(method: Method[Any, Any, Any, Any]) -> Any:
    """The declared type of a client's private state."""
    return _generic(type(method))[2]


def declared_types(cls: type) -> tuple[Any, ...]:
    """Server, Down, Keep and Up, as the class of a method declares them."""
    return _generic(cls)


def _generic(cls: type) -> tuple[Any, ...]:
    for base in getattr(cls, "__orig_bases__", ()):
        if get_origin(base) is Method:
            return get_args(base)
    raise TypeError(f"{cls.__name__} must derive from Method[Server, Down, Keep, Up]")


def call_types(method: Method[Any, Any, Any, Any], name: str) -> tuple[Any, Any]:
    """Declared types of what a client function is sent and sends: (down, up)."""
    hints = get_type_hints(getattr(type(method), name))
    up, _ = get_args(hints["return"])
    return hints["down"], up


def client_functions(cls: type) -> list[str]:
    """The functions of a method that a server may call: (c, down, keep) to a pair of upload and private state."""
    return [
        name
        for name, f in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and _is_call(f, declared_types(cls)[2])
    ]


def _is_call(function: Any, keep: Any) -> bool:
    if list(inspect.signature(function).parameters)[1:] != ["c", "down", "keep"]:
        return False
    try:
        result = get_type_hints(function).get("return")
    except (NameError, TypeError):
        return False
    return get_origin(result) is tuple and [a or type(None) for a in get_args(result)[1:]] == [
        keep or type(None)
    ]
