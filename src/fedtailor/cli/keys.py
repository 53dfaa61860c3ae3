"""The commands ``fedtailor keys`` and ``fedtailor register``: keys, and which nodes may connect."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.federate import Superlink
from fedtailor.core.errors import UserError
from fedtailor.deploy.flower.superlink import SuperLinkClient, require_flower

PURPOSES = {
    "ca.pem": "every machine: whom to trust (--root-certificates)",
    "ca.key": (
        "no machine: put it away, or delete it once the trial runs; "
        "whoever has it can pose as the server"
    ),
    "server.pem": "the server: its certificate",
    "server.key": "the server alone: the certificate's private key",
    "key": "site {i} alone: its private key (--key)",
    "pub": "the server: by this it knows site {i}",
}

Nodes = Annotated[int, typer.Option(help="number of sites")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(help="name or address of the server (may be given again)"),
]
Days = Annotated[int, typer.Option(help="how long the certificates hold")]
PublicKeys = Annotated[
    list[Path], typer.Argument(help="public keys of nodes, node-0.pub ...")
]
Certificate = Annotated[Path, typer.Option(help="the CA's certificate, ca.pem")]


def keys(
    folder: Annotated[Path, typer.Argument(help="where the files go")],
    nodes: Nodes = 2,
    host: Hosts = None,
    days: Days = 90,
) -> None:
    """Make an authority, a server certificate and node keys for a trial."""
    # Imported here, because cryptography comes with an extra.
    from fedtailor.deploy.keys import LOCAL_HOSTS, make_trial_keys

    hosts = host or []
    files = make_trial_keys(folder, nodes, hosts, days)
    width = max(len(str(path)) for path in files)
    for path in files:
        typer.echo(f"{path!s:<{width}}  {describe_purpose(path)}")
    names = ", ".join(dict.fromkeys([*LOCAL_HOSTS, *hosts]))
    typer.echo(
        f"The certificate holds {days} days for {names}. "
        "This is for a trial: in a real deployment every site makes its own key."
    )


def describe_purpose(path: Path) -> str:
    """What a file is for and where it belongs."""
    if path.name in PURPOSES:
        return PURPOSES[path.name]
    kind = path.suffix.removeprefix(".")
    return PURPOSES[kind].format(i=path.stem.removeprefix("node-"))


def register(
    keys: PublicKeys, superlink: Superlink, root_certificates: Certificate
) -> None:
    """Let the nodes with these public keys connect to a SuperLink."""
    require_flower("fedtailor register")
    for key in keys:
        if not key.is_file():
            raise UserError(f"there is no file {key}")
    with (
        tempfile.TemporaryDirectory(prefix="fedtailor-") as home,
        SuperLinkClient(superlink, root_certificates, Path(home)) as client,
    ):
        for key in keys:
            node = client.register_node(key)
            typer.echo(f"{key} is registered as node {node}")
