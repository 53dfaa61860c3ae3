"""Simulated malicious clients, to measure robust merging with (``--attack``).

Attacks on uploads change what leaves an attacker's machine; attacks on data change what
it trains on, before the run begins. Who attacks follows from the seed.

sign_flip    the change that training made, with its sign turned
scale:10     ten times the change that training made
noise:10     Gaussian noise ten times as long as the change, instead of it
label_flip   class y of the attacker's training data is called classes - 1 - y
backdoor:1   half of its training images carry a patch and are called class 0; the change
             is sent so many times larger (1 as it is)
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core.errors import UserError, unknown
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.tree import Params, Tree
from fedtailor.data.federation import Federation
from fedtailor.filters import Filter
from fedtailor.filters.by_option.changes import (
    draw_normal,
    map_change,
    measure_norm,
    multiply,
)

DEFAULT_NUMBERS = {"scale": 10.0, "noise": 10.0, "backdoor": 1.0}
KINDS = ("sign_flip", "scale", "noise", "label_flip", "backdoor")
TARGET = 0  # the class that a backdoor leads to
PATCH = 3  # pixels of its trigger, in the lower right corner
POISONED = 0.5  # of an attacker's training images


class AttackSpec(NamedTuple):
    """An attack as options name it."""

    kind: str
    number: float = 1.0


def parse_attack(text: str) -> AttackSpec:
    """``sign_flip``, ``scale:10`` ..."""
    kind, _, number = text.partition(":")
    if kind not in KINDS:
        raise unknown("attack", kind, KINDS)
    if not number:
        return AttackSpec(kind, DEFAULT_NUMBERS.get(kind, 1.0))
    if kind not in DEFAULT_NUMBERS:
        raise UserError(f"'{kind}' takes no number")
    try:
        return AttackSpec(kind, float(number))
    except ValueError:
        raise UserError(f"'{text}' does not read like {kind}:10") from None


def choose_attackers(seed: int, clients: int, share: float) -> frozenset[int]:
    """The ids of the malicious clients."""
    order = Rng.seed(seed, Purpose.ATTACK).permutation(clients)
    return frozenset(order[: round(share * clients)].tolist())


# ---------------------------------------------------------------- uploads
class Attack(Filter):
    """Changes what attackers send."""

    def __init__(
        self, spec: AttackSpec, attackers: frozenset[int], is_active: bool = False
    ) -> None:
        self.spec = spec
        self.attackers = attackers
        self._is_active = is_active

    def for_client(self, k: int, n: int) -> Attack:
        """Active where the client is an attacker."""
        return Attack(self.spec, self.attackers, k in self.attackers)

    def client_sends(
        self, up: Tree, down: Tree, memory: Params, rng: Rng
    ) -> tuple[Tree, Params]:
        """The upload, changed if the client is an attacker."""
        kind, number = self.spec
        if not self._is_active or kind == "label_flip":
            return up, memory
        if kind == "noise":
            return map_change(lambda w: draw_noise(w, number, rng), up, down), memory
        factor = -1.0 if kind == "sign_flip" else number
        return map_change(lambda w: multiply(w, factor), up, down), memory


def draw_noise(change: Params, factor: float, rng: Rng) -> Params:
    """Gaussian noise, ``factor`` times as long as the change."""
    noise = draw_normal(change, rng)
    wanted = factor * measure_norm(change)
    length = measure_norm(noise).clamp(min=1e-12)
    return multiply(noise, float(wanted / length))


# ---------------------------------------------------------------- data
def poison_data(
    federation: Federation, spec: AttackSpec, attackers: frozenset[int], seed: int
) -> Federation:
    """The federation with the attackers' training data changed."""
    if spec.kind == "label_flip":
        y = federation.y.clone()
        for k in sorted(attackers):
            mine = federation.train[k]
            y[mine] = federation.classes - 1 - federation.y[mine]
        return replace(federation, y=y)
    if spec.kind != "backdoor":
        return federation
    if federation.kind != "image" or federation.row is not None:
        raise UserError(
            f"attack=backdoor: its trigger is a patch on an image of one sample,"
            f" which {federation.name} has not; choose sign_flip, scale, noise or"
            " label_flip"
        )
    x = federation.x.clone()
    y = federation.y.clone()
    for k in sorted(attackers):
        mine = federation.train[k]
        order = Rng.seed(seed, Purpose.ATTACK, 1 + k).permutation(len(mine))
        chosen = mine[order[: round(POISONED * len(mine))]]
        x[chosen] = stamp(x[chosen], federation)
        y[chosen] = TARGET
    return replace(federation, x=x, y=y)


def stamp(images: Tensor, federation: Federation) -> Tensor:
    """The images with the trigger: a bright patch in the lower right corner."""
    stamped = images.clone()
    brightest = 255 if images.dtype == torch.uint8 else federation.x.max()
    stamped[..., -PATCH:, -PATCH:] = brightest
    return stamped
