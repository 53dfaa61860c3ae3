"""When a phase of training is over: after some rounds, or when the accuracy clients report has become flat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor.client import Client
from fedtailor.core.tree import Params
from fedtailor.evaluation.score import tally_examples
from fedtailor.method import Doc


def validate(c: Client, w: Params) -> Tensor:
    """How many of the client's validation examples a model gets right, and how many there are."""
    score = tally_examples(c.task, lambda x: c.model(w, x), c.val)
    return torch.stack([score.correct.sum(), score.n.sum()])


class Phase(NamedTuple):
    """Where training stands."""

    number: Annotated[int, Doc("which phase it is")]
    since: Annotated[int, Doc("last round before it")] = 0
    over: Annotated[bool, Doc("whether the next round begins another")] = False
    curve: Annotated[tuple[float, ...], Doc("validation accuracy by round of the first phase")] = ()


def advance(
    phase: Phase,
    scores: Iterable[Tensor | None],
    t: int,
    last: int,
    flat: tuple[int, float] | None = None,
) -> Phase:
    """The phase after round t: over after round ``last``, or when the curve is flat by (window, threshold)."""
    told = [score for score in scores if score is not None]
    right, seen = torch.stack(told).sum(0).tolist() if told else (0.0, 0.0)
    curve = (*phase.curve, right / seen) if seen else phase.curve
    return phase._replace(
        curve=curve, over=t >= last or (flat is not None and is_flat(curve, *flat))
    )


def is_flat(curve: Sequence[float], window: int, threshold: float) -> bool:
    """Whether the mean of the last ``window`` values is not ``threshold`` above that of as many before them."""
    late, early = curve[-window:], curve[-2 * window : -window]
    return len(early) == window and (sum(late) - sum(early)) / window < threshold


def last_round(length: float, rounds: int) -> int:
    """The last round of a first phase: below 1 a length is a share of all rounds, of which one is the least."""
    return max(round(length * rounds), 1) if 0 < length < 1 else round(length)
