"""The commands ``fedtailor keys`` and ``fedtailor register``: keys, and which nodes may connect."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

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
    "he.key": "every site, by a safe way, and never the server (--he-key); one run only",
    "he.pub": "whoever starts a run that encrypts (federate --he-public)",
    "key": "site {i} alone: its private key (--key)",
    "pub": "the server: by this it knows site {i}",
}

Nodes = Annotated[int, typer.Option(help="number of sites")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(help="name or address of the server (may be given again)"),
]
Days = Annotated[int, typer.Option(help="how long the certificates hold")]
Scheme = Annotated[
    Literal["bfv", "ckks", "none"] | None,
    typer.Option(help="the key of encrypted sums [bfv where fedtailor[he] is there]"),
]
Only = Annotated[
    Literal["he"] | None,
    typer.Option(
        help="he: a new key of encrypted sums and nothing else; every run has its own"
    ),
]
PublicKeys = Annotated[
    list[Path], typer.Argument(help="public keys of nodes, node-0.pub ...")
]
Certificate = Annotated[Path, typer.Option(help="the CA's certificate, ca.pem")]


def keys(
    folder: Annotated[Path, typer.Argument(help="where the files go")],
    nodes: Nodes = 2,
    host: Hosts = None,
    days: Days = 90,
    he: Scheme = None,
    only: Only = None,
) -> None:
    """Make an authority, a server certificate, node keys and a key of encrypted sums."""
    # Imported here, because cryptography comes with an extra.
    from fedtailor.deploy.keys import LOCAL_HOSTS, make_he_keys, make_trial_keys

    hosts = host or []
    scheme = choose_scheme(he, only is not None)
    if only is not None:
        tell_purposes(make_he_keys(folder, scheme or "bfv"))
        return
    tell_purposes(make_trial_keys(folder, nodes, hosts, days, scheme))
    if scheme is None and he is None:
        typer.echo("No key of encrypted sums: that needs pip install 'fedtailor[he]'")
    names = ", ".join(dict.fromkeys([*LOCAL_HOSTS, *hosts]))
    typer.echo(
        f"The certificate holds {days} days for {names}. "
        "This is for a trial: in a real deployment every site makes its own key."
    )


def choose_scheme(asked: str | None, is_needed: bool) -> str | None:
    """What the key of encrypted sums is for; None for no key."""
    if asked == "none" and is_needed:
        raise UserError("--only he and --he none: nothing would be made")
    if asked is not None or is_needed:
        return None if asked == "none" else asked or "bfv"
    return "bfv" if find_spec("tenseal") else None


def tell_purposes(files: list[Path]) -> None:
    """One line a file: what it is for."""
    width = max(len(str(path)) for path in files)
    for path in files:
        typer.echo(f"{path!s:<{width}}  {describe_purpose(path)}")


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
