"""What there is: methods, data sets, backbones."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedtailor import data
from fedtailor import methods as registry
from fedtailor import models as backbones
from fedtailor.data.federation import Federation
from fedtailor.report import partition_chart as chart
from fedtailor.testing.method_card import About, Piece, describe, traffic


def methods(console: Console) -> None:
    """All about every method, and then a table of one row each, which is what stays on the screen."""
    found = [registry.find(name) for name in registry.names()]
    with console.status("measuring the messages of every method"):
        sizes = [traffic(cls) for cls in found]
    overview = Table(
        title="Methods", caption="bytes of a round on the trial network, relative to FedAvg's there"
    )
    for name in ("name", "year", "what it does", "up", "down"):
        overview.add_column(
            name,
            justify="right" if name in ("up", "down") else "left",
            no_wrap=name != "what it does",
        )
    for cls, (up, down) in zip(found, sizes, strict=True):
        about = describe(cls)
        overview.add_row(
            about.name, about.year, _after_colon(about.title), f"{up:.2f}", f"{down:.2f}"
        )
        console.print(
            f"[bold]{about.name}[/bold]: {escape(_after_colon(about.title))}", highlight=False
        )
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", max_width=32, overflow="fold")
        table.add_row("  paper", escape(about.paper))
        table.add_row("  shared", escape(_what([p for call in about.calls for p in call.up])))
        table.add_row("  private", escape(_what(about.keep)))
        table.add_row("  bytes up, down", f"{up:.2f}, {down:.2f}")
        for h in about.hyper:
            table.add_row(f"  {h.name}={h.default}", escape(h.comment))
        console.print(table)
        console.print()
    console.print(overview)


def show(console: Console, name: str) -> None:
    """All about one method."""
    cls = registry.find(name)
    about = describe(cls)
    console.print(f"[bold]{about.name}[/bold]", highlight=False)
    for paragraph in about.text.split("\n\n"):
        prose = not re.search(
            r"^[\s*-]", paragraph, re.MULTILINE
        )  # as wide as the screen; lists and code stay as they are
        console.print(
            " ".join(paragraph.split()) if prose else paragraph,
            highlight=False,
            markup=False,
            end="\n\n",
        )
    if about.hyper:
        table = Table(title="Hyper-parameters", title_justify="left")
        for column in ("name", "type", "default", "meaning and source"):
            table.add_column(column, overflow="fold")
        for h in about.hyper:
            table.add_row(h.name, h.kind, str(h.default), h.comment)
        console.print(table)
    table = Table(title="What is where", title_justify="left")
    for column in ("", "field", "type", "what"):
        table.add_column(column, overflow="fold")
    for where, pieces in _border(about):
        for i, p in enumerate(pieces):
            table.add_row(where if i == 0 else "", p.name, p.kind, p.comment)
        if not pieces:
            table.add_row(where, "nothing", "", "")
    console.print(table)
    up, down = traffic(cls)
    console.print(
        f"bytes per round on the trial network, relative to FedAvg: {up:.2f} up, {down:.2f} down"
    )


def models(console: Console) -> None:
    """One row a backbone."""
    table = Table(title="Backbones")
    for name in ("name", "variants", "what", "source", "parameters"):
        table.add_column(name, overflow="fold", justify="right" if name == "parameters" else "left")
    for e in backbones.catalogue():
        table.add_row(e.name, ", ".join(e.variants), e.what, e.source, f"{e.parameters:,}")
    console.print(table)


def datasets(console: Console, folder: Path | None) -> None:
    """One row a data set, and whether it is here."""
    place = data.find_data_folder(folder)
    table = Table(title=f"Data sets (looked for in {place})")
    for name in ("name", "variants", "here", "kind", "samples", "classes", "source"):
        table.add_column(name, overflow="fold")
    for e in data.list_datasets():
        here = "yes" if data.is_available(e, place) else "no"
        table.add_row(
            e.name, ", ".join(e.variants), here, e.kind, f"{e.samples:,}", str(e.classes), e.source
        )
    console.print(table)


def partition(console: Console, federation: Federation) -> None:
    """One row a client: how many samples, of which classes."""
    table = Table(
        title=f"{federation.name}: {federation.clients} clients, {federation.classes} classes"
    )
    for name in ("client", "name", "train", "validation", "test", "classes", "largest classes"):
        table.add_column(
            name,
            justify="left" if name in ("name", "largest classes") else "right",
            overflow="fold",
        )
    for row in chart.table(federation):
        table.add_row(*map(str, row))
    console.print(table)


def _border(about: About) -> list[tuple[str, list[Piece]]]:
    found = [("server remembers", about.server)]
    for call in about.calls:
        when = "" if call.name == "local" else f", in {call.name}"
        found += [(f"goes down{when}", call.down), (f"goes up{when}", call.up)]
    found += [("stays, and goes up", about.lent)] if about.lent else []
    return [*found, ("never leaves", about.keep)]


def _what(pieces: list[Piece]) -> str:
    """What the fields hold, each said once."""
    return "\n".join(dict.fromkeys(p.comment or p.name for p in pieces)) or "nothing"


def _after_colon(title: str) -> str:
    return title.partition(": ")[2] or title
