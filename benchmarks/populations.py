"""Many clients over one set of images: everybody has the same number of them, and they overlap where they must."""

from __future__ import annotations

import torch

from fedtailor import data
from fedtailor.core.rng import Purpose, Rng
from fedtailor.data.federation import Federation

COMMON = 2000  # held-out images on which a final global model is judged


def populate(name: str, clients: int, each: int, test: int) -> Federation:
    """``clients`` clients with ``each`` training images and the first ``test`` of as many further ones as test images.

    The training images are gone through in a random order again and again, every time in another one.
    """
    whole = data.load_dataset(name)
    held = whole.test if whole.test is not None else torch.arange(len(whole)) % 7 == 0
    rows, common = torch.nonzero(~held).flatten(), torch.nonzero(held).flatten()[:COMMON]
    need = each + test
    laps = -(-clients * need // len(rows))
    order = torch.cat(
        [rows[Rng.seed(0, Purpose.PARTITION, lap).permutation(len(rows))] for lap in range(laps)]
    )
    parts = order[: clients * need].reshape(clients, need)
    none = parts.new_zeros(0)
    return Federation(
        whole.name,
        whole.kind,
        whole.x,
        whole.y,
        whole.classes,
        train=[p[:each].clone() for p in parts],
        val=[none] * clients,
        test=[p[each:].clone() if test else common[:1] for p in parts],
        common=common,
        settings={"partition": f"{each} + {test} by index", "laps": laps},
    )
