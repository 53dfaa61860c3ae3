"""FedAvg as anybody would write it: a module, ``torch.optim.SGD``, ``load_state_dict`` per client, an average.

A part is ``{"name", "work", "warm", "timed", "threads"}``. Batches are rows of one tensor in memory: no DataLoader.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.programs.talk import listen, tell
from benchmarks.work import read


def main() -> None:
    torch.set_flush_denormal(True)
    for part in listen()["parts"]:
        torch.set_num_threads(part["threads"])
        tell(part["name"], run(part))


def run(part: dict[str, Any]) -> dict[str, Any]:
    work = read(part["work"])
    net, lr, batch = work.net(), work.about["lr"], work.about["batch"]
    x, y = work.inputs(torch.arange(len(work.x))), work.y
    w = {k: v.clone() for k, v in net.state_dict().items()}
    ends = [time.perf_counter()]
    for t in range(1, part["warm"] + part["timed"] + 2):
        visits = work.visits(t)
        n = sum(len(work.rows[k]) for k, _ in visits)
        mean = {k: torch.zeros_like(v) for k, v in w.items()}
        for k, (rows, *_) in visits:
            net.load_state_dict(w)
            optimiser = torch.optim.SGD(net.parameters(), lr=lr)
            for at in rows.split(batch):
                optimiser.zero_grad()
                F.cross_entropy(net(x[at]), y[at]).backward()
                optimiser.step()
            for name, value in net.state_dict().items():
                mean[name].add_(value, alpha=len(work.rows[k]) / n)
        w = mean
        ends.append(time.perf_counter())
    net.load_state_dict(w)
    seconds = [b - a for a, b in pairwise(ends)]
    return {"seconds": seconds[part["warm"] : -1], "check": work.score(net)}


if __name__ == "__main__":
    main()
