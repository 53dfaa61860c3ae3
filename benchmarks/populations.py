"""Many clients over one set of images; all have equally many, and share them where they must."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor import data
from fedtailor.core.rng import Purpose, Rng
from fedtailor.data.federation import Federation

COMMON_TEST = 2000  # held-out images on which a final global model is evaluated


def build_population(name: str, clients: int, train: int, test: int) -> Federation:
    """A federation whose clients have ``train`` training images and ``test`` further test images.

    Clients without test images (``test=0``) share a held-out one, as every client must have some.
    """
    whole = data.load_dataset(name)
    held_out = whole.test
    if held_out is None:
        held_out = torch.arange(len(whole)) % 7 == 0
    common = torch.nonzero(held_out).flatten()[:COMMON_TEST]
    rows = torch.nonzero(~held_out).flatten()
    each = train + test
    laps = -(-clients * each // len(rows))
    order = shuffle_repeatedly(rows, laps)
    parts = order[: clients * each].reshape(clients, each)
    return Federation(
        whole.name,
        whole.kind,
        whole.x,
        whole.y,
        whole.classes,
        train=[part[:train].clone() for part in parts],
        val=[parts.new_zeros(0)] * clients,
        test=[part[train:].clone() if test else common[:1] for part in parts],
        common=common,
        settings={"partition": f"{train} + {test} by index", "laps": laps},
    )


def shuffle_repeatedly(rows: Tensor, laps: int) -> Tensor:
    """All rows, again and again, every time in another random order."""
    orders = []
    for lap in range(laps):
        rng = Rng.seed(0, Purpose.PARTITION, lap)
        orders.append(rows[rng.permutation(len(rows))])
    return torch.cat(orders)
