"""The command ``fedtailor register``: tell a SuperLink which nodes may connect."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.federate import Superlink
from fedtailor.core.errors import UserError
from fedtailor.deploy.flower.superlink import Link, need_flower


def register(
    keys: Annotated[list[Path], typer.Argument(help="public keys of nodes, node-0.pub ...")],
    superlink: Superlink,
    root_certificates: Annotated[Path, typer.Option(help="the CA's certificate, ca.pem")],
) -> None:
    """Let the nodes with these public keys connect to a SuperLink."""
    need_flower("fedtailor register")
    for key in keys:
        if not key.is_file():
            raise UserError(f"there is no file {key}")
    with (
        tempfile.TemporaryDirectory(prefix="fedtailor-") as home,
        Link(superlink, root_certificates, Path(home)) as link,
    ):
        for key in keys:
            typer.echo(f"{key} is registered as node {link.register(key)}")
