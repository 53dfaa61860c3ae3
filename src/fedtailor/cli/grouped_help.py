"""The help of a command, with an experiment's options under the part of a run they belong to."""

from __future__ import annotations

import click
from typer.core import TyperCommand

from fedtailor.experiment.config import Experiment, tags_of

ARGUMENTS = "Arguments"
OWN_OPTIONS = "Options"


class GroupedCommand(TyperCommand):
    """A command whose ``--help`` lists its parameters in groups."""

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the groups: arguments, the command's own options, the experiment's."""
        groups: dict[str, list[tuple[str, str]]] = {ARGUMENTS: [], OWN_OPTIONS: []}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is None:
                continue
            name, text = line
            # typer escapes brackets for rich, which is not used
            text = text.replace("\\[", "[")
            lines = groups.setdefault(_heading(parameter), [])
            lines.append((name, text))
        for heading, lines in groups.items():
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines)


def _heading(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return ARGUMENTS
    if parameter.name in Experiment.model_fields:
        return tags_of(parameter.name).part.capitalize()
    return OWN_OPTIONS
