"""The methods, one file each: found by file name, nothing to register."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin, get_type_hints

import cloudpickle
from pydantic import TypeAdapter, ValidationError

from fedtailor.core.errors import UserError, unknown
from fedtailor.core.hyper import read_set
from fedtailor.method import Method

AnyMethod = Method[Any, Any, Any, Any]


# Hooks of Method that had other names in earlier versions.
RENAMED_HOOKS: dict[str, str] = {
    "doubts": "warnings",
    "remarks": "closing_remarks",
    "notes": "diagnostics",
    "expected": "expected_upload",
    "after": "after_training",
    "join": "first_keep",
    "resolve": "with_defaults_for",
    "suits": "test_backbone",
    "reads_rounds": "depends_on_rounds",
}


def names() -> list[str]:
    """The names of all methods."""
    files = Path(__file__).parent.glob("*.py")
    return sorted(path.stem for path in files if not path.stem.startswith("_"))


def find(name: str) -> type[AnyMethod]:
    """The class of a method, by its name or by the path of a user's own file."""
    if name.endswith(".py"):
        module = _import_file(Path(name))
    elif name in names():
        module = importlib.import_module(f"fedtailor.methods.{name}")
    else:
        raise unknown("method", name, names())
    cls = _only_class(module, name)
    check_hooks(cls)
    return cls


def check_hooks(cls: type[AnyMethod]) -> None:
    """Refuse a class that defines a hook by the name of an earlier version.

    It would never be called. A hyper-parameter may have such a name.
    """
    hyper_parameters: set[str] = set()
    if dataclasses.is_dataclass(cls):
        hyper_parameters = {field.name for field in dataclasses.fields(cls)}
    for ancestor in cls.__mro__:
        for old, new in RENAMED_HOOKS.items():
            if old in vars(ancestor) and old not in hyper_parameters:
                raise UserError(
                    f"{ancestor.__name__}: the hook '{old}' is now '{new}'; rename it"
                )


def name_of(cls: type[AnyMethod]) -> str:
    """What a class is called in results."""
    package, _, file = cls.__module__.rpartition(".")
    if package == "fedtailor.methods":
        return file
    return cls.__name__.lower()


def make(cls: type[AnyMethod], values: dict[str, Any]) -> AnyMethod:
    """A method with these hyper-parameters.

    Raises:
        UserError: one of them is unknown, or its value is out of range.
    """
    check_hooks(cls)
    fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key, value in values.items():
        for old in (key, f"{key}={value}"):
            if old in cls.moved:
                raise UserError(f"{cls.__name__}: '{old}' is now {cls.moved[old]}")
        if key in fields:
            continue
        if not fields:
            raise UserError(
                f"{cls.__name__} has no hyper-parameters of its own, so '{key}' cannot be set"
            )
        raise unknown(f"hyper-parameter of {cls.__name__}", key, fields)
    hints = get_type_hints(cls)
    typed = {}
    for key, value in values.items():
        typed[key] = _read_value(value, hints[key])
    try:
        made: AnyMethod = TypeAdapter(cls).validate_python(typed)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        raise UserError(
            f"{cls.__name__}: {field}={values.get(field)!r} will not do: {first['msg'].lower()}"
        ) from None
    return made


def _read_value(value: Any, kind: Any) -> Any:
    """A value from the command line: 'none' is None, and 'a,b' a set where a set is declared.

    Everything else is left to pydantic, which reads it as the declared type.
    """
    if not isinstance(value, str):
        return value
    if get_origin(kind) is frozenset:
        return read_set(value, kind)
    if value.lower() == "none":
        return None
    return value


def _import_file(path: Path) -> ModuleType:
    """The module in a user's own file."""
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    name = f"fedtailor_own_{path.stem}_{place[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(
            f"{path} cannot be imported: {type(error).__name__}: {error}"
        ) from None
    cloudpickle.register_pickle_by_value(module)  # worker processes have no such module
    return module


def _only_class(module: ModuleType, name: str) -> type[AnyMethod]:
    """The one method that a module defines; classes that it derives from do not count."""
    defined = []
    for _, cls in inspect.getmembers(module, inspect.isclass):
        if cls.__module__ == module.__name__ and issubclass(cls, Method):
            defined.append(cls)
    parents: set[type] = set()
    for cls in defined:
        parents.update(cls.__mro__[1:])
    found = [cls for cls in defined if cls not in parents]
    if len(found) != 1:
        raise UserError(
            f"{name} must hold exactly one class that derives from Method; it holds {len(found)}"
        )
    return found[0]
