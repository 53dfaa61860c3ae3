"""The command ``fedtailor node``: a site, which answers runs until it is stopped."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.federate import Certificates, Insecure, Superlink
from fedtailor.core.errors import UserError
from fedtailor.deploy.flower.superlink import need_flower
from fedtailor.deploy.site.data import load
from fedtailor.deploy.site.service import Resident


def node(
    data: Annotated[
        str, typer.Option(help="this site's data: a file, a folder or a data set's name")
    ],
    superlink: Superlink,
    root_certificates: Certificates = None,
    key: Annotated[Path | None, typer.Option(help="this site's private key")] = None,
    insecure: Insecure = False,
    name: Annotated[
        str | None, typer.Option(help="this site's name [the key's, else the machine's]")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="where its private state is kept")] = None,
    allow: Annotated[
        str | None,
        typer.Option(
            help="what a run may ask for before it trains: names, or none [anything, logged]"
        ),
    ] = None,
    method: Annotated[
        list[Path] | None, typer.Option(help="a method file that runs may use (may be given again)")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="where data sets lie (else $FEDTAILOR_DATA)")
    ] = None,
    missing: Annotated[
        str | None, typer.Option(help="median: what becomes of NaN in the data")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Take part in deployed runs with this site's own data, which never leave it."""
    need_flower("fedtailor node")
    from fedtailor.deploy.flower.node_processes import (  # here: not every system has such sockets
        Doors,
        keep_open,
        state_folder,
    )

    if (root_certificates is None) != insecure:
        raise UserError("give --root-certificates ca.pem, or --insecure for a trial on one machine")
    if key is not None and insecure:
        raise UserError("--key needs TLS: give --root-certificates ca.pem, not --insecure")
    for path in (root_certificates, key, *(method or [])):
        if path is not None and not path.is_file():
            raise UserError(f"there is no file {path}")
    called = name or (key.stem if key else platform.node())
    if not all(c.isalnum() or c in "-_." for c in called) or called.startswith("."):
        raise UserError(f"--name {called}: a name has letters, digits and -_. only")
    allowed = None if allow is None else {a.strip() for a in allow.split(",")} - {"none", ""}
    folder = state_folder(state, called)
    source = load(data, data_dir, missing)
    resident = Resident(
        called, source, folder, allowed, [p.resolve() for p in method or []], _say, device
    )
    _say(f"site '{called}' has {data}; private state in {folder}")
    keep_open(resident.handle, Doors(superlink, root_certificates, key, folder), _say)


def _say(text: str) -> None:
    typer.echo(text)
