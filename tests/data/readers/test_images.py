"""Image files as arrays, and files that are no images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data_helpers import refusal
from PIL import Image

from fedtailor.data.readers.images import (
    is_grey,
    list_folders,
    list_images,
    read_image,
    stack_images,
)


def write_image(path: Path, size: tuple[int, int] = (10, 8), mode: str = "RGB") -> Path:
    Image.new(mode, size, 9 if mode == "L" else (9, 50, 0)).save(path)
    return path


def test_channels_come_first(tmp_path: Path) -> None:
    coloured = read_image(write_image(tmp_path / "a.png"))
    assert coloured.shape == (3, 8, 10) and coloured[:, 0, 0].tolist() == [9, 50, 0]
    grey = write_image(tmp_path / "b.png", mode="L")
    assert is_grey(grey) and not is_grey(tmp_path / "a.png")
    assert read_image(grey, mode="L").shape == (1, 8, 10)
    assert read_image(grey).shape == (3, 8, 10)


def test_shrinking_averages(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 200
    Image.fromarray(stripes).save(tmp_path / "a.png")
    small = read_image(tmp_path / "a.png", mode="L", resize=8)
    assert small.shape == (1, 8, 8) and np.abs(small.astype(int) - 100).max() < 20


def test_images_are_turned_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (8, 10))
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was held sideways
    image.save(tmp_path / "a.png", exif=exif)
    assert read_image(tmp_path / "a.png", upright=True).shape == (3, 8, 10)
    assert read_image(tmp_path / "a.png").shape == (3, 10, 8)


def test_stacked_images_have_one_size(tmp_path: Path) -> None:
    paths = [write_image(tmp_path / f"{i}.png") for i in range(3)]
    assert stack_images(paths).shape == (3, 3, 8, 10)
    wide = write_image(tmp_path / "wide.png", size=(12, 8))
    message = refusal(stack_images, [*paths, wide])
    assert f"{wide} has 12 x 8 pixels, the others 10 x 8" in message
    assert f"{paths[0]} has 10 x 8 pixels, the others 9 x 7" in refusal(
        stack_images, paths, (3, 7, 9)
    )


@pytest.mark.parametrize(
    "content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"]
)
def test_a_file_that_is_no_image(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "9.png"
    path.write_bytes(content)
    assert str(path) in refusal(read_image, path)


def test_half_an_image(tmp_path: Path) -> None:
    path = write_image(tmp_path / "9.png", size=(90, 90))
    path.write_bytes(path.read_bytes()[:-40])
    assert f"{path} is truncated or damaged" in refusal(read_image, path)


def test_more_than_8_bits_are_refused_not_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "9.png"
    Image.fromarray(np.full((8, 10), 3000, np.uint16)).save(path)
    assert f"{path} has more than 8 bits a pixel" in refusal(read_image, path)


def test_lists_are_sorted_and_leave_hidden_files_out(tmp_path: Path) -> None:
    for name in ("b.png", "a.JPG", ".hidden"):
        (tmp_path / name).touch()
    assert [path.name for path in list_images(tmp_path)] == ["a.JPG", "b.png"]
    for name in ("z", "y", ".git"):
        (tmp_path / name).mkdir()
    assert [path.name for path in list_folders(tmp_path)] == ["y", "z"]


def test_a_text_among_images(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert "notes.txt is not a picture" in refusal(list_images, tmp_path)
