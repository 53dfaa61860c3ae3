"""Colorectal tissue: the NCT-CRC folders (histo) and MedMNIST's small version (pathmnist)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Download, Entry
from fedtailor.data.loader import Loader
from fedtailor.data.raw import Array, Raw, join_official_parts
from fedtailor.data.readers.images import list_images, stack_images
from fedtailor.data.readers.npz import read_npz, read_prepared
from fedtailor.data.stain import draw_stain, shift_stain

TISSUES = {  # name of the folder: name of the class
    "ADI": "adipose",
    "BACK": "background",
    "DEB": "debris",
    "LYM": "lymphocytes",
    "MUC": "mucus",
    "MUS": "smooth muscle",
    "NORM": "normal colon mucosa",
    "STR": "cancer-associated stroma",
    "TUM": "colorectal adenocarcinoma epithelium",
}
ZENODO = "https://zenodo.org/records"
CENTRES = ("NCT", "CRC-VAL", "NCT, stained otherwise")
# CD2-pFed's HISTO-FED has 7,180 patches of each public set; its third centre (7,000) and its
# external set (4,000) are private, and parts of NCT, stained otherwise, stand for them
PATCHES = (7180, 7000, 4000)  # out of NCT
STAIN = 0.3  # strength of the difference between laboratories
AT_ONCE = 500  # pictures that are stained together

HISTO = Entry(
    name="histo",
    title="NCT-CRC-HE-100K, tissue of nine types; CRC-VAL-HE-7K as an external set",
    kind="image",
    shape=(3, 64, 64),
    classes=len(TISSUES),
    samples=100_000,
    source="Kather, Halama, Marx, Zenodo 2018",
    homepage="https://zenodo.org/records/1214456",
    licence="CC BY 4.0",
    files=("NCT-CRC-HE-100K",),
    optional_files=("CRC-VAL-HE-7K",),
    downloads=(
        Download(
            file="NCT-CRC-HE-100K.zip",
            urls=(f"{ZENODO}/1214456/files/NCT-CRC-HE-100K.zip?download=1",),
            checksum="md5:6fd702d11df6292bc054397ae038a464",
            contains=("NCT-CRC-HE-100K",),
        ),
        Download(
            file="CRC-VAL-HE-7K.zip",
            urls=(f"{ZENODO}/1214456/files/CRC-VAL-HE-7K.zip?download=1",),
            checksum="md5:2fd1651b4f94ebd818ebf90ad2b6ce06",
            contains=("CRC-VAL-HE-7K",),
        ),
    ),
    labels=tuple(TISSUES.values()),
    variants=("64", "32", "224", "centres"),
    separate_files=True,
    overrides={
        "32": {"shape": (3, 32, 32)},
        "224": {"shape": (3, 224, 224)},
        "centres": {
            "natural_clients": "3 centres",
            "owners": CENTRES,
            "samples": 2 * 7180 + 7000,
        },
    },
)
PATHMNIST = Entry(
    name="pathmnist",
    title="PathMNIST of MedMNIST v2, tissue of nine types; another centre is the test part",
    kind="image",
    shape=(3, 28, 28),
    classes=len(TISSUES),
    samples=107_180,
    source="Yang et al., Scientific Data 2023",
    homepage="https://medmnist.com",
    licence="CC BY 4.0",
    files=("pathmnist.npz",),
    downloads=(
        Download(
            file="pathmnist.npz",
            urls=(f"{ZENODO}/10519652/files/pathmnist.npz?download=1",),
            checksum="md5:a8b06965200029087d5bd730944a56c1",
        ),
    ),
    labels=tuple(TISSUES.values()),
)


def parse_histo(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """NCT-CRC-HE-100K in the variant's size, with CRC-VAL-HE-7K as external set if it is there.

    ``centres`` makes clients of both.
    """
    if entry.variant == "centres":
        return _parse_centres(paths, entry)
    x, y = _read_folder(paths["NCT-CRC-HE-100K"], entry)
    arrays = {"x": x, "y": y}
    if "CRC-VAL-HE-7K" in paths:
        x, y = _read_folder(paths["CRC-VAL-HE-7K"], entry)
        arrays |= {"crc_val.x": x, "crc_val.y": y}
    return Raw(arrays)


def _parse_centres(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """Two public centres, and a third one and an external set that are stained otherwise."""
    if "CRC-VAL-HE-7K" not in paths:
        raise UserError(
            "histo:centres needs CRC-VAL-HE-7K, the second centre, beside NCT-CRC-HE-100K"
        )
    x, y = _read_folder(paths["NCT-CRC-HE-100K"], entry)
    other_x, other_y = _read_folder(paths["CRC-VAL-HE-7K"], entry)
    rng = np.random.default_rng(0)
    first, third, outside = _draw_parts(len(y), rng)
    third_x = _stain_otherwise(x[third], rng)
    return Raw(
        {
            "x": np.concatenate([x[first], other_x, third_x]),
            "y": np.concatenate([y[first], other_y, y[third]]),
            "owner": np.repeat([0, 1, 2], [len(first), len(other_y), len(third)]),
            "outside.x": _stain_otherwise(x[outside], rng),
            "outside.y": y[outside],
        },
        owners=CENTRES,
    )


def _draw_parts(n: int, rng: np.random.Generator) -> list[Array]:
    """Disjoint random samples of the paper's sizes; in its proportions where there are fewer."""
    scale = min(1.0, n / sum(PATCHES))
    sizes = [int(scale * size) for size in PATCHES]
    order = rng.permutation(n)
    ends = np.cumsum(sizes)
    return [np.sort(part) for part in np.split(order, ends)[:-1]]


