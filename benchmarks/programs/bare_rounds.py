"""Bare loops: every client's own forward, backward and updates, in two single-threaded processes, nothing else.

A part is ``{"name", "method", "work", "warm", "timed"}``. Clients are dealt to the processes longest first; a round
ends when both are done. Every visit starts from the first values and takes the batches of round 1.
How PyTorch computes (layout of images, allocator, denormals, threads) is as in FedTailor's workers, so that what is
left between the two is the engine.
"""

from __future__ import annotations

import multiprocessing
import time
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import torch

from benchmarks.bare import VISITS, Guest, assemble
from benchmarks.programs.talk import listen, tell
from benchmarks.work import Work, read
from fedtailor.core.torch_settings import keep_freed_memory
from fedtailor.training.net import choose_layout

PROCESSES = 2


def deal(work: Work, rank: int) -> list[tuple[int, list[torch.Tensor]]]:
    """This process's visits of round 1: longest first, each to the process with least to do."""
    load, mine = [0] * PROCESSES, []
    for k, epochs in sorted(
        zip(work.cohorts[0].tolist(), work.at[1], strict=True), key=lambda v: -len(v[1][0])
    ):
        to = load.index(min(load))
        load[to] += len(epochs[0])
        if to == rank:
            mine.append((k, epochs))
    return mine


def labour(rank: int, barrier: Barrier, out: Connection, parts: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    for part in parts:
        work = read(part["work"])
        about = work.about
        kit = assemble(part["method"], work.blank(), work.first, about["lr"])
        guests = []
        for k, epochs in deal(work, rank):
            x, batches = (
                lay_out(work.inputs(work.rows[k]), kit.net),
                [at.split(about["batch"]) for at in epochs],
            )
            guests.append(Guest(x, work.y[work.rows[k]], batches, about["classes"]))
        visit, ends = VISITS[part["method"]], list[float]()
        barrier.wait()
        ends.append(time.perf_counter())
        for _ in range(part["warm"] + part["timed"]):
            for guest in guests:
                visit(kit, guest)
            barrier.wait()
            ends.append(time.perf_counter())
        if rank == 0:
            out.send((part, ends))


def lay_out(x: torch.Tensor, net: torch.nn.Module) -> torch.Tensor:
    """Images as FedTailor has them in memory for this network."""
    return torch.empty_like(x, memory_format=choose_layout(net)).copy_(x) if x.dim() == 4 else x


def main() -> None:
    parts = listen()["parts"]
    fresh = multiprocessing.get_context("spawn")
    barrier, (ours, theirs) = fresh.Barrier(PROCESSES), fresh.Pipe(duplex=False)
    crew = [
        fresh.Process(target=labour, args=(rank, barrier, theirs, parts))
        for rank in range(PROCESSES)
    ]
    for process in crew:
        process.start()
    theirs.close()
    for _ in parts:
        part, ends = ours.recv()
        tell(part["name"], {"seconds": [b - a for a, b in pairwise(ends[part["warm"] :])]})
    for process in crew:
        process.join()


if __name__ == "__main__":
    main()
