"""Where the time of one training step goes on one core, and how fast a core multiplies matrices.

A part is ``{"name", "network", "shape", "batch", "steps"}``: one thread, plain layout and channels last, kernel times
from torch's profiler. ``seconds`` are those of single steps, channels last.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks.networks import build
from benchmarks.programs.talk import listen, tell

SIDE = 1024  # of the matrices whose product tells what a core can do
KERNELS = {
    "aten::mkldnn_convolution": "convolutions",
    "aten::convolution_backward": "convolutions",
    "aten::mm": "linear layers",
    "aten::addmm": "linear layers",
}


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    for part in listen()["parts"]:
        tell(part["name"], run(part))


def run(part: dict[str, Any]) -> dict[str, Any]:
    net = build(part["network"], tuple(part["shape"]), 10, 0)
    x = torch.rand(part["batch"], *part["shape"])
    y = torch.arange(part["batch"]) % 10
    last = torch.empty_like(x, memory_format=torch.channels_last).copy_(x)
    plain, seconds = time_steps(net, x, y, part["steps"]), time_steps(net, last, y, part["steps"])
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        time_steps(net, last, y, part["steps"])
    spent = dict.fromkeys(KERNELS.values(), 0.0)
    for event in seen.key_averages():
        if event.key in KERNELS:
            spent[KERNELS[event.key]] += event.self_cpu_time_total / 1e6 / (part["steps"] + 1)
    return {
        "seconds": seconds,
        "plain": plain,
        "kernels": spent,
        "flops": count_flops(net, last[:1]) * part["batch"],
        "peak": measure_peak(),
        "check": {},
    }


def time_steps(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> list[float]:
    """A warm-up step, then the seconds of each."""
    parameters, found = list(net.parameters()), list[float]()
    for _ in range(steps + 1):
        began = time.perf_counter()
        gradients = torch.autograd.grad(F.cross_entropy(net(x), y), parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-0.001)
        found.append(time.perf_counter() - began)
    return found[1:]


def count_flops(net: nn.Module, x: Tensor) -> float:
    """Floating-point operations of a step per example: forward, and as many again for each of the two gradients.

    The first layer needs no gradient of its input.
    """
    total, first = 0.0, True
    for layer in net.modules():
        if not isinstance(layer, nn.Sequential):
            x = layer(x)
            if isinstance(layer, nn.Conv2d | nn.Linear):
                total += (2 if first else 3) * 2 * x[0].numel() * layer.weight[0].numel()
                first = False
    return total


def measure_peak() -> float:
    """Floating-point operations a second of the best of ten matrix products."""
    a, b, best = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE), float("inf")
    for _ in range(10):
        began = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - began)
    return 2 * SIDE**3 / best


if __name__ == "__main__":
    main()