def _stain_otherwise(x: Array, rng: np.random.Generator) -> Array:
    """The pictures as another laboratory would have stained them."""
    gain, shift = draw_stain(STAIN, rng)
    stained = []
    for start in range(0, len(x), AT_ONCE):
        images = x[start : start + AT_ONCE] / 255
        changed = shift_stain(images, gain, shift)
        stained.append((changed * 255).round().astype(np.uint8))
    return np.concatenate(stained)


def _read_folder(folder: Path, entry: Entry) -> tuple[Array, Array]:
    """The images in the folders of all tissues."""
    for tissue in TISSUES:
        if not (folder / tissue).is_dir():
            names = ", ".join(TISSUES)
            raise UserError(
                f"{folder} has no folder '{tissue}'; it needs one for each of {names}"
            )
    files: list[Path] = []
    y: list[int] = []
    for label, tissue in enumerate(TISSUES):
        images = list_images(folder / tissue)
        files += images
        y += [label] * len(images)
    if not files:
        raise UserError(f"{folder} holds no pictures")
    return stack_images(files, entry.shape, resize=entry.shape[1]), np.array(y)


def parse_pathmnist(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """MedMNIST's npz file."""
    return read_pathmnist(paths["pathmnist.npz"], entry)


def read_pathmnist(path: Path, entry: Entry) -> Raw:
    """MedMNIST's file, its validation images joined to the training part, or a prepared one."""
    arrays = read_npz(path)
    if "x" in arrays:
        return read_prepared(path, entry)
    x_train, y_train = _read_part(arrays, "train", path)
    x_val, y_val = _read_part(arrays, "val", path)
    test = _read_part(arrays, "test", path)
    train = np.concatenate([x_train, x_val]), np.concatenate([y_train, y_val])
    return Raw(join_official_parts(train, test))


def _read_part(arrays: dict[str, Array], part: str, path: Path) -> tuple[Array, Array]:
    """Images and labels of the training, validation or test part."""
    for key in (f"{part}_images", f"{part}_labels"):
        if key not in arrays:
            raise UserError(
                f"{path} has no '{key}'; is it the file of another data set?"
            )
    x = arrays[f"{part}_images"]
    if x.ndim != 4 or x.dtype != np.uint8 or x.shape[3] != 3:
        raise UserError(
            f"{path}: '{part}_images' is {x.dtype} of shape {x.shape}, "
            "not coloured pictures as bytes"
        )
    return x.transpose(0, 3, 1, 2), arrays[f"{part}_labels"].reshape(-1)


LOADERS = (
    Loader(HISTO, parse_histo),
    Loader(PATHMNIST, parse_pathmnist, read_pathmnist),
)
