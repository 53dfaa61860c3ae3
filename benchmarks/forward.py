"""``python -m benchmarks.forward``: x W^T beside (W x^T)^T on this machine.

``factored_linear.TRANSPOSED`` says which one is used.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.models.factored_linear import TRANSPOSED

SHAPES = ((3328, 1664), (1664, 1664), (1024, 1664), (512, 1600), (512, 1024))
BATCHES = (2, 10, 32, 128)
REPEATS = 40


def main() -> None:
    torch.set_num_threads(1)
    print(
        f"{torch.backends.cpu.get_cpu_capability()}, one core; used here: {'(W x^T)^T' if TRANSPOSED else 'x W^T'}"
    )
    for shape in SHAPES:
        for batch in BATCHES:
            x, bias = torch.randn(batch, shape[1]), torch.randn(shape[0])
            plain, turned = compare(
                lambda w, x=x, b=bias: F.linear(x, w, b),
                lambda w, x=x, b=bias: torch.addmm(b[:, None], w, x.t().contiguous()).t(),
                shape,
            )
            took = f"{1e3 * plain:6.2f} and {1e3 * turned:6.2f} ms"
            print(
                f"{shape[0]} x {shape[1]}, batch {batch:3}: {took}, turned takes {turned / plain:.2f} of the time"
            )


def compare(
    one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], shape: tuple[int, int]
) -> list[float]:
    """Median seconds of both, in turns, on weights that are not in the cache."""
    weights = [torch.randn(shape) for _ in range(4)]
    seconds: tuple[list[float], list[float]] = ([], [])
    for i in range(REPEATS):
        for took, run in zip(seconds, (one, other), strict=True):
            began = time.perf_counter()
            run(weights[i % len(weights)])
            took.append(time.perf_counter() - began)
    return [statistics.median(s) for s in seconds]


if __name__ == "__main__":
    main()
