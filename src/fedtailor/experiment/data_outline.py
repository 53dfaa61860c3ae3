"""Shapes and labels of a run's data, so that its models can be used where the data are not."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation, TableFill
from fedtailor.storage.files import write_bytes


def write_outline(federation: Federation, path: Path) -> None:
    """Write the shape of an input, names, and every client's training labels.

    The labels are needed because some methods' models depend on a client's class counts.
    """
    fills = [fill and fill.to_dict() for fill in federation.fills]
    about = {
        "name": federation.name,
        "kind": federation.kind,
        "classes": federation.classes,
        "shape": federation.shape,
        "vocabulary": federation.vocabulary,
        "labels": federation.labels,
        "owners": federation.owners,
        "partition": str(federation.settings.get("partition", "")),
        "target": federation.target,
        "columns": federation.columns,
        "words": federation.words,
        "fills": fills,
    }
    labels = federation.y[torch.cat(federation.train)]
    if federation.target != "classes":  # no model depends on numbers
        labels = torch.zeros(len(labels))
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        about=np.array(json.dumps(about)),
        labels=labels.numpy(),
        lengths=np.array([len(indices) for indices in federation.train]),
        dtype=str(federation.x.dtype),
    )
    write_bytes(path, buffer.getvalue())


def without_labels(federation: Federation) -> Federation:
    """The same without labels, for a server that has not seen any."""
    nothing = torch.zeros(0, dtype=torch.int64)
    return replace(federation, y=nothing, train=[nothing] * federation.clients)


def read_outline(path: Path) -> Federation:
    """A federation without inputs, validation and test data."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            labels = torch.from_numpy(arrays["labels"])
            ends = np.cumsum(arrays["lengths"])[:-1]
            dtype: torch.dtype = getattr(
                torch, str(arrays["dtype"]).removeprefix("torch.")
            )
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    train = [
        torch.from_numpy(indices) for indices in np.split(np.arange(len(labels)), ends)
    ]
    nothing = [torch.zeros(0, dtype=torch.int64) for _ in train]
    return Federation(
        name=about["name"],
        kind=about["kind"],
        x=torch.zeros(0, *about["shape"], dtype=dtype),
        y=labels,
        classes=about["classes"],
        train=train,
        val=nothing,
        test=nothing,
        vocabulary=about["vocabulary"],
        labels=tuple(about.get("labels", ())),
        owners=tuple(about.get("owners", ())),
        settings={"partition": about.get("partition", "")},
        target=about.get("target", "classes"),
        columns=tuple(about.get("columns", ())),
        words=tuple(about.get("words", ())),
        fills=[fill and TableFill.from_dict(fill) for fill in about.get("fills", ())],
    )
