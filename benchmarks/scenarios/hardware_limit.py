"""What the hardware allows: where a step of the networks of S1 and S2 goes, and the least time."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

from benchmarks.harness.job_runner import Job
from benchmarks.harness.measurements import Contender, ScenarioResults, Section

TITLE = "Where a step goes, and what the hardware allows"
TEXT = (
    "One step (forward, backward, update) of batch 10 on one core, in milliseconds, alone: in "
    "PyTorch's own layout and with channels last, which FedTailor uses; then how much of the "
    "latter are convolutions and linear layers (torch's profiler, which slows them a little), and "
    "how long the step's floating-point operations would take at the speed this core reaches in a "
    "product of two large matrices."
)
HEADER = (
    "network",
    "plain, ms",
    "channels last, ms",
    "convolutions, ms",
    "linear layers, ms",
    "at matrix speed, ms",
    "matrix speed, GFLOP/s",
)
S1_NETWORK = "S1's network"
NETWORKS = {
    S1_NETWORK: {"network": "pflcnn", "shape": (3, 32, 32)},
    "S2's network": {"network": "cnn", "shape": (1, 28, 28)},
}
S1_STEPS = 250  # in a round


def plan(quick: bool, folder: Path, peers: bool) -> list[Contender]:
    """One job that takes a few steps with each network."""
    steps = 2 if quick else 20
    parts = []
    for name, network in NETWORKS.items():
        parts.append({"name": name, **network, "batch": 10, "steps": steps})
    job = Job("limit/kernels", "step_kernels", tuple(parts))
    return [Contender("kernels", job)]


def report(results: ScenarioResults) -> Section:
    """A row for every network."""
    rows = []
    notes = []
    if results.has("kernels"):
        rows = [report_network(results, name) for name in NETWORKS]
        notes = [explain_round(results)]
    return Section(TITLE, TEXT, HEADER, rows, [*notes, *results.failure_notes()])


def report_network(results: ScenarioResults, name: str) -> tuple[str, ...]:
    """Milliseconds of a step, of its kernels, and of its operations at the speed of matrices."""
    parts = results.parts("kernels", name)
    plain = statistics.median(statistics.median(part["plain"]) for part in parts)
    peak = statistics.median(part["peak"] for part in parts)
    seconds = (
        plain,
        results.seconds("kernels", name).median,
        find_kernel_seconds(results, name, "convolutions"),
        find_kernel_seconds(results, name, "linear layers"),
        find_least_seconds(results, name),
    )
    return (name, *(f"{1000 * value:.1f}" for value in seconds), f"{peak / 1e9:.0f}")


def find_kernel_seconds(results: ScenarioResults, name: str, kernel: str) -> float:
    """Seconds of a step in one kind of kernel."""
    parts = results.parts("kernels", name)
    return statistics.median(part["kernels"][kernel] for part in parts)


def find_least_seconds(results: ScenarioResults, name: str) -> float:
    """Seconds of a step if all its operations were as fast as those of a matrix product."""
    parts = results.parts("kernels", name)
    operations = statistics.median(part["flops"] for part in parts)
    speed = statistics.median(part["peak"] for part in parts)
    return operations / speed


def explain_round(results: ScenarioResults) -> str:
    """What that means for a round of S1."""
    step = results.seconds("kernels", S1_NETWORK).median
    cores = len(os.sched_getaffinity(0))
    seconds = S1_STEPS * step / cores
    least = S1_STEPS * find_least_seconds(results, S1_NETWORK) / cores
    convolutions = find_kernel_seconds(results, S1_NETWORK, "convolutions") / step
    linear = find_kernel_seconds(results, S1_NETWORK, "linear layers") / step
    return (
        f"An S1 round is {S1_STEPS} such steps: {seconds:.2f} s on {cores} cores that do nothing "
        f"else, and {least:.2f} s if every operation ran at the speed of a large matrix product. "
        f"{100 * convolutions:.0f} % of a step are oneDNN's convolutions and {100 * linear:.0f} % "
        "matrix products: the same library for all. What one framework can gain on another here "
        "is the layout, and what the other adds to these kernels."
    )
