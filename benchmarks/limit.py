"""What the hardware allows: where a step of S1's and S2's networks goes, and the least time a round could take."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

from benchmarks.measured import Contender, Found, Section
from benchmarks.running import Job

TITLE = "Where a step goes, and what the hardware allows"
STEPS = {"pflcnn": 250}  # of an S1 round
PARTS = {
    "S1's network": {"network": "pflcnn", "shape": (3, 32, 32)},
    "S2's network": {"network": "cnn", "shape": (1, 28, 28)},
}


def plan(quick: bool, folder: Path, peers: bool) -> list[Contender]:
    parts = tuple(
        {"name": n, **p, "batch": 10, "steps": 2 if quick else 20} for n, p in PARTS.items()
    )
    return [Contender("kernels", Job("limit/kernels", "kernels", parts))]


def report(found: Found) -> Section:
    rows, notes = [], list[str]()
    for name, about in PARTS.items() if found.has("kernels") else ():
        parts = found.parts("kernels", name)

        def middle(key: str, parts: list[dict[str, object]] = parts) -> float:
            return statistics.median(
                statistics.median(p[key]) if isinstance(p[key], list) else p[key] for p in parts
            )

        step, flops, peak = found.seconds("kernels", name).median, middle("flops"), middle("peak")
        spent = {k: statistics.median(p["kernels"][k] for p in parts) for k in parts[0]["kernels"]}
        floor, cores = flops / peak, len(os.sched_getaffinity(0))
        rows.append(
            (
                name,
                *(f"{1000 * s:.1f}" for s in (middle("plain"), step, *spent.values(), floor)),
                f"{peak / 1e9:.0f}",
            )
        )
        if about["network"] in STEPS:
            many = STEPS[str(about["network"])]
            notes.append(
                f"An S1 round is {many} such steps: {many * step / cores:.2f} s on {cores} cores that do nothing else, "
                f"and {many * floor / cores:.2f} s if every operation ran at the speed of a large matrix product. "
                f"{100 * spent['convolutions'] / step:.0f} % of a step are oneDNN's convolutions and "
                f"{100 * spent['linear layers'] / step:.0f} % matrix products: the same library for all. What "
                f"one framework can gain on another here is the layout, and what the other adds to these kernels."
            )
    return Section(
        TITLE,
        "One step (forward, backward, update) of batch 10 on one core, in milliseconds, alone: in PyTorch's own layout "
        "and with channels last, which FedTailor uses; then how much of the latter are convolutions and linear "
        "layers (torch's profiler, which slows them a little), and how long the step's floating-point operations "
        "would take at the speed this core reaches in a product of two large matrices.",
        (
            "network",
            "plain, ms",
            "channels last, ms",
            "convolutions, ms",
            "linear layers, ms",
            "at matrix speed, ms",
            "matrix speed, GFLOP/s",
        ),
        rows,
        [*notes, *(f"{n} was not measured: {why}" for n, why in found.failures.items())],
    )
