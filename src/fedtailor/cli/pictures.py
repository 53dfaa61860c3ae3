"""Commands that look into finished runs: features, their map, and where a model looks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedtailor.core.errors import UserError
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.feature_table import (
    FeatureTable,
    draw_sample,
    extract_features,
    write_features,
)
from fedtailor.experiment.finished_run import FinishedRun, Part, load
from fedtailor.experiment.grad_cam import explain_images
from fedtailor.report.feature_map import draw_features, place_features
from fedtailor.report.grad_cam_picture import draw_grad_cam

Run = Annotated[Path, typer.Argument(help="folder of a finished run")]
Clients = Annotated[
    str, typer.Option("--client", help="whose models and data: all, 3, or 0,3,5")
]
Data = Annotated[Part, typer.Option(help="which of the clients' data")]
Whose = Annotated[
    Literal["personal", "global"], typer.Option(help="each client's own, or the global")
]
Stem = Annotated[
    Path | None, typer.Option(help="stem of the pictures [in the run's folder]")
]


def features(
    run: Run,
    client: Clients = "all",
    part: Data = "test",
    model: Whose = "personal",
    out: Annotated[
        Path | None,
        typer.Option(help="a .npz or .csv file [features.npz in the run's folder]"),
    ] = None,
) -> None:
    """Write the features that models extract, with labels and clients."""
    table = _read_features(load(run), client, part, model)
    path = out or run / "features.npz"
    write_features(path, table)
    count = table.features.shape[1]
    typer.echo(f"{len(table)} examples with {count} features each: {path}")


def tsne(
    run: Run,
    client: Clients = "all",
    part: Data = "test",
    model: Whose = "personal",
    most: Annotated[int, typer.Option(min=5, help="examples, drawn at random")] = 2000,
    perplexity: Annotated[float, typer.Option(min=1, help="of t-SNE")] = 30.0,
    seed: Annotated[int, typer.Option(min=0, help="of t-SNE and the examples")] = 0,
    out: Stem = None,
) -> None:
    """Draw a map of the features: all clients by class, and each client among the others."""
    opened = load(run)
    table = draw_sample(_read_features(opened, client, part, model), most, seed)
    places = place_features(table, seed, perplexity)
    whose = "personal models" if model == "personal" else "global model"
    title = f"t-SNE of features: {name_run(opened)}, {whose}, {part} data"
    for path in draw_features(out or run / "tsne", table, places, title):
        typer.echo(path)
    if not table.shares_extractor:
        typer.echo(
            "clients have extractors of their own: distances between examples of"
            " different clients mean little"
        )


def gradcam(
    run: Run,
    client: Annotated[int, typer.Option(min=0, help="whose model and data")] = 0,
    part: Data = "test",
    samples: Annotated[int, typer.Option(min=1, max=20, help="images")] = 6,
    out: Stem = None,
) -> None:
    """Draw where a client's model looks in images; with two heads, also with each alone."""
    opened = load(run)
    x, y = opened.data(client, part)
    if not len(y):
        raise UserError(f"client {client} has no {part} data")
    chosen = choose_spread(y.tolist(), samples)
    images = x[chosen]
    found = explain_images(opened.client(client), images)
    names = opened.federation.labels
    captions = []
    for label, guess in zip(y[chosen].tolist(), found.classes.tolist(), strict=True):
        told = [names[c] if names else str(c) for c in (label, guess)]
        captions.append(f"is {told[0]}\nseen as {told[1]}")
    title = f"Grad-CAM: {name_run(opened)}, client {client}, at {found.layer}"
    stem = out or run / f"gradcam-{client}"
    for path in draw_grad_cam(stem, images, captions, found, title):
        typer.echo(path)


def choose_spread(labels: list[int], many: int) -> list[int]:
    """Examples of as many classes as there are: one of each, then a second one, and so on."""
    seen: dict[int, int] = {}
    ranked = []
    for i, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        ranked.append((seen[label], label, i))
    return [i for _, _, i in sorted(ranked)[:many]]


def name_run(run: FinishedRun) -> str:
    """Method and data, for a title."""
    options = make_experiment(run.config)
    return f"{options.title} on {options.data}"


def _read_features(
    run: FinishedRun, client: str, part: Part, model: str
) -> FeatureTable:
    clients = list(range(run.federation.clients))
    if client != "all":
        clients = [_read_number(word) for word in client.split(",")]
    return extract_features(run, clients, part, model == "global")


def _read_number(word: str) -> int:
    if not word.strip().isdigit():
        raise UserError(f"--client {word}: write all, 3, or 0,3,5")
    return int(word)
