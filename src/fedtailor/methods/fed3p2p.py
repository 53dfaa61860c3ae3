"""Fed3+2p: extractor, filter and heads of a network, trained in two phases by two kinds of coordinators.

Anonymous authors, Fed3+2p: Training Different Parts of Neural Network with Two-Phase Strategy, submitted to
ICLR 2025, Section 4, Eq. (4)-(13); the paper lists no algorithm.

Phase 1: in every Type-A group the model goes from client to client, then the groups' models are averaged; this is the
global model. Phase 2: extractor and G-Head are frozen, every Type-B group averages a filter of its own, and P-Heads
never leave their clients. A chain goes on from its last model when a reply gets lost in it.

Where the paper is silent: the filter is the linear layer before the last one, or an added square one with a ReLU; there
are ceil(sqrt(N)) coordinators of each kind (5 for 20 clients, 10 for 100); groups take part whole, so that they keep
mirroring everybody; each phase gets half of the rounds. The frozen extractor runs with its running statistics, once a
visit. Type-B groups are formed when phase 2 begins; later clients join existing groups. A client whose label counts
are unknown is a group of its own in phase 1 and gets the largest group's filter in phase 2. Laplace noise on the counts
(add or remove one example: epsilon-private) and the automatic switch are the paper's future work.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.client import Batch, Client
from fedtailor.errors import Unsupported, UserError, unknown
from fedtailor.grouping import extend_lookalikes, extend_mirrors, group_lookalikes, group_mirrors, suggest_groups
from fedtailor.method import Cohort, Count, Method, New, NonNegative, NoReplies, Positive
from fedtailor.models.backbone import Backbone
from fedtailor.rng import Rng
from fedtailor.tree import Params, Tree, average, part, rename, total

LADDER = ("filter", "coordinators", "phases")  # what Table 2 takes away, one after the other
PIECE = 100  # examples that go through a frozen model at once


class Server(NamedTuple):
    """What the server and its coordinators remember."""

    w: Params  # extractor W_e, phase-1 filter W_i and G-Head W_g: the global model
    filters: list[Params]  # W_i^c of phase 2, one for every Type-B group
    a: list[list[int]]  # Type-A groups: together like everybody
    b: list[list[int]]  # Type-B groups: like each other
    counts: dict[int, Tensor]  # by client, its examples of every class
    phase: int  # 1, 2, or 0 where there are no phases
    since: int = 0  # last round before this phase
    over: bool = False  # whether phase 1 is done: the next round begins phase 2
    curve: list[float] = []  # noqa: RUF012 (never written into): validation accuracy by round, for switch="auto"


class Down(NamedTuple):
    """What goes down."""

    w: Params  # W_e, W_g and the filter: the chain's so far, or the Type-B group's
    phase: int
    since: int


class Keep(NamedTuple):
    """What never leaves the client."""

    own: Params  # P-Head W_p, named as the head it stands in for; also the filter where that is private
    begun: Tensor  # whether ``own`` counts yet, or phase 2 still has to start from the received values


class Up(NamedTuple):
    """What goes up."""

    w: Params  # phase 1: the whole model; phase 2: the filter
    score: Tensor | None  # right ones among, and number of, validation examples for the model received


class Counts(NamedTuple):
    """What goes up once."""

    labels: Tensor  # examples of every class


class Parts(nn.Module):
    """Extractor, filter and head in a row; ``rest`` is what stands between filter and head without parameters."""

    def __init__(self, base: nn.Module, layer: nn.Module, rest: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.base, self.filter, self.rest, self.head = base, layer, rest, head

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        out: Tensor = self.head(self.rest(self.filter(self.base(x))))
        return out
