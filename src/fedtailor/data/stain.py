"""Stain of tissue: how much of each dye is in a picture, and the same tissue stained otherwise.

Ruifrok and Johnston (2001) separate the light that haematoxylin, eosin and DAB absorb; shifting the
amounts is how Tellez et al. (2018) imitate the differences between laboratories.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]

# the absorption of red, green and blue by each dye (rows)
DYES = np.array(
    [
        [0.65, 0.70, 0.29],  # haematoxylin
        [0.07, 0.99, 0.11],  # eosin
        [0.27, 0.57, 0.78],  # DAB
    ]
)
DARKEST = 1e-3  # light that passes where none seems to


def shift_stain(images: Floats, gain: Floats, shift: Floats) -> Floats:
    """Pictures (n, 3, H, W) in [0, 1] with ``gain`` times each dye's amount plus ``shift``."""
    absorbed = -np.log10(np.clip(images, DARKEST, 1))
    separate = np.linalg.inv(DYES)
    dyes = np.einsum("nchw,cd->ndhw", absorbed, separate)
    changed = dyes * gain[:, None, None] + shift[:, None, None]
    light = np.einsum("ndhw,dc->nchw", changed, DYES)
    found: Floats = np.clip(10.0**-light, 0, 1)
    return found


def draw_stain(strength: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Gain and shift of each dye, so far from 1 and 0 at most; shifts are a tenth as large."""
    gain = rng.uniform(1 - strength, 1 + strength, 3)
    shift = rng.uniform(-strength, strength, 3) / 10
    return gain, shift
