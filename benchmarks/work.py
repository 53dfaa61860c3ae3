"""A file that says exactly what is to be computed: data, whose they are, every batch of every round, first values.

Every contender reads the same file, so that all take the same steps and end at the same model. Nothing here needs
FedTailor: the peers' programs read it in an environment of their own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.networks import build

PIECE = 500  # examples at a time when the final model is judged


@dataclass(frozen=True)
class Work:
    """What is to be computed; clients are numbered, rounds are t = 1, 2, ..."""

    about: dict[str, Any]  # network, shape, classes, vocabulary, lr, batch
    x: Tensor  # as stored: bytes for images
    y: Tensor
    rows: list[Tensor]  # by client, the rows of its training data
    test: Tensor  # rows on which the final model is judged
    cohorts: Tensor  # (T, C): who takes part in each round
    at: dict[
        int, list[list[Tensor]]
    ]  # by round, place in the cohort, epoch: positions, batch after batch
    first: dict[str, Tensor]  # first values

    def inputs(self, rows: Tensor) -> Tensor:
        """As the network takes them: bytes become numbers in [-1, 1]."""
        x = self.x[rows]
        return x.float().div_(127.5).sub_(1.0) if x.dtype == torch.uint8 else x

    def visits(self, t: int) -> list[tuple[int, list[Tensor]]]:
        """Who is visited in round t, and the rows of its batches by epoch, one batch after another."""
        return [
            (k, [self.rows[k][at] for at in self.at[t][j]])
            for j, k in enumerate(self.cohorts[t - 1].tolist())
        ]

    def blank(self) -> nn.Sequential:
        """The network, with any values."""
        a = self.about
        return build(a["network"], tuple(a["shape"]), a["classes"], a["vocabulary"])

    def net(self) -> nn.Sequential:
        """The network with its first values."""
        net = self.blank()
        net.load_state_dict(self.first)
        return net

    @torch.no_grad()
    def judge(self, net: nn.Module) -> dict[str, float]:
        """Loss and accuracy of a model on the test rows: equal where the same was learned."""
        loss, right = 0.0, 0.0
        for rows in self.test.split(PIECE):
            logits, y = net(self.inputs(rows)), self.y[rows]
            loss += float(nn.functional.cross_entropy(logits, y, reduction="sum"))
            right += float((logits.argmax(-1) == y).sum())
        return {"loss": loss / len(self.test), "accuracy": right / len(self.test)}


def write(path: Path, work: Work) -> None:
    """Write it; a file that is there is whole."""
    seats = [[len(epochs[0]) for epochs in work.at[t]] for t in sorted(work.at)]
    flat = [
        torch.cat([torch.stack(epochs, 0) for epochs in work.at[t]], 1) for t in sorted(work.at)
    ]
    arrays = {
        "x": work.x,
        "y": work.y,
        "sizes": torch.tensor([len(r) for r in work.rows]),
        "rows": torch.cat(work.rows),
        "test": work.test,
        "cohorts": work.cohorts,
        "seats": torch.tensor(seats),
        "at": torch.cat(flat, 1),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part.npz")
    about = np.frombuffer(json.dumps(work.about).encode(), np.uint8)
    first = {f"first/{k}": v for k, v in work.first.items()}
    np.savez(temporary, about=about, **{k: v.numpy() for k, v in {**arrays, **first}.items()})
    temporary.replace(path)


def read(path: str | Path) -> Work:
    """Read it."""
    with np.load(path) as file:
        held = {k: torch.from_numpy(file[k]) for k in file.files}
    sizes, seats = held["sizes"].tolist(), held["seats"].tolist()
    parts = iter(held["at"].split([n for row in seats for n in row], 1))
    at = {t: [list(next(parts).unbind(0)) for _ in row] for t, row in enumerate(seats, 1)}
    first = {k.removeprefix("first/"): v for k, v in held.items() if k.startswith("first/")}
    return Work(
        json.loads(held["about"].numpy().tobytes()),
        held["x"],
        held["y"],
        list(held["rows"].split(sizes)),
        held["test"],
        held["cohorts"],
        at,
        first,
    )
