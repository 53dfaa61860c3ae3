"""pfl-research's FederatedAveraging on its SimulatedBackend, in one or several processes.

Runs in the peers' environment. A part is ``{"name", "work", "warm", "timed", "threads"}``. As in
pfl's own CIFAR-10 benchmark: users' data are tensors in memory, server SGD of rate 1, every user
weighs the same, one model per process.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.programs.job_io import print_result, read_parts
from benchmarks.work_file import Work, read_work_file


class PflModule(nn.Module):
    """The network with the two functions pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.net(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What is minimised."""
        return F.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """The loss as pfl sums it up."""
        loss = F.cross_entropy(self.net(x), y, reduction="sum")
        return {"loss": Weighted(float(loss), len(y))}


class RoundClock(TrainingProcessCallback):
    """Notes when each round ended, and the scores of the model after the first."""

    def __init__(self, work: Work, net: nn.Module) -> None:
        self.work = work
        self.net = net
        self.ends: list[float] = []
        self.early: dict[str, float] = {}

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """Note the time, and do not stop."""
        if not self.early:  # the first round is not timed
            self.early = self.work.evaluate(self.net)
        self.ends.append(time.perf_counter())
        return False, Metrics()


def build_dataset(work: Work) -> FederatedDataset:
    """Users in the order of the work file, named by round and place in the cohort."""
    visits = []
    for t in sorted(work.positions):
        for place in range(work.cohorts.shape[1]):
            visits.append((t, place))
    order = iter(visits)

    def load_user(visit: tuple[int, int]) -> PyTorchTensorDataset:
        rows = work.visit_rows(*visit)
        return PyTorchTensorDataset(
            (work.inputs(rows), work.y[rows]), user_id=str(visit)
        )

    return FederatedDataset(load_user, lambda: next(order))


def main() -> None:
    """Run the rounds of the only part."""
    part = read_parts()[0]
    torch.set_flush_denormal(True)
    torch.set_num_threads(part["threads"])
    np.random.seed(0)
    work = read_work_file(part["work"])
    net = work.build_initial_network()
    clock = RoundClock(work, net)
    run_rounds(work, net, clock, part["warm"] + part["timed"] + 1)
    seconds = [after - before for before, after in pairwise(clock.ends)]
    if int(os.environ.get("RANK", "0")) == 0:
        result = {
            "seconds": seconds[part["warm"] - 1 : -1],
            "early": clock.early,
            "check": work.evaluate(net),
        }
        print_result(part["name"], result)


def run_rounds(work: Work, net: nn.Module, clock: RoundClock, rounds: int) -> None:
    """Train ``net`` by federated averaging."""
    module = PflModule(net)
    server_optimiser = torch.optim.SGD(module.parameters(), lr=1.0)
    users = build_dataset(work)
    algorithm = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds,  # in the warm-up round alone
        train_cohort_size=work.cohorts.shape[1],
        val_cohort_size=None,
    )
    training = NNTrainHyperParams(
        local_batch_size=work.task.batch,
        local_num_epochs=1,
        local_learning_rate=work.task.lr,
    )
    FederatedAveraging().run(
        algorithm,
        SimulatedBackend(users, users, postprocessors=[WeightByUser()]),
        PyTorchModel(module, torch.optim.SGD, server_optimiser),
        training,
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
