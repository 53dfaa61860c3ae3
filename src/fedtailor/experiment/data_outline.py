"""What a run remembers of its data, so that its models can be used where those are not: shapes and labels."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import torch

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation
from fedtailor.storage.files import write_bytes


def write_outline(federation: Federation, path: Path) -> None:
    """Every client's training labels (class counts are part of some methods' models), and the shape of an input."""
    f = federation
    about = {
        "name": f.name,
        "kind": f.kind,
        "classes": f.classes,
        "shape": f.shape,
        "vocabulary": f.vocabulary,
    }
    labels = f.y[torch.cat(f.train)].numpy()
    lengths = np.array([len(i) for i in f.train])
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        about=np.array(json.dumps(about)),
        labels=labels,
        lengths=lengths,
        dtype=str(f.x.dtype),
    )
    write_bytes(path, buffer.getvalue())


def read_outline(path: Path) -> Federation:
    """A federation without inputs, validation and test data."""
    try:
        with np.load(path, allow_pickle=False) as z:
            about, labels, lengths = (
                json.loads(str(z["about"])),
                torch.from_numpy(z["labels"]),
                z["lengths"],
            )
            dtype: torch.dtype = getattr(torch, str(z["dtype"]).removeprefix("torch."))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    train = [torch.from_numpy(i) for i in np.split(np.arange(len(labels)), np.cumsum(lengths)[:-1])]
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
    )
