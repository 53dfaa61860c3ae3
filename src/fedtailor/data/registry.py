"""Data sets by name: where their files are looked for, and what they become."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from fedtailor.data.federation import Dataset, Kind
from fedtailor.errors import UserError, unknown

KINDS: dict[str, tuple[Kind, int]] = {
    "mnist": ("image", 10),
    "fashion_mnist": ("image", 10),
    "cifar10": ("image", 10),
    "cifar100": ("image", 100),
    "tiny_imagenet": ("image", 200),
    "har": ("signal", 6),
    "amazon": ("table", 2),
    "heart": ("table", 2),
}


def load(name: str, folder: Path | None = None, *, missing: str | None = None) -> Dataset:
    """The data set of this name."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        images = np.rint(x * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        return Dataset(
            name,
            "image",
            torch.from_numpy(images),
            torch.from_numpy(y.astype(np.int64)),
            10,
            labels=tuple("0123456789"),
        )
    if name not in KINDS:
        raise unknown("data set", name, ["digits", *KINDS])
    folder = folder or Path(os.environ.get("FEDTAILOR_DATA", "~/.fedtailor/data")).expanduser()
    path = folder / f"{name}.npz"
    if not path.exists():
        raise UserError(f"no files of '{name}' in {folder}: put {name}.npz there")
    kind, classes = KINDS[name]
    with np.load(path, allow_pickle=False) as z:
        part = {k: torch.from_numpy(z[k]) for k in z.files}
    test = None if name == "har" else part.get("test")
    return Dataset(name, kind, part["x"], part["y"], classes, test=test, owner=part.get("client"))
