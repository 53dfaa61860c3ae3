"""pfl-research: its FederatedAveraging on its SimulatedBackend, in one process or in several of torchrun's.

Runs in the peers' environment. A part is ``{"name", "work", "warm", "timed", "threads"}``. As in pfl's own CIFAR-10
benchmark: users' data are tensors in memory, server SGD of rate 1, every user weighs the same, one model per process.
"""

from __future__ import annotations

import os
import time
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

from benchmarks.programs.talk import listen, tell
from benchmarks.work import Work, read


class Judged(nn.Module):
    """The network with the two functions pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(F.cross_entropy(self.net(x), y, reduction="sum")), len(y))}


class Stamps(TrainingProcessCallback):
    """Notes when each round ended, and how good the model is after the first."""

    def __init__(self, work: Work, net: nn.Module) -> None:
        self.work, self.net = work, net
        self.at, self.early = list[float](), dict[str, float]()

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.early = self.early or self.work.score(
            self.net
        )  # after the first round, which is not timed
        self.at.append(time.perf_counter())
        return False, Metrics()


def dataset(work: Work) -> FederatedDataset:
    """Users in the order of the work file: a visit is named by its round and its place in the cohort."""
    seats = iter([(t, j) for t in sorted(work.at) for j in range(work.cohorts.shape[1])])

    def make(seat: tuple[int, int]) -> PyTorchTensorDataset:
        t, j = seat
        rows = work.rows[int(work.cohorts[t - 1, j])][work.at[t][j][0]]
        return PyTorchTensorDataset((work.inputs(rows), work.y[rows]), user_id=str(seat))

    return FederatedDataset(make, lambda: next(seats))


def main() -> None:
    part = listen()["parts"][0]
    torch.set_flush_denormal(True)
    torch.set_num_threads(part["threads"])
    np.random.seed(0)
    work = read(part["work"])
    judged = Judged(work.net())
    stamps = Stamps(work, judged.net)
    model = PyTorchModel(judged, torch.optim.SGD, torch.optim.SGD(judged.parameters(), lr=1.0))
    users = dataset(work)
    backend = SimulatedBackend(users, users, postprocessors=[WeightByUser()])
    rounds = part["warm"] + part["timed"] + 1
    train = NNTrainHyperParams(
        local_batch_size=work.about["batch"],
        local_num_epochs=1,
        local_learning_rate=work.about["lr"],
    )
    FederatedAveraging().run(
        # evaluation_frequency: in the warm-up round alone
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=work.cohorts.shape[1],
            val_cohort_size=None,
        ),
        backend,
        model,
        train,
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[stamps],
        send_metrics_to_platform=False,
    )
    seconds = [b - a for a, b in zip(stamps.at, stamps.at[1:], strict=False)]
    if int(os.environ.get("RANK", "0")) == 0:
        timed = seconds[part["warm"] - 1 : -1]
        tell(
            part["name"], {"seconds": timed, "early": stamps.early, "check": work.score(judged.net)}
        )


if __name__ == "__main__":
    main()
