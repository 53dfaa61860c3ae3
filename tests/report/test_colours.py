"""Methods look the same everywhere, and can be told apart, also by people who see fewer colours."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedtailor.methods import names
from fedtailor.report.colours import BROWN, GREY, HUES, choose_styles

# Machado et al. 2009, severity 1: what is seen without long-, without medium-wave receptors
VISIONS = {
    "full": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
OKLAB = (
    np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    ),
    np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    ),
)


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(
        values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4
    )


def perceive(colour: str, vision: str) -> np.ndarray:
    seen = np.clip(VISIONS[vision] @ linear(colour), 0, 1)
    return OKLAB[1] @ np.cbrt(OKLAB[0] @ seen)


def contrast(one: str, other: str) -> float:
    light = [
        float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (one, other)
    ]
    return (max(light) + 0.05) / (min(light) + 0.05)


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_are_told_apart(vision: str) -> None:
    for one, other in itertools.combinations([*HUES, GREY, BROWN], 2):
        gap = float(np.linalg.norm(perceive(one, vision) - perceive(other, vision)))
        assert gap > 0.045, (one, other)


@pytest.mark.parametrize("ground", ["#ffffff", "#1a1f26"])
def test_colours_stand_out_on_paper_and_in_the_dark(ground: str) -> None:
    for colour in (*HUES, GREY, BROWN):
        assert contrast(colour, ground) > 2.7, colour


def test_a_method_looks_the_same_in_any_company_and_like_no_other() -> None:
    everyone = choose_styles(names())
    assert choose_styles(["local", "fedper"])["fedper"] == everyone["fedper"]
    looks = [(style.colour, style.line) for style in everyone.values()]
    assert len(set(looks)) >= len(HUES) * 4
    assert choose_styles(["mine"]) == {"mine": choose_styles(["mine", "local"])["mine"]}
    assert choose_styles(reversed(names())) == everyone
