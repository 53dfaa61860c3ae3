"""FedAvg as one would write it without a framework, in one process.

A module, ``torch.optim.SGD``, ``load_state_dict`` per client, an average. Batches are rows of one
tensor in memory: no DataLoader. A part is ``{"name", "work", "warm", "timed", "threads"}``.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.programs.job_io import print_result, read_parts
from benchmarks.work_file import Work, read_work_file


def main() -> None:
    """Run all parts."""
    torch.set_flush_denormal(True)
    for part in read_parts():
        torch.set_num_threads(part["threads"])
        print_result(part["name"], run_part(part))


def run_part(part: dict[str, Any]) -> dict[str, Any]:
    """Train for some rounds, and evaluate the final model."""
    work = read_work_file(part["work"])
    net = work.build_initial_network()
    x = work.inputs(torch.arange(len(work.x)))
    weights = work.initial
    rounds = part["warm"] + part["timed"] + 1
    ends = [time.perf_counter()]
    for t in range(1, rounds + 1):
        weights = run_round(work, net, weights, x, t)
        ends.append(time.perf_counter())
    net.load_state_dict(weights)
    timed = ends[part["warm"] : -1]
    return {
        "seconds": [after - before for before, after in pairwise(timed)],
        "check": work.evaluate(net),
    }


def run_round(
    work: Work, net: nn.Module, weights: dict[str, Tensor], x: Tensor, t: int
) -> dict[str, Tensor]:
    """The average of the models that the clients of round ``t`` train."""
    cohort = work.cohort(t)
    examples = sum(len(work.rows[k]) for k in cohort)
    mean = {name: torch.zeros_like(value) for name, value in weights.items()}
    for place, k in enumerate(cohort):
        net.load_state_dict(weights)
        optimiser = torch.optim.SGD(net.parameters(), lr=work.task.lr)
        for rows in work.visit_rows(t, place).split(work.task.batch):
            optimiser.zero_grad()
            loss = F.cross_entropy(net(x[rows]), work.y[rows])
            loss.backward()
            optimiser.step()
        share = len(work.rows[k]) / examples
        for name, value in net.state_dict().items():
            mean[name].add_(value, alpha=share)
    return mean


if __name__ == "__main__":
    main()
