"""Feature skew: the same things look different from client to client.

It is written behind a partition, ``iid+rotation:4`` or ``dirichlet:0.1+colour:0.3+noise:0.1``, and
changes the images of every client in a way of its own, the same in training and testing. What is
random in it follows from the partition's seed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError, unknown
from fedtailor.core.rng import Purpose, Rng
from fedtailor.data.federation import Federation
from fedtailor.data.stain import Floats, draw_stain, shift_stain

STREAM = 3  # of the partition's randomness; the laws use those before


@dataclass(frozen=True)
class Place:
    """Which client it is, and its randomness."""

    k: int
    clients: int
    rng: np.random.Generator

    @property
    def level(self) -> float:
        """From 1/K at the first client to 1 at the last."""
        return (self.k + 1) / self.clients


# changes one client's images, (n, C, H, W) in [0, 1], by a strength
Change = Callable[[Floats, float, Place], Floats]


# ---------------------------------------------------------------- the kinds of skew
def rotate(images: Floats, groups: float, place: Place) -> Floats:
    """Clients of G groups turn their images by 0, 360/G, 2 * 360/G ... degrees."""
    number = place.k % int(groups)
    degrees = 360 * number / int(groups)
    is_square = images.shape[2] == images.shape[3]
    if degrees % 90 == 0 and is_square:
        turned: Floats = np.rot90(images, int(degrees // 90), axes=(2, 3))
        return turned
    from scipy import ndimage  # takes a while to import

    found: Floats = ndimage.rotate(
        images, degrees, axes=(3, 2), reshape=False, order=1, mode="nearest"
    )
    return found


def colour(images: Floats, strength: float, place: Place) -> Floats:
    """Every client has a gain and a shift of its own in every channel."""
    channels = images.shape[1]
    gain = place.rng.uniform(1 - strength, 1 + strength, (channels, 1, 1))
    shift = place.rng.uniform(-strength, strength, (channels, 1, 1)) / 2
    found: Floats = images * gain + shift
    return found


def blur(images: Floats, pixels: float, place: Place) -> Floats:
    """A Gaussian's width grows from client to client, up to so many pixels."""
    width = pixels * place.level
    from scipy import ndimage

    found: Floats = ndimage.gaussian_filter(images, (0, 0, width, width))
    return found


def noise(images: Floats, deviation: float, place: Place) -> Floats:
    """Gaussian noise grows from client to client, up to this deviation."""
    drawn = place.rng.normal(0, deviation * place.level, images.shape)
    found: Floats = images + drawn
    return found


def stain(images: Floats, strength: float, place: Place) -> Floats:
    """Every client's laboratory stains otherwise."""
    gain, shift = draw_stain(strength, place.rng)
    return shift_stain(images, gain, shift)


@dataclass(frozen=True)
class Kind:
    """A kind of skew."""

    change: Change
    usual: float  # strength where none is given
    highest: float
    meaning: str  # of the strength

    def check(self, name: str, strength: float) -> None:
        """Refuse a strength that makes no sense."""
        is_count = self.change is rotate
        fits = 0 < strength <= self.highest
        if is_count:
            fits = 2 <= strength <= self.highest and strength.is_integer()
        if not fits:
            least = "a whole number from 2" if is_count else "above 0"
            raise UserError(
                f"skew '{name}': {self.meaning} must be {least} to {self.highest:g},"
                f" e.g. {name}:{self.usual:g}"
            )


KINDS = {
    "rotation": Kind(rotate, 4, 360, "the number of groups"),
    "colour": Kind(colour, 0.5, 1, "the strength"),
    "blur": Kind(blur, 1.5, 20, "the width in pixels"),
    "noise": Kind(noise, 0.3, 2, "the deviation"),
    "stain": Kind(stain, 0.3, 1, "the strength"),
}


# ---------------------------------------------------------------- as it is written
def cut_skew(text: str) -> tuple[str, str]:
    """A partition and the skew behind it: ``iid+blur`` is ``iid`` and ``blur:1.5``.

    A skew alone stands for an even division: ``blur`` is ``iid+blur``.
    """
    partition, *skews = re.split(r"\+(?=[A-Za-z])", text)  # not the one in 1e+3
    if partition.partition(":")[0] in KINDS:
        skews.insert(0, partition)
        partition = "iid"
    if not skews:
        return partition, ""
    if partition.endswith(".npz"):
        raise UserError(
            f"partition '{text}': a saved partition has the skew it was saved with; save one "
            "with this skew"
        )
    strengths = dict(read_skew(skew) for skew in skews)
    written = [f"{name}:{strength:g}" for name, strength in strengths.items()]
    return partition, "+".join(written)


def read_skew(text: str) -> tuple[str, float]:
    """Name and strength of one skew."""
    name, _, number = text.partition(":")
    if name not in KINDS:
        raise unknown("feature skew", name, KINDS)
    kind = KINDS[name]
    strength = float(kind.usual)
    if number:
        try:
            strength = float(number)
        except ValueError:
            strength = math.nan
    kind.check(name, strength)
    return name, strength


# ---------------------------------------------------------------- the images
def skew_features(federation: Federation) -> Federation:
    """The federation with every client's images changed as its settings say.

    Samples that no client owns, and external sets, stay as they are.
    """
    text = str(federation.settings.get("skew") or "")
    if not text:
        return federation
    if federation.kind != "image":
        raise UserError(
            f"skew '{text}': only images can be skewed, and '{federation.name}' has none"
        )
    if "stain" in text and federation.shape[0] != 3:
        raise UserError(
            f"skew '{text}': stain needs images in colour, and those of"
            f" '{federation.name}' have {federation.shape[0]} channel(s)"
        )
    x = federation.x if federation.row is None else federation.x[federation.row]
    x = x.clone()
    low, high = find_limits(x)
    skews = [read_skew(skew) for skew in text.split("+")]
    seed = int(federation.settings.get("seed") or 0)
    for k in range(federation.clients):
        parts = (federation.train[k], federation.val[k], federation.test[k])
        index = torch.cat(parts).sort().values
        images = x[index].numpy().astype(np.float64)
        images = (images - low) / (high - low)
        for number, (name, strength) in enumerate(skews):
            rng = Rng.seed(seed, Purpose.PARTITION, STREAM, number, k).numpy()
            place = Place(k, federation.clients, rng)
            images = KINDS[name].change(images, strength, place).clip(0, 1)
        x[index] = to_stored(images * (high - low) + low, x.dtype)
    return replace(federation, x=x, row=None)


def find_limits(x: Tensor) -> tuple[float, float]:
    """Black and white: of bytes 0 and 255, else the smallest and the largest number."""
    if x.dtype == torch.uint8:
        return 0.0, 255.0
    low = float(x.min())
    return low, max(float(x.max()), low + 1e-12)


def to_stored(images: Floats, dtype: torch.dtype) -> Tensor:
    """Values as the data set stores them."""
    if dtype == torch.uint8:
        images = images.round()
    return torch.from_numpy(images).to(dtype)
