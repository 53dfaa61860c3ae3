"""PSNR and SSIM against scikit-image's definitions, computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedtailor.audit.images import pair_up, psnr, ssim, to_unit, total_variation


def picture(seed: int) -> torch.Tensor:
    return torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_psnr_of_a_known_error() -> None:
    a = picture(0) * 0.5
    assert psnr(a, a + 0.1) == pytest.approx(20, abs=1e-4)
    assert psnr(a, a) == 100.0
    assert to_unit(torch.tensor([-1.0, 0.0, 1.0]), -1, 1).tolist() == [0, 0.5, 1]


def test_ssim_of_windows_by_hand() -> None:
    """Two 7 x 7 windows in each direction; unbiased variances as in scikit-image."""
    a = picture(1)
    b = picture(2)
    values = []
    for i in (0, 1):
        for j in (0, 1):
            x = a[0, i : i + 7, j : j + 7].double().flatten()
            y = b[0, i : i + 7, j : j + 7].double().flatten()
            cov = torch.cov(torch.stack([x, y]))
            top = (2 * x.mean() * y.mean() + 1e-4) * (2 * cov[0, 1] + 9e-4)
            bottom = x.mean() ** 2 + y.mean() ** 2 + 1e-4
            values.append(top / (bottom * (cov[0, 0] + cov[1, 1] + 9e-4)))
    assert ssim(a, b) == pytest.approx(float(sum(values)) / 4, abs=1e-6)
    assert ssim(a, a) == pytest.approx(1.0)
    assert abs(ssim(a, b)) < 0.3


def test_recovered_images_are_given_to_the_originals_they_fit_best() -> None:
    originals = torch.stack([picture(i) for i in range(3)])
    assert pair_up(originals[[2, 0, 1]] + 0.01, originals) == [1, 2, 0]


def test_total_variation_counts_steps() -> None:
    stripes = torch.tensor([[0.0, 1.0], [0.0, 1.0]])[None, None]
    assert float(total_variation(stripes)) == 1.0
    assert float(total_variation(torch.rand(3, 5))) == 0.0
    assert math.isclose(float(total_variation(torch.ones(1, 1, 4, 4))), 0)
