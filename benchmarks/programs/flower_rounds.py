"""Flower's simulation: its FedAvg strategy over ray, with one actor a core.

Runs in the peers' environment. A part is ``{"name", "work", "warm", "timed", "actors"}``. The
client is that of Flower's own PyTorch quickstart. The data are loaded once per actor, and a message
says which visit of the work file it is, so that all contenders train the same users.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.programs.flower_client import client_app
from benchmarks.programs.job_io import print_result, read_parts
from benchmarks.work_file import Work, read_work_file


class TimedFedAvg(FedAvg):
    """FedAvg that picks the work file's cohorts and notes when each round ended."""

    def __init__(self, work: Work, path: str) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.work = work
        self.path = path
        self.ends: list[float] = []
        self.early: dict[str, float] = {}  # scores after the first round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message to every client of the round, as soon as all nodes are there."""
        nodes = sorted(grid.get_node_ids())
        while len(nodes) < len(self.work.rows):
            time.sleep(0.1)
            nodes = sorted(grid.get_node_ids())
        for place, k in enumerate(self.work.cohort(server_round)):
            visit = ConfigRecord(
                {"server-round": server_round, "place": place, "work": self.path}
            )
            content = RecordDict({"arrays": arrays, "config": visit})
            yield Message(
                content=content, message_type=MessageType.TRAIN, dst_node_id=nodes[k]
            )

    def aggregate_train(
        self, *given: Any
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average, then note the time."""
        result = super().aggregate_train(*given)
        if not self.early:  # the first round is not timed
            self.early = evaluate_arrays(self.work, result[0])
        self.ends.append(time.perf_counter())
        return result


def evaluate_arrays(work: Work, arrays: ArrayRecord) -> dict[str, float]:
    """Loss and accuracy of a global model."""
    net = work.build_initial_network()
    net.load_state_dict(arrays.to_torch_state_dict())
    return work.evaluate(net)


def main() -> None:
    """Simulate the rounds of the only part."""
    part = read_parts()[0]
    work = read_work_file(part["work"])
    strategy = TimedFedAvg(work, part["work"])
    final = simulate(work, strategy, part)
    seconds = [after - before for before, after in pairwise(strategy.ends)]
    result = {
        "seconds": seconds[part["warm"] - 1 : -1],
        "early": strategy.early,
        "check": evaluate_arrays(work, final),
    }
    print_result(part["name"], result)


def simulate(work: Work, strategy: TimedFedAvg, part: dict[str, Any]) -> ArrayRecord:
    """Run Flower's simulation; the final global model."""
    rounds = part["warm"] + part["timed"] + 1
    final: list[ArrayRecord] = []
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        initial = ArrayRecord(work.build_initial_network().state_dict())
        result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds)
        final.append(result.arrays)

    os.environ["OMP_NUM_THREADS"] = "1"
    ray_options = {
        "address": "local",
        "num_cpus": part["actors"],
        "include_dashboard": False,
    }
    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": ray_options,
    }
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(work.rows),
        backend_config=backend,
    )
    return final[0]


if __name__ == "__main__":
    main()
