"""Lists of what there is: methods, data sets, backbones, and the clients of a partition."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedtailor import data, methods, models
from fedtailor.data.federation import Federation
from fedtailor.report.partition_chart import make_partition_rows
from fedtailor.testing.method_card import (
    MessageField,
    MethodCard,
    describe_method,
    measure_traffic,
)

BESIDE_PURPOSE = 28  # columns that a line about a method needs for the rest

# ---------------------------------------------------------------- methods


def print_methods(console: Console) -> None:
    """A line for every method."""
    classes = [methods.find(name) for name in methods.names()]
    with console.status("measuring the messages of every method"):
        sizes = [measure_traffic(cls) for cls in classes]
    table = Table(
        title="Methods",
        caption="up, down: bytes of a round on the trial network, relative to FedAvg's."
        "\nfedtailor show NAME says more: paper, constants, what is sent and kept.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
    )
    table.add_column("name", no_wrap=True)
    table.add_column("year", no_wrap=True)
    table.add_column("what it does", no_wrap=True)
    table.add_column("up", no_wrap=True, justify="right")
    table.add_column("down", no_wrap=True, justify="right")
    for cls, (up, down) in zip(classes, sizes, strict=True):
        about = describe_method(cls)
        width = console.width - BESIDE_PURPOSE
        purpose = escape(textwrap.shorten(_purpose(about), width, placeholder=" …"))
        table.add_row(about.name, about.year, purpose, f"{up:.2f}", f"{down:.2f}")
    console.print(table)


def print_method(console: Console, name: str) -> None:
    """All about one method."""
    cls = methods.find(name)
    about = describe_method(cls)
    console.print(f"[bold]{about.name}[/bold]", highlight=False)
    for paragraph in about.text.split("\n\n"):
        text = _fit_to_width(paragraph, console.width)
        console.print(text, highlight=False, markup=False, end="\n\n")
    if about.hyper:
        console.print(_make_hyper_table(about))
    console.print(_make_field_table(about))
    for text in describe_audit(about):
        console.print(text, highlight=False, markup=False)
    up, down = measure_traffic(cls)
    console.print(
        f"bytes per round on the trial network, relative to FedAvg: {up:.2f} up, {down:.2f} down"
    )


def _fit_to_width(paragraph: str, width: int) -> str:
    """A paragraph as wide as the screen: prose, or a list whose items hang; code stays as it is."""
    if paragraph.startswith(" "):
        return paragraph
    if not paragraph.startswith(("* ", "- ")):
        return " ".join(paragraph.split())
    items = re.split(r"\n(?=[*-] )", paragraph)
    lines = [
        textwrap.fill(" ".join(item.split()), width, subsequent_indent="  ")
        for item in items
    ]
    return "\n".join(lines)


def _make_hyper_table(about: MethodCard) -> Table:
    table = Table(title="Hyper-parameters", title_justify="left")
    _add_columns(table, ("name", "type", "default", "meaning and source"))
    for h in about.hyper:
        table.add_row(h.name, h.kind, str(h.default), h.doc)
    return table


def _make_field_table(about: MethodCard) -> Table:
    """What the server remembers, what is sent, and what stays with a client."""
    table = Table(title="What is where", title_justify="left")
    _add_columns(table, ("", "field", "type", "what"))
    for where, fields in _group_fields(about):
        if not fields:
            table.add_row(where, "nothing", "", "")
        for i, field in enumerate(fields):
            table.add_row(where if i == 0 else "", field.name, field.kind, field.doc)
    return table


def _group_fields(about: MethodCard) -> list[tuple[str, list[MessageField]]]:
    """The fields of a method's messages and states, by where they are."""
    groups = [("server remembers", about.server)]
    for call in about.calls:
        when = "" if call.name == "local" else f", in {call.name}"
        groups.append((f"goes down{when}", call.down))
        groups.append((f"goes up{when}", call.up))
    if about.also_sent:
        groups.append(("stays, and goes up", about.also_sent))
    groups.append(("never leaves", about.keep))
    return groups


def describe_audit(about: MethodCard) -> list[str]:
    """What audits found that a server can compute, although it is not sent as such."""
    if not about.reveals:
        return [
            "audit: nothing private is known to follow from an upload exactly; see what"
            f" searches find: fedtailor audit RUN ({about.name})"
        ]
    return [
        f"audit: an upload gives away the {what}: {how}"
        for what, how in about.reveals.items()
    ]


def _purpose(about: MethodCard) -> str:
    """The title of a method without its name."""
    return about.title.partition(": ")[2] or about.title


# ---------------------------------------------------------------- backbones, data sets, partitions


def print_models(console: Console) -> None:
    """A row for every backbone."""
    table = Table(title="Backbones")
    _add_columns(table, ("name", "variants", "what", "source"))
    table.add_column("parameters", overflow="fold", justify="right")
    for entry in models.catalogue():
        variants = ", ".join(entry.variants)
        table.add_row(
            entry.name, variants, entry.layers, entry.source, f"{entry.parameters:,}"
        )
    console.print(table)


def print_datasets(console: Console, folder: Path | None) -> None:
    """A row for every data set, with whether it is on this machine."""
    place = data.find_data_folder(folder)
    table = Table(title=f"Data sets (looked for in {place})")
    _add_columns(
        table, ("name", "variants", "here", "kind", "samples", "classes", "source")
    )
    for entry in data.list_datasets():
        table.add_row(
            entry.name,
            ", ".join(entry.variants),
            "yes" if data.is_available(entry, place) else "no",
            entry.kind,
            f"{entry.samples:,}",
            str(entry.classes),
            entry.source,
        )
    console.print(table)


def print_partition(console: Console, federation: Federation) -> None:
    """A row for every client: how many samples, of which classes."""
    table = Table(
        title=f"{federation.name}: {federation.clients} clients, {federation.classes} classes"
    )
    table.add_column("client", overflow="fold", justify="right")
    table.add_column("name", overflow="fold")
    for name in ("train", "validation", "test", "classes"):
        table.add_column(name, overflow="fold", justify="right")
    table.add_column("largest classes", overflow="fold")
    for row in make_partition_rows(federation):
        table.add_row(*map(str, row))
    console.print(table)


def _add_columns(table: Table, names: Iterable[str]) -> None:
    for name in names:
        table.add_column(name, overflow="fold")
