"""The command ``fedtailor node``: a site, which answers runs until it is stopped."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.federate import Certificates, Insecure, Superlink, check_security
from fedtailor.core.errors import UserError
from fedtailor.deploy.flower.superlink import require_flower
from fedtailor.deploy.site.data import load_source
from fedtailor.deploy.site.service import SiteService

Data = Annotated[
    str, typer.Option(help="this site's data: a file, a folder or a data set's name")
]
Key = Annotated[Path | None, typer.Option(help="this site's private key")]
HeKey = Annotated[
    Path | None,
    typer.Option(help="the sites' common key, he.key, for runs that encrypt"),
]
Name = Annotated[
    str | None, typer.Option(help="this site's name [the key's, else the machine's]")
]
State = Annotated[Path | None, typer.Option(help="where its private state is kept")]
Allow = Annotated[
    str | None,
    typer.Option(
        help="what a run may ask for before it trains: names, or none [anything, logged]"
    ),
]
MethodFiles = Annotated[
    list[Path] | None,
    typer.Option(help="a method file that runs may use (may be given again)"),
]
DataDir = Annotated[
    Path | None, typer.Option(help="where data sets lie (else $FEDTAILOR_DATA)")
]
Missing = Annotated[
    str | None, typer.Option(help="median: what becomes of NaN in the data")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]


def node(
    data: Data,
    superlink: Superlink,
    root_certificates: Certificates = None,
    key: Key = None,
    he_key: HeKey = None,
    insecure: Insecure = False,
    name: Name = None,
    state: State = None,
    allow: Allow = None,
    method: MethodFiles = None,
    data_dir: DataDir = None,
    missing: Missing = None,
    device: Device = "cpu",
) -> None:
    """Take part in deployed runs with this site's own data, which never leave it."""
    require_flower("fedtailor node")
    # Imported here, because not every system has such sockets.
    from fedtailor.deploy.flower.node_processes import (
        NodeOptions,
        make_state_folder,
        run_node,
    )

    check_security(root_certificates, insecure)
    if key is not None and insecure:
        raise UserError(
            "--key needs TLS: give --root-certificates ca.pem, not --insecure"
        )
    method_files = method or []
    for path in (root_certificates, key, he_key, *method_files):
        if path is not None and not path.is_file():
            raise UserError(f"there is no file {path}")
    site_name = choose_name(name, key)
    folder = make_state_folder(state, site_name)
    service = SiteService(
        site_name,
        load_source(data, data_dir, missing),
        folder,
        allow=parse_allow(allow),
        method_files=[path.resolve() for path in method_files],
        log=say,
        device=device,
        he_key=None if he_key is None else he_key.resolve(),
    )
    say(f"site '{site_name}' has {data}; private state in {folder}")
    options = NodeOptions(superlink, root_certificates, key, folder)
    run_node(service.answer_message, options, say)


def choose_name(given: str | None, key: Path | None) -> str:
    """The site's name: the one that is given, else the key's, else the machine's."""
    name = given or (key.stem if key else platform.node())
    allowed = all(character.isalnum() or character in "-_." for character in name)
    if not allowed or name.startswith("."):
        raise UserError(f"--name {name}: a name has letters, digits and -_. only")
    return name


def parse_allow(allow: str | None) -> set[str] | None:
    """The functions that ``--allow`` names; None where the option is not given."""
    if allow is None:
        return None
    names = {name.strip() for name in allow.split(",")}
    return names - {"none", ""}


def say(text: str) -> None:
    """Print a line of the node's log."""
    typer.echo(text)
