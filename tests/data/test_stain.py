"""Stain: nothing changes nothing, dyes are told apart, and white stays white."""

from __future__ import annotations

import numpy as np

from fedtailor.data.stain import DYES, draw_stain, shift_stain

ONE = np.ones(3)
NONE = np.zeros(3)


def light_through(*amounts: float) -> np.ndarray:
    """One pixel with these amounts of the dyes."""
    absorbed = np.array(amounts) @ DYES
    return np.power(10.0, -absorbed)[None, :, None, None]


def test_gain_one_and_shift_zero_change_nothing() -> None:
    images = np.random.default_rng(0).uniform(0.05, 1, (2, 3, 4, 4))
    assert np.allclose(shift_stain(images, ONE, NONE), images, atol=1e-12)


def test_a_gain_changes_the_amount_of_its_dye_alone() -> None:
    found = shift_stain(light_through(0.4, 0.3, 0.0), np.array([2.0, 1, 1]), NONE)
    assert np.allclose(found, light_through(0.8, 0.3, 0.0), atol=1e-12)


def test_a_shift_adds_to_its_dye() -> None:
    found = shift_stain(light_through(0.1, 0.3, 0.0), ONE, np.array([0, 0.2, 0]))
    assert np.allclose(found, light_through(0.1, 0.5, 0.0), atol=1e-12)


def test_white_glass_stays_white_under_gains() -> None:
    white = np.ones((1, 3, 2, 2))
    assert np.allclose(shift_stain(white, np.array([1.3, 0.7, 1.2]), NONE), white)


def test_drawn_stains_are_within_their_strength() -> None:
    gain, shift = draw_stain(0.3, np.random.default_rng(1))
    assert (np.abs(gain - 1) <= 0.3).all() and (np.abs(shift) <= 0.03).all()
    assert np.ptp(gain) > 0.01
