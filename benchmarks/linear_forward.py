"""``python -m benchmarks.linear_forward``: x W^T beside (W x^T)^T on this machine.

``TRANSPOSED`` in fedtailor/models/factored_linear.py says which one is used.
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
WEIGHTS = 4  # used in turn, so that none is in the cache

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


def main() -> None:
    """Print the seconds of both for all shapes and batches."""
    torch.set_num_threads(1)
    capability = torch.backends.cpu.get_cpu_capability()
    used = "(W x^T)^T" if TRANSPOSED else "x W^T"
    print(f"{capability}, one core; used here: {used}")
    for shape in SHAPES:
        for batch in BATCHES:
            print(
                f"{shape[0]} x {shape[1]}, batch {batch:3}: {compare_forwards(shape, batch)}"
            )


def compare_forwards(shape: tuple[int, int], batch: int) -> str:
    """Milliseconds of both, in turns."""
    outputs, inputs = shape
    x = torch.randn(batch, inputs)
    bias = torch.randn(outputs)
    weights = [torch.randn(shape) for _ in range(WEIGHTS)]
    plain_seconds = []
    turned_seconds = []
    for repeat in range(REPEATS):
        weight = weights[repeat % WEIGHTS]
        plain_seconds.append(time_forward(F.linear, x, weight, bias))
        turned_seconds.append(time_forward(multiply_turned, x, weight, bias))
    plain = statistics.median(plain_seconds)
    turned = statistics.median(turned_seconds)
    times = f"{1e3 * plain:6.2f} and {1e3 * turned:6.2f} ms"
    return f"{times}, turned takes {turned / plain:.2f} of the time"


def multiply_turned(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(W x^T)^T."""
    turned = torch.addmm(bias[:, None], weight, x.t().contiguous())
    return turned.t()


def time_forward(forward: Forward, x: Tensor, weight: Tensor, bias: Tensor) -> float:
    """Seconds of one product."""
    began = time.perf_counter()
    forward(x, weight, bias)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
