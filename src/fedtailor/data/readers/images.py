"""Picture files as arrays of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from fedtailor.core.errors import UserError
from fedtailor.data.raw import Array

ENDINGS = frozenset(
    {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".ppm", ".pgm"}
)
GREY = frozenset({"1", "L", "LA"})


def list_pictures(folder: Path) -> list[Path]:
    """The picture files in a folder, by name; hidden files are no pictures, any other file is a mistake."""
    files = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    for path in files:
        if path.is_dir() or path.suffix.lower() not in ENDINGS:
            raise UserError(
                f"{path} is not a picture; {folder} may hold {', '.join(sorted(ENDINGS))} files only"
            )
    return files


def list_folders(folder: Path) -> list[Path]:
    """The folders in a folder, by name."""
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def is_grey(path: Path) -> bool:
    """Whether a picture has no colours; only its header is read."""
    with _open(path) as picture:
        return picture.mode in GREY


def read_picture(path: Path, *, mode: str = "RGB", resize: int = 0, upright: bool = False) -> Array:
    """One picture as bytes (channels, height, width); ``upright`` turns it as its camera says."""
    try:
        with _open(path) as opened:
            picture: Image.Image = ImageOps.exif_transpose(opened) if upright else opened
            picture = picture.convert(mode)
            if resize and picture.size != (resize, resize):
                picture = picture.resize(
                    (resize, resize), Image.Resampling.BILINEAR
                )  # averages when it shrinks
            array = np.asarray(picture)
    except (
        OSError,
        SyntaxError,
        ValueError,
    ) as e:  # Pillow's words for a damaged file depend on its format
        raise UserError(
            f"{path} is truncated or damaged ({e}); put an intact picture there"
        ) from None
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _open(path: Path) -> Image.Image:
    try:
        picture = Image.open(path)
        if picture.mode[0] in "IF":  # a byte would not do, and Pillow would cut the values off
            picture.close()
            raise UserError(
                f"{path} has more than 8 bits a pixel; bring it to 8 bits, or give numbers in an npz file"
            )
        return picture
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as e:
        reason = "its format is not known" if "cannot identify" in str(e) else e
        raise UserError(f"{path} cannot be read as a picture ({reason})") from None


def stack_pictures(
    paths: Sequence[Path],
    shape: tuple[int, ...] | None = None,
    *,
    mode: str = "RGB",
    resize: int = 0,
    **how: bool,
) -> Array:
    """Pictures of one size as one array; without ``shape``, the first picture tells the size."""
    first = read_picture(paths[0], mode=mode, resize=resize, **how)
    shape = shape or first.shape
    out = np.empty((len(paths), *shape), np.uint8)
    for i, path in enumerate(paths):
        picture = read_picture(path, mode=mode, resize=resize, **how)
        if picture.shape != shape:
            raise UserError(
                f"{path} has {picture.shape[2]} x {picture.shape[1]} pixels, "
                f"the others {shape[2]} x {shape[1]}; bring all pictures to one size"
            )
        out[i] = picture
    return out
