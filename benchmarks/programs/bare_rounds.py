"""Bare loops in two single-threaded processes: every client's own training, and nothing else.

A part is ``{"name", "method", "work", "warm", "timed"}``. A round ends when both processes are done
with their clients. Every visit starts from the first values and takes the batches of round 1.
How PyTorch computes (layout of images, allocator, denormals, threads) is as in FedTailor's workers,
so that what is left between the two is the engine.
"""

from __future__ import annotations

import multiprocessing
import time
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.bare_loops import TRAIN, ClientData, build_model
from benchmarks.programs.job_io import print_result, read_parts
from benchmarks.work_file import Work, read_work_file
from fedtailor.core.torch_settings import apply_worker_settings
from fedtailor.training.net import choose_layout

PROCESSES = 2


def main() -> None:
    """Start the processes, and print what the first of them measures."""
    parts = read_parts()
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    receiver, sender = context.Pipe(duplex=False)
    processes = []
    for rank in range(PROCESSES):
        process = context.Process(target=run_parts, args=(rank, barrier, sender, parts))
        process.start()
        processes.append(process)
    sender.close()
    for part in parts:
        ends = receiver.recv()
        timed = ends[part["warm"] :]
        seconds = [after - before for before, after in pairwise(timed)]
        print_result(part["name"], {"seconds": seconds})
    for process in processes:
        process.join()


def run_parts(
    rank: int, barrier: Barrier, sender: Connection, parts: list[dict[str, Any]]
) -> None:
    """One process: its clients' loops, round after round; sends when each round ended."""
    apply_worker_settings()
    for part in parts:
        work = read_work_file(part["work"])
        model = build_model(
            part["method"], work.build_network(), work.initial, work.task.lr
        )
        clients = []
        for place in assign_visits(work, rank):
            clients.append(load_client(work, place, model.net))
        train = TRAIN[part["method"]]
        barrier.wait()
        ends = [time.perf_counter()]
        for _ in range(part["warm"] + part["timed"]):
            for client in clients:
                train(model, client)
            barrier.wait()
            ends.append(time.perf_counter())
        if rank == 0:
            sender.send(ends)


def assign_visits(work: Work, rank: int) -> list[int]:
    """A process's visits of round 1, as places in the cohort.

    Visits are assigned longest first, each to the process with least to do.
    """
    lengths = [len(epochs[0]) for epochs in work.positions[1]]
    longest_first = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    load = [0] * PROCESSES
    mine = []
    for place in longest_first:
        process = load.index(min(load))
        load[process] += lengths[place]
        if process == rank:
            mine.append(place)
    return mine


def load_client(work: Work, place: int, net: nn.Module) -> ClientData:
    """Data and batches of a visit of round 1."""
    task = work.task
    k = work.cohort(1)[place]
    rows = work.rows[k]
    x = arrange_images(work.inputs(rows), net)
    epochs = work.positions[1][place]
    batches = [positions.split(task.batch) for positions in epochs]
    return ClientData(x, work.y[rows], batches, task.classes)


def arrange_images(x: Tensor, net: nn.Module) -> Tensor:
    """Images in the memory layout that FedTailor uses with this network."""
    if x.dim() != 4:
        return x
    return torch.empty_like(x, memory_format=choose_layout(net)).copy_(x)


if __name__ == "__main__":
    main()
