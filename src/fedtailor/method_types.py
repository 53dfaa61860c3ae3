"""The types that a method declares: of its states and messages, and of its client functions."""

from __future__ import annotations

import inspect
import types
from typing import Any, get_args, get_origin, get_type_hints

from fedtailor.method import Method


def declared_types(cls: type) -> tuple[Any, ...]:
    """Server, Down, Keep and Up, as the class (or a class it derives from) declares them."""
    for ancestor in cls.__mro__:
        for base in getattr(ancestor, "__orig_bases__", ()):
            if get_origin(base) is Method:
                return get_args(base)
    raise TypeError(f"{cls.__name__} must derive from Method[Server, Down, Keep, Up]")


def server_type(method: Method[Any, Any, Any, Any]) -> Any:
    """The declared type of the server's state."""
    return declared_types(type(method))[0]


def keep_type(method: Method[Any, Any, Any, Any]) -> Any:
    """The declared type of a client's private state."""
    return declared_types(type(method))[2]


def call_types(method: Method[Any, Any, Any, Any], function: str) -> tuple[Any, Any]:
    """Declared types of what a client function is sent and sends: (down, up)."""
    hints = function_hints(type(method), function)
    up, _ = get_args(hints["return"])
    return hints["down"], up


def function_hints(cls: type, function: str) -> dict[str, Any]:
    """Annotations of a method's function; those of the class it derives from where it has none."""
    for ancestor in cls.__mro__:
        if function not in vars(ancestor):
            continue
        hints = get_type_hints(vars(ancestor)[function])
        is_declaration = ancestor is Method and function == Method.local.__name__
        if "return" in hints and not is_declaration:
            return hints
    _, down, keep, up = declared_types(cls)
    return {"down": down, "keep": keep, "return": types.GenericAlias(tuple, (up, keep))}


def client_functions(cls: type) -> list[str]:
    """Functions that a server may call: of (c, down, keep), giving (up, keep)."""
    keep = declared_types(cls)[2]
    members = inspect.getmembers(cls, inspect.isfunction)
    names = [
        name
        for name, function in members
        if _is_client_function(cls, name, function, keep)
    ]
    if getattr(cls, "given", None) is not Method.given:
        names.append(Method.receive.__name__)
    return names


def _is_client_function(cls: type, name: str, function: Any, keep: Any) -> bool:
    if name.startswith("_"):
        return False
    if list(inspect.signature(function).parameters)[1:] != ["c", "down", "keep"]:
        return False
    try:
        result = function_hints(cls, name).get("return")
    except (NameError, TypeError):
        return False
    if get_origin(result) is not tuple:
        return False
    kept = [arg or type(None) for arg in get_args(result)[1:]]
    return kept == [keep or type(None)]
