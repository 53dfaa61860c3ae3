"""How close recovered inputs are to the originals: PSNR, SSIM, and which belongs to which."""

from __future__ import annotations

import math

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

BEST_PSNR = 100.0  # what equal images are said to have
WINDOW = 7  # of SSIM, the usual uniform one
STABILISERS = (0.01, 0.03)  # K_1 and K_2 of SSIM


def to_unit(x: Tensor, low: float, high: float) -> Tensor:
    """Values from 0 to 1."""
    return (x - low) / max(high - low, 1e-12)


def psnr(a: Tensor, b: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of values from 0 to 1."""
    error = float(F.mse_loss(a, b))
    if error <= 10 ** (-BEST_PSNR / 10):
        return BEST_PSNR
    return -10 * math.log10(error)


def ssim(a: Tensor, b: Tensor) -> float:
    """Structural similarity (Wang et al., 2004) of two images (C, H, W) from 0 to 1.

    Uniform windows of 7 x 7 (smaller where the image is), mean over windows and channels.
    """
    size = min(WINDOW, *a.shape[-2:])
    pixels = size * size
    unbiased = pixels / (pixels - 1)

    def mean(x: Tensor) -> Tensor:
        return F.avg_pool2d(x[:, None].double(), size, stride=1)

    mean_a = mean(a)
    mean_b = mean(b)
    var_a = unbiased * (mean(a * a) - mean_a**2)
    var_b = unbiased * (mean(b * b) - mean_b**2)
    both = unbiased * (mean(a * b) - mean_a * mean_b)
    c1 = STABILISERS[0] ** 2
    c2 = STABILISERS[1] ** 2
    top = (2 * mean_a * mean_b + c1) * (2 * both + c2)
    bottom = (mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2)
    return float((top / bottom).mean())


def pair_up(recovered: Tensor, originals: Tensor) -> list[int]:
    """For every original, the recovered input that is taken for it: least error in all."""
    flat = originals.flatten(1)
    cost = torch.cdist(flat.double(), recovered.flatten(1).double()) ** 2
    _, chosen = linear_sum_assignment(cost.numpy())
    return [int(i) for i in chosen]


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute step between neighbouring pixels; 0 for inputs that are no images."""
    if x.dim() != 4:
        return x.new_zeros(())
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
    right = (x[..., 1:] - x[..., :-1]).abs().mean()
    return down + right
