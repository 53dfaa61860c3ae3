"""The command ``fedtailor keys``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PURPOSES = {
    "ca.pem": "every machine: whom to trust (--root-certificates)",
    "ca.key": "no machine: put it away, or delete it once the trial runs; whoever has it can pose as the server",
    "server.pem": "the server: its certificate",
    "server.key": "the server alone: the certificate's private key",
    "key": "site {i} alone: its private key (--key)",
    "pub": "the server: by this it knows site {i}",
}


def keys(
    folder: Annotated[Path, typer.Argument(help="where the files go")],
    nodes: Annotated[int, typer.Option(help="number of sites")] = 2,
    host: Annotated[
        list[str] | None, typer.Option(help="name or address of the server (may be given again)")
    ] = None,
    days: Annotated[int, typer.Option(help="how long the certificates hold")] = 90,
) -> None:
    """Make an authority, a server certificate and node keys for a trial."""
    from fedtailor.deploy.keys import (
        ALWAYS,
        make_trial,
    )  # here, because cryptography comes with an extra

    files = make_trial(folder, nodes, host or [], days)
    width = max(len(str(path)) for path in files)
    for path in files:
        typer.echo(f"{path!s:<{width}}  {_purpose(path)}")
    hosts = ", ".join(dict.fromkeys([*ALWAYS, *(host or [])]))
    typer.echo(
        f"The certificate holds {days} days for {hosts}. For a trial: in earnest every site makes its own key."
    )


def _purpose(path: Path) -> str:
    """What a file is for and where it belongs."""
    if path.name in PURPOSES:
        return PURPOSES[path.name]
    return PURPOSES[path.suffix[1:]].format(i=path.stem.removeprefix("node-"))
