"""The picture of Grad-CAM: images in the first row, where the model looks below (FedCP, Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedtailor.experiment.grad_cam import Maps
from fedtailor.report.figure import make_figure, save_figure


def draw_grad_cam(
    stem: Path, images: Tensor, captions: Sequence[str], found: Maps, title: str
) -> list[Path]:
    """Write the picture: a column for every image, a row for every active part."""
    pictures = [as_picture(image) for image in images]
    count = len(pictures)
    figure = make_figure(1.5 * count + 1.3, 1.5 * (len(found.maps) + 1) + 0.7)
    panels: Any = figure.subplots(len(found.maps) + 1, count, squeeze=False)
    for axes, picture, caption in zip(panels[0], pictures, captions, strict=True):
        axes.imshow(picture, cmap="gray", vmin=0, vmax=1)
        axes.set_title(caption, fontsize=8)
    for row, (name, maps) in zip(panels[1:], found.maps.items(), strict=True):
        for axes, picture, heat in zip(row, pictures, maps.numpy(), strict=True):
            axes.imshow(_to_grey(picture), cmap="gray", vmin=0, vmax=1)
            if heat.max() > 0:
                # where the model does not look the image stays as it is
                axes.imshow(heat, cmap="inferno", vmin=0, vmax=1, alpha=0.9 * heat)
            else:
                _say_nothing(axes)
        _name_row(row[0], name)
    _name_row(panels[0][0], "image")
    for axes in panels.flat:
        axes.set_xticks([])
        axes.set_yticks([])
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, stem)


def _name_row(axes: Any, name: str) -> None:
    axes.set_ylabel(name, fontsize=9)


def _say_nothing(axes: Any) -> None:
    """No place speaks for the class."""
    axes.text(
        0.5,
        0.5,
        "nothing speaks\nfor this class",
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=8,
        color="white",
        bbox={"facecolor": "black", "alpha": 0.7, "linewidth": 0},
    )


def as_picture(image: Tensor) -> np.ndarray:
    """An image with values from 0 to 1, channels last; its first channel if it has no colours."""
    values = image.float()
    low = values.min()
    spread = (values.max() - low).clamp(min=1e-12)
    plain: np.ndarray = ((values - low) / spread).numpy()
    if len(plain) == 3:
        return plain.transpose(1, 2, 0)
    return np.asarray(plain[0])


def _to_grey(picture: np.ndarray) -> np.ndarray:
    """Without colours, so that those of the map can be told."""
    if picture.ndim == 2:
        return picture
    return np.asarray(picture.mean(-1))
