"""The features that clients' models extract from their data, with labels and owners."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedtailor.core.errors import UserError, writing
from fedtailor.core.rng import Rng
from fedtailor.experiment.finished_run import FinishedRun, Part
from fedtailor.storage.files import write_bytes


@dataclass(frozen=True)
class FeatureTable:
    """A row for every example: its features, its label and its client."""

    features: np.ndarray  # (examples, features)
    labels: np.ndarray
    clients: np.ndarray
    label_names: tuple[str, ...]  # empty where classes have none
    shares_extractor: bool  # whether all clients have the same extractor

    def __len__(self) -> int:
        return len(self.labels)

    def name_class(self, number: int) -> str:
        """What a class is called."""
        return self.label_names[number] if self.label_names else str(number)


def extract_features(
    run: FinishedRun,
    clients: Sequence[int],
    part: Part = "test",
    is_global: bool = False,
) -> FeatureTable:
    """The features of each client's own data under its own model, or under the global one."""
    features = []
    labels = []
    owners = []
    extractors = set()
    for k in clients:
        x, y = run.data(k, part)
        if not len(y):
            continue
        model = run.shared() if is_global else run.client(k)
        features.append(model.features(x).float().numpy())
        labels.append(y.numpy())
        owners.append(np.full(len(y), k))
        extractors.add(_digest_extractor(model.parameters))
    if not features:
        raise UserError(f"these clients have no {part} data")
    return FeatureTable(
        features=np.concatenate(features),
        labels=np.concatenate(labels),
        clients=np.concatenate(owners),
        label_names=tuple(run.federation.labels),
        shares_extractor=len(extractors) == 1,
    )


def _digest_extractor(parameters: dict[str, torch.Tensor]) -> bytes:
    """What two extractors have in common if they are equal."""
    parts = [
        value.contiguous().cpu().numpy().tobytes()
        for name, value in sorted(parameters.items())
        if name.startswith("base.")
    ]
    return b"".join(parts)


def draw_sample(table: FeatureTable, most: int, seed: int) -> FeatureTable:
    """At most so many examples, drawn at random."""
    if len(table) <= most:
        return table
    order = Rng.seed(seed).uniform(len(table)).argsort()[:most].numpy()
    chosen = np.sort(order)
    return FeatureTable(
        features=table.features[chosen],
        labels=table.labels[chosen],
        clients=table.clients[chosen],
        label_names=table.label_names,
        shares_extractor=table.shares_extractor,
    )


def write_features(path: Path, table: FeatureTable) -> None:
    """Write ``.npz`` (features, labels, clients) or ``.csv`` (a row for every example)."""
    if path.suffix == ".npz":
        text = io.BytesIO()
        np.savez_compressed(
            text, features=table.features, labels=table.labels, clients=table.clients
        )
        write_bytes(path, text.getvalue())
        return
    if path.suffix != ".csv":
        raise UserError(f"{path}: write features to a .npz or a .csv file")
    lines = io.StringIO()
    writer = csv.writer(lines)
    names = [f"feature_{i}" for i in range(table.features.shape[1])]
    writer.writerow(["client", "label", *names])
    for client, label, row in zip(
        table.clients, table.labels, table.features, strict=True
    ):
        writer.writerow([client, table.name_class(label), *row.tolist()])
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, lines.getvalue().encode())
