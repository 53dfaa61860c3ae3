"""Command-line options made from the fields of an experiment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from fedtailor.core.errors import UserError
from fedtailor.experiment.config import SPELLINGS, Experiment

F = TypeVar("F", bound=Callable[..., Any])


def experiment_options(
    *, only: Collection[str] | None = None, without: Collection[str] = ()
) -> Callable[[F], F]:
    """Give a command the options of an experiment, all of them or ``only`` some.

    The command receives those that were set as the dictionary ``options``.
    """
    wanted = Experiment.model_fields if only is None else only
    names = [
        name
        for name in Experiment.model_fields
        if name in wanted and name not in without
    ]

    def decorate(command: F) -> F:
        def call(**given: Any) -> Any:
            options = {}
            for name in names:
                value = given.pop(name)
                if value is not None and value != []:
                    options[name] = value
            if "set" in options:
                options["set"] = parse_assignments(options["set"])
            return command(options=options, **given)

        parameters = [*_own_parameters(command), *map(_make_parameter, names)]
        call.__doc__ = command.__doc__
        call.__name__ = command.__name__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _own_parameters(command: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a command but ``options``."""
    hints = inspect.get_annotations(command, eval_str=True)
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name != "options":
            parameters.append(
                parameter.replace(
                    annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY
                )
            )
    return parameters


def _make_parameter(name: str) -> inspect.Parameter:
    """The option of a field.

    Its value arrives as text, which the experiment checks: mistakes are described alike on the
    command line, in files and in Python.
    """
    field = Experiment.model_fields[name]
    flag = flag_of(name)
    kind: Any = str | None
    metavar: str | None = _metavar(field.annotation)
    if field.annotation is bool:
        kind = bool | None
        metavar = None
        flag = f"{flag}/{flag.replace('--', '--no-')}"
    if name == "set":
        kind = list[str] | None
    text = field.description or ""
    if field.default not in (None, "", {}):
        text += f" [{field.default}]"
    flags = [flag]
    for spelling, meant in SPELLINGS.items():
        if meant == name:
            flags.append(flag_of(spelling))
    option = typer.Option(*flags, help=text, show_default=False, metavar=metavar)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, option],
    )


def flag_of(name: str) -> str:
    """How an option is written on the command line."""
    return "--" + name.replace("_", "-")


def _metavar(annotation: Any) -> str:
    """The choices of an option, or VALUE."""
    for kind in (annotation, *get_args(annotation)):
        if get_origin(kind) is Literal:
            return f"[{'|'.join(get_args(kind))}]"
    return "VALUE"


def parse_assignments(pairs: list[str]) -> dict[str, str]:
    """``lam=0.5`` as a name and a value."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UserError(f"--set {pair}: write it as name=value")
        values[name.strip()] = value.strip()
    return values
