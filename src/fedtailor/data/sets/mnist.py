"""The idx files of MNIST, Fashion-MNIST and EMNIST, gzipped or plain."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.checksums import verify
from fedtailor.data.entry import Entry
from fedtailor.data.raw import Array, Raw, join_parts

OFFICIAL_COUNTS = (60_000, 10_000)


def read_idx(path: Path, dimensions: int) -> tuple[Array, bytes]:
    """The array of bytes in an idx file, and the file's unpacked contents."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise UserError(f"{path} is truncated or damaged ({e}); fetch it again") from None
    header = 4 + 4 * dimensions
    magic = content[:4]
    if len(magic) < 4 or magic[:3] != b"\0\0\x08":
        raise UserError(
            f"{path} is not an idx file of bytes: it begins with {magic.hex() or 'nothing'}"
        )
    if magic[3] != dimensions or len(content) < header:
        kinds = {1: "labels", 3: "images"}
        raise UserError(
            f"{path} holds {kinds.get(magic[3], f'{magic[3]} dimensions')}, not {kinds[dimensions]}; "
            "has it been given another file's name?"
        )
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", dimensions, 4))
    expected, there = int(np.prod(shape, dtype=np.int64)), len(content) - header
    if there != expected:
        state = "truncated" if there < expected else "too long"
        raise UserError(
            f"{path} is {state}: {there} bytes for {' x '.join(map(str, shape))} values"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape), content


def _read_part(images: Path, labels: Path, name: str) -> tuple[Array, Array]:
    x, x_content = read_idx(images, 3)
    y, y_content = read_idx(labels, 1)
    for path, content, count in ((images, x_content, len(x)), (labels, y_content, len(y))):
        verify(
            content, name, path.name.removesuffix(".gz"), path, complete=count in OFFICIAL_COUNTS
        )
    if len(x) != len(y):
        raise UserError(
            f"{images} holds {len(x)} images but {labels.name} {len(y)} labels; is one of another data set?"
        )
    if x.shape[1:] != (28, 28):
        raise UserError(
            f"{images}: images of {x.shape[1]} x {x.shape[2]} pixels, {name} has 28 x 28"
        )
    return x[:, None], y


def parse_idx(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """MNIST or Fashion-MNIST from its four files."""
    train, test = entry.files[:2], entry.files[2:]
    parts = [
        _read_part(paths[images], paths[labels], entry.name) for images, labels in (train, test)
    ]
    return Raw(join_parts(parts[0], parts[1]))


def parse_emnist(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """EMNIST, whose files hold the images with rows and columns exchanged, and letters numbered from 1."""
    arrays = parse_idx(paths, entry).arrays
    first = 1 if entry.variant == "letters" else 0
    return Raw(arrays | {"x": arrays["x"].swapaxes(2, 3), "y": arrays["y"] - first})
