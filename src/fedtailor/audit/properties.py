"""Property inference: what classes a client has, from how its upload differs from the download."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.audit.algebra import to_list, true_shares
from fedtailor.audit.gradient import infer_class_shares
from fedtailor.audit.record import Recording, Upload
from fedtailor.audit.views import list_views
from fedtailor.core.rng import Rng

STREAM = 97  # of the choice of public data


@dataclass(frozen=True)
class PropertyScore:
    """Class shares that the attacker estimates, beside the true ones."""

    view: str
    estimated: list[float]
    truth: list[float]
    error: float  # half the sum of differences: the share of examples that is misplaced
    blind_error: float  # of an attacker who says that all classes are equally frequent
    is_majority_right: bool


def infer_shares(recording: Recording, upload: Upload) -> PropertyScore:
    """The class shares, by an attacker who has public data of every class."""
    view = list_views(recording, upload)[0]
    inputs = draw_public_data(recording)
    shares = infer_class_shares(view, inputs)
    truth = true_shares(recording)
    uniform = torch.full_like(truth, 1 / len(truth))
    return PropertyScore(
        view=view.name,
        estimated=to_list(shares),
        truth=to_list(truth),
        error=misplaced(shares, truth),
        blind_error=misplaced(uniform, truth),
        is_majority_right=bool(shares.argmax() == truth.argmax()),
    )


def misplaced(a: Tensor, b: Tensor) -> float:
    """The total variation distance of two distributions."""
    return float((a - b).abs().sum()) / 2


def draw_public_data(recording: Recording) -> list[Tensor]:
    """By class, as many inputs as the victim has, from other clients' test data."""
    runner = recording.runner
    federation = recording.world.federation
    n = runner.count(recording.k)
    others = [t for k, t in enumerate(federation.test) if k != recording.k]
    pool = torch.cat(others)
    labels = federation.y[pool]
    inputs = []
    for label in range(federation.classes):
        mine = pool[labels == label]
        if not len(mine):
            mine = pool
        rng = Rng.seed(recording.world.seed, STREAM, label)
        chosen = mine[rng.permutation(len(mine))]
        repeated = chosen[torch.arange(n) % len(chosen)]
        inputs.append(runner.examples(repeated, n, torch.contiguous_format).x)
    return inputs
