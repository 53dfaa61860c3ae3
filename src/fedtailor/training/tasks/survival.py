"""Time to an event that some examples have not had yet (Cox, J. R. Stat. Soc. B 1972).

A target is (time, 1 if the event happened then or 0 if the example was last seen then). The
network gives the logarithm of a risk. The loss is Cox's partial likelihood over a batch, with
Breslow's ties: those at risk are the batch's own, so large batches are better.

The C-index (Harrell et al. 1982) is the share of comparable pairs in which the one with the
earlier event has the higher risk; equal risks count one half. A pair is comparable if the earlier
time is that of an event. Clients tell two sums, over the pairs of their own examples: no pair of
examples of two clients is compared, because single risks would have to leave. The index of all
clients is the quotient of the two added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedtailor.training.task import (
    NOTHING,
    AnyTally,
    Decided,
    Sums,
    Task,
    add_sums,
    drop_unknown,
)
from fedtailor.training.tasks.target import Target

ROWS = 512  # examples whose pairs are compared at once
NAMES = ("loss", "events", "pairs", "concordant")


@dataclass(frozen=True)
class Survival(Task):
    """Cox's partial likelihood; told by the C-index."""

    name: ClassVar[str] = "survival"
    needs_all_examples: ClassVar[bool] = True
    known_measures: ClassVar[tuple[str, ...]] = ("c_index", "loss")

    primary: str = "c_index"
    higher_is_better: bool = True
    select: str = ""

    @property
    def outputs(self) -> int:
        """The logarithm of the risk."""
        return 1

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative logarithm of the partial likelihood, by event; 0 without events."""
        losses = self.losses(output, target)
        events = target[:, 1].sum().clamp(min=1)
        return losses.sum() / events

    def losses(
        self, output: Tensor, target: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Of every event, how unlikely it was among those at risk; 0 for the others."""
        risk = output.squeeze(-1)
        time, event = target.to(risk.dtype).unbind(-1)
        at_risk = time >= time[:, None]
        if mask is not None:
            itself = torch.eye(len(time), dtype=torch.bool, device=time.device)
            at_risk = at_risk & (mask > 0) | itself
            event = event * mask
        others = torch.where(at_risk, risk, -torch.inf)
        return event * (others.logsumexp(-1) - risk)

    def empty_tally(self, device: torch.device) -> Sums:
        """Zeros."""
        zero = torch.zeros((), device=device)
        return Sums(zero, dict.fromkeys(NAMES, zero))

    def tally(self, output: Tensor, target: Tensor, mask: Tensor) -> Sums:
        """Comparable pairs of a client, and how many of them are in order."""
        risk = output.squeeze(-1)
        time, event = target.to(risk.dtype).unbind(-1)
        pairs = torch.zeros((), device=risk.device)
        concordant = pairs
        for start in range(0, len(risk), ROWS):
            rows = slice(start, start + ROWS)
            earlier = time[rows, None] < time
            tied = (time[rows, None] == time) & (event == 0)
            counts = (earlier | tied) * event[rows, None]
            counts = counts * mask[rows, None] * mask
            above = risk[rows, None] > risk
            equal = risk[rows, None] == risk
            pairs = pairs + counts.sum()
            concordant = concordant + (counts * (above + equal / 2)).sum()
        sums = {
            "loss": self.losses(output, target, mask).sum(),
            "events": (event * mask).sum(),
            "pairs": pairs,
            "concordant": concordant,
        }
        return Sums(mask.sum(), sums)

    def measures(
        self, tallies: Sequence[AnyTally], decided: Decided = NOTHING
    ) -> dict[str, float]:
        """The C-index over all pairs within clients, and the loss by event."""
        total = add_sums(tallies)
        if not total:
            return {}
        found = {
            "c_index": total["concordant"] / total["pairs"],
            "loss": total["loss"] / total["events"].clamp(min=1),
        }
        return drop_unknown(found)

    def trivial(self, tallies: Sequence[AnyTally]) -> float | None:
        """The C-index of giving everybody the same risk."""
        return 0.5

    def answer(self, output: Tensor, decided: Decided = NOTHING) -> Tensor:
        """The logarithm of the risk."""
        return self.in_units(output)

    def in_units(self, output: Tensor) -> Tensor:
        """The logarithm of the risk, one number an example."""
        return output.squeeze(-1)


def make(target: Target) -> Survival:
    """Times and events."""
    return Survival(select=target.select)
