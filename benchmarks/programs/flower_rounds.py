"""Flower's simulation: its FedAvg strategy over ray, with one actor a core.

Runs in the peers' environment. A part is ``{"name", "work", "warm", "timed", "actors"}``. The client
is that of Flower's own PyTorch quickstart. The data are loaded once per actor, and a message says which visit of the
work file it is, so that all contenders train the same users.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
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
from benchmarks.programs.talk import listen, tell
from benchmarks.work import Work, read


class Timed(FedAvg):
    """FedAvg that picks the work file's cohorts and notes when each round ended."""

    def __init__(self, work: Work, path: str) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.work, self.path, self.at, self.early = work, path, list[float](), dict[str, float]()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        users = self.work.cohorts[server_round - 1].tolist()
        while len(nodes := sorted(grid.get_node_ids())) < len(self.work.rows):
            time.sleep(0.1)
        for j, k in enumerate(users):
            told = ConfigRecord({"server-round": server_round, "seat": j, "work": self.path})
            content = RecordDict({"arrays": arrays, "config": told})
            yield Message(content=content, message_type=MessageType.TRAIN, dst_node_id=nodes[k])

    def aggregate_train(self, *given: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
        result = super().aggregate_train(*given)
        self.early = self.early or judge(
            self.work, result[0]
        )  # after the first round, which is not timed
        self.at.append(time.perf_counter())
        return result


def judge(work: Work, arrays: ArrayRecord) -> dict[str, float]:
    """Loss and accuracy of a global model."""
    net = work.net()
    net.load_state_dict(arrays.to_torch_state_dict())
    return work.score(net)


def main() -> None:
    part = listen()["parts"][0]
    work = read(part["work"])
    rounds, strategy, final = (
        part["warm"] + part["timed"] + 1,
        Timed(work, part["work"]),
        list[ArrayRecord](),
    )
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(work.net().state_dict())
        final.append(strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds).arrays)

    os.environ["OMP_NUM_THREADS"] = "1"
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    init = {"address": "local", "num_cpus": part["actors"], "include_dashboard": False}
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(work.rows),
        backend_config={"client_resources": resources, "init_args": init},
    )
    seconds = [b - a for a, b in zip(strategy.at, strategy.at[1:], strict=False)]
    timed = seconds[part["warm"] - 1 : -1]
    tell(part["name"], {"seconds": timed, "early": strategy.early, "check": judge(work, final[0])})


if __name__ == "__main__":
    main()
