"""Command-line options made from the fields of an experiment: one description for flags, TOML keys and Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from fedtailor.core.errors import UserError
from fedtailor.experiment.config import Experiment

F = TypeVar("F", bound=Callable[..., Any])


def experiment_options(*leave_out: str) -> Callable[[F], F]:
    """Give a command every option of an experiment; it receives those that were set as ``options``."""

    def decorate(command: F) -> F:
        own = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]
        names = {
            name: _parameter(name) for name in Experiment.model_fields if name not in leave_out
        }

        def call(**given: Any) -> Any:
            chosen = {k: given.pop(k) for k in names}
            options = {k: v for k, v in chosen.items() if v is not None and v != []}
            if "set" in options:
                options["set"] = assignments(options["set"])
            return command(options=options, **given)

        call.__doc__, call.__name__ = command.__doc__, command.__name__
        hints = inspect.get_annotations(command, eval_str=True)
        own = [
            p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in own
        ]
        call.__signature__ = inspect.Signature([*own, *names.values()])  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    """Values arrive as text: the experiment itself knows what they must be, and says so alike everywhere."""
    about = Experiment.model_fields[name]
    text = about.description or ""
    if about.default not in (None, "", {}):
        text += f" [{about.default}]"
    flag = "--" + name.replace("_", "-")
    kind: Any = str | None
    extra: tuple[str, ...] = (flag,)
    if about.annotation is bool:
        kind, extra = bool | None, (f"{flag}/--no-{name.replace('_', '-')}",)
    if name == "set":
        kind = list[str] | None
    option = typer.Option(
        *extra, help=text, show_default=False, metavar=None if kind == bool | None else "VALUE"
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def assignments(pairs: list[str]) -> dict[str, str]:
    """``lam=0.5`` as a name and a value."""
    out: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UserError(f"--set {pair}: write it as name=value")
        out[name.strip()] = value.strip()
    return out
