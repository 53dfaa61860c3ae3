"""Where the time of one training step goes on one core, and how fast a core multiplies matrices.

A part is ``{"name", "network", "shape", "batch", "steps"}``: one thread, plain layout and channels
last, kernel times from torch's profiler. ``seconds`` are those of single steps, channels last.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks.networks import build_network
from benchmarks.programs.job_io import print_result, read_parts

MATRIX_SIZE = 1024  # of the matrices whose product tells what a core can do
PRODUCTS = 10  # of them, of which the fastest counts
KERNELS = {
    "aten::mkldnn_convolution": "convolutions",
    "aten::convolution_backward": "convolutions",
    "aten::mm": "linear layers",
    "aten::addmm": "linear layers",
}


def main() -> None:
    """Measure all parts."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    for part in read_parts():
        print_result(part["name"], measure_network(part))


def measure_network(part: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a step in both layouts and of its kernels, its operations, and the peak speed."""
    batch = part["batch"]
    steps = part["steps"]
    shape = tuple(part["shape"])
    net = build_network(part["network"], shape, classes=10)
    x = torch.rand(batch, *shape)
    y = torch.arange(batch) % 10
    channels_last = torch.empty_like(x, memory_format=torch.channels_last).copy_(x)
    return {
        "plain": time_steps(net, x, y, steps),
        "seconds": time_steps(net, channels_last, y, steps),
        "kernels": time_kernels(net, channels_last, y, steps),
        "flops": count_operations(net, channels_last[:1]) * batch,
        "peak": measure_peak(),
        "check": {},
    }


def time_steps(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> list[float]:
    """A step to warm up, then the seconds of each."""
    parameters = list(net.parameters())
    seconds = []
    for _ in range(steps + 1):
        began = time.perf_counter()
        loss = F.cross_entropy(net(x), y)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-0.001)
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def time_kernels(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> dict[str, float]:
    """Seconds of a step in the kernels of convolutions and of linear layers."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        time_steps(net, x, y, steps)
    seconds = dict.fromkeys(KERNELS.values(), 0.0)
    for event in profiler.key_averages():
        if event.key in KERNELS:
            microseconds = event.self_cpu_time_total / (steps + 1)
            seconds[KERNELS[event.key]] += microseconds / 1e6
    return seconds


def count_operations(net: nn.Module, x: Tensor) -> float:
    """Floating-point operations of a step per example.

    Those of the forward pass, and as many again for each of the two gradients; the first layer
    needs no gradient of its input.
    """
    total = 0.0
    passes = 2
    for layer in net.modules():
        if isinstance(layer, nn.Sequential):
            continue
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.Linear):
            products = x[0].numel() * layer.weight[0].numel()
            total += passes * 2 * products
            passes = 3
    return total


def measure_peak() -> float:
    """Floating-point operations a second of the fastest of some matrix products."""
    left = torch.rand(MATRIX_SIZE, MATRIX_SIZE)
    right = torch.rand(MATRIX_SIZE, MATRIX_SIZE)
    fastest = float("inf")
    for _ in range(PRODUCTS):
        began = time.perf_counter()
        left @ right
        fastest = min(fastest, time.perf_counter() - began)
    return 2 * MATRIX_SIZE**3 / fastest


if __name__ == "__main__":
    main()
