"""``fedtailor predict``, ``export`` and ``serve``: kept models put to use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from fedtailor.core.errors import UserError, unknown
from fedtailor.experiment.finished_run import PersonalModel, load
from fedtailor.export import check_target
from fedtailor.serving.answers import FORMATS, answer
from fedtailor.serving.inputs import read_inputs
from fedtailor.serving.models import SHARED, Models
from fedtailor.serving.server import check_server_packages, listen, make_app
from fedtailor.serving.server import serve as serve_app
from fedtailor.storage.files import write_bytes

Folder = Annotated[
    Path, typer.Argument(help="folder of a finished run, or of an exported model")
]
Client = Annotated[
    str | None,
    typer.Option(
        help="whose model, by name or number; 'shared' is the global one."
        " May be left out where there is one model"
    ),
]


def predict(
    run: Folder,
    input: Annotated[
        Path,
        typer.Option(
            help="inputs: .csv, .npy, .npz, .txt (a text a line), a picture,"
            " or a folder of pictures"
        ),
    ],
    client: Client = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="write to this .csv, .json or .npy (numbers of the classes) instead"
        ),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="csv or json [csv, or as --out ends]")
    ] = None,
) -> None:
    """Predict with a client's personal model: a label and probabilities for every input."""
    chosen = _choose_format(out, form)
    model = Models(run).find(client)
    answers = answer(model, read_inputs(input, model.inputs))
    written = answers.write_as(chosen)
    if out is None:
        typer.echo(written.decode(), nl=False)
        return
    write_bytes(out, written)
    typer.echo(f"{len(answers.names)} predictions are in {out}", err=True)


def _choose_format(out: Path | None, form: str | None) -> str:
    ending = "" if out is None else out.suffix.removeprefix(".")
    chosen = form or ending or "csv"
    if chosen not in FORMATS:
        raise unknown("format of predictions", chosen, FORMATS)
    if out is None and chosen == "npy":
        raise UserError("format npy is written to a file: give --out")
    if out is not None and not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}")
    return chosen


def export(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    to: Annotated[
        Path,
        typer.Option(
            help="model.onnx, model.pt2 (torch.export), or a folder for tensors, graph,"
            " config.json and a card"
        ),
    ],
    client: Client = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace an earlier export")
    ] = False,
) -> None:
    """Write a client's personal model to a file or folder that runs without this package."""
    check_target(to, overwrite=overwrite)
    load(run)  # an exported folder is not exported again
    model = cast(PersonalModel, Models(run).find(client))
    written = model.export(to, overwrite=overwrite)
    whose = "the global model" if model.name == SHARED else f"client {model.name}'s"
    typer.echo(f"{written}: {whose} model; its answers equal the run's")


def serve(
    run: Folder,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="port; 0 takes any free one")
    ] = 8350,
    max_mb: Annotated[
        int, typer.Option(min=1, help="largest request, in megabytes")
    ] = 16,
) -> None:
    """Answer prediction requests over HTTP, on this machine only."""
    check_server_packages()
    models = Models(run)
    names = models.names()
    if not names:
        raise UserError(f"{run} keeps no models (it was run with save=none)")
    models.find(names[0])  # what is wrong shows now
    app = make_app(models, max_mb)
    listening = listen(port)
    host, chosen = listening.getsockname()
    what = "1 client" if len(names) == 1 else f"{len(names)} clients"
    typer.echo(f"models of {what}: http://{host}:{chosen} (Ctrl-C stops)")
    try:
        serve_app(app, listening)
    except KeyboardInterrupt:  # the usual end, and nothing to resume
        typer.echo("stopped")
