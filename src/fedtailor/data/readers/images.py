"""Image files as arrays of bytes."""

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
GREY_MODES = frozenset({"1", "L", "LA"})


def list_images(folder: Path) -> list[Path]:
    """The image files in a folder, by name; hidden files are ignored, any other file is refused."""
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in files:
        if path.is_dir() or path.suffix.lower() not in ENDINGS:
            endings = ", ".join(sorted(ENDINGS))
            raise UserError(
                f"{path} is not a picture; {folder} may hold {endings} files only"
            )
    return files


def list_folders(folder: Path) -> list[Path]:
    """The folders in a folder, by name; hidden ones are ignored."""
    folders = [path for path in folder.iterdir() if path.is_dir()]
    return sorted(path for path in folders if not path.name.startswith("."))


def is_grey(path: Path) -> bool:
    """Whether an image has no colours; only its header is read."""
    with _open_image(path) as image:
        return image.mode in GREY_MODES


def read_image(
    path: Path, *, mode: str = "RGB", resize: int = 0, upright: bool = False
) -> Array:
    """One image as bytes (channels, height, width).

    Args:
        path: the file.
        mode: ``"RGB"``, or ``"L"`` for grey.
        resize: width and height to bring the image to; 0 keeps its size.
        upright: whether to turn the image as its camera says.
    """
    try:
        with _open_image(path) as opened:
            image: Image.Image = ImageOps.exif_transpose(opened) if upright else opened
            image = image.convert(mode)
            if resize and image.size != (resize, resize):
                # bilinear in Pillow averages when it shrinks
                image = image.resize((resize, resize), Image.Resampling.BILINEAR)
            array = np.asarray(image)
    except (
        OSError,
        SyntaxError,
        ValueError,
    ) as e:  # which one depends on the image's format
        raise UserError(
            f"{path} is truncated or damaged ({e}); put an intact picture there"
        ) from None
    if array.ndim == 2:
        return array[None]
    return array.transpose(2, 0, 1)


def _open_image(path: Path) -> Image.Image:
    try:
        image = Image.open(path)
        if image.mode[0] in "IF":  # Pillow would cut the values off to fit a byte
            image.close()
            raise UserError(
                f"{path} has more than 8 bits a pixel; "
                "bring it to 8 bits, or give numbers in an npz file"
            )
        return image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as e:
        reason = "its format is not known" if "cannot identify" in str(e) else e
        raise UserError(f"{path} cannot be read as a picture ({reason})") from None


def stack_images(
    paths: Sequence[Path],
    shape: tuple[int, ...] | None = None,
    *,
    mode: str = "RGB",
    resize: int = 0,
    upright: bool = False,
) -> Array:
    """Images of one size as one array; without ``shape``, the first image decides the size."""
    if shape is None:
        shape = read_image(paths[0], mode=mode, resize=resize, upright=upright).shape
    stack = np.empty((len(paths), *shape), np.uint8)
    for i, path in enumerate(paths):
        image = read_image(path, mode=mode, resize=resize, upright=upright)
        if image.shape != shape:
            _, height, width = image.shape
            raise UserError(
                f"{path} has {width} x {height} pixels, "
                f"the others {shape[2]} x {shape[1]}; bring all pictures to one size"
            )
        stack[i] = image
    return stack
