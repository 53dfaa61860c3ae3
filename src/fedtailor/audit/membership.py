"""Membership inference: can one tell from a model which examples its client trained on?

Two attacks: the loss of an example (members have smaller ones), and LiRA (Carlini et al., 2022)
with shadow models: runs in which the client trained on a random half of its examples tell how an
example's confidence is distributed with and without it in training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtailor.audit.record import Recording, Say, record
from fedtailor.core.rng import Rng
from fedtailor.core.sealed import has_sealed
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params
from fedtailor.executors.looks import personal
from fedtailor.experiment.prepare import Setup

STREAM = 98  # of the shadows' randomness
FALSE_ALARMS = 0.01  # at which the rate of true ones is reported
LEAST_SPREAD = 1e-3  # of confidences, where shadows agree


@dataclass(frozen=True)
class MembershipScore:
    """How well members are told from others."""

    model: str  # personal or global
    attack: str  # loss threshold or LiRA
    auc: float
    tpr: float  # at 1 % false positives
    members: int
    others: int


# ---------------------------------------------------------------- measures
def measure_auc(is_member: Tensor, score: Tensor) -> float:
    """The chance that a member has a higher score than another example; ties count half."""
    inside = score[is_member]
    outside = score[~is_member]
    if not len(inside) or not len(outside):
        return math.nan
    gaps = inside[:, None] - outside[None, :]
    wins = (gaps > 0).double() + 0.5 * (gaps == 0).double()
    return float(wins.mean())


def measure_tpr(is_member: Tensor, score: Tensor, fpr: float = FALSE_ALARMS) -> float:
    """The share of members found by the threshold with at most so many false alarms."""
    inside = score[is_member]
    outside = score[~is_member].sort(descending=True).values
    if not len(inside) or not len(outside):
        return math.nan
    allowed = int(fpr * len(outside))
    return float((inside > outside[allowed]).double().mean())


# ---------------------------------------------------------------- models and their confidences
def read_models(recording: Recording) -> dict[str, Params]:
    """The victim's personal model, and the global one if the method has one."""
    method = recording.method
    down = method.send(recording.server, recording.k)
    models = {"personal": personal(recording.runner, recording.k, down, recording.t)}
    shared = method.shared(recording.server)
    if shared is not None and not has_sealed(shared):
        models["global"] = shared
    return models


def read_logits(recording: Recording, w: Params, pool: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of a model on the given samples, and their labels."""
    runner = recording.runner
    client = runner.client(recording.k, recording.t)
    examples = runner.examples(pool, len(pool))
    with torch.no_grad():
        logits = examples.map(lambda x: runner.method.predict(client, w, x))
    return logits.double(), examples.y


def confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """log p_y / (1 - p_y): nearly normal, unlike p_y itself."""
    right = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -math.inf).logsumexp(1)
    return right - others


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of every example."""
    return logits.logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]


# ---------------------------------------------------------------- attacks
def list_pool(setup: Setup, k: int) -> tuple[Tensor, Tensor]:
    """All samples of client k, and which of them it trained on."""
    federation = setup.world.federation
    parts = [federation.train[k], federation.val[k], federation.test[k]]
    pool = torch.cat(parts)
    is_member = torch.arange(len(pool)) < len(parts[0])
    return pool, is_member


def train_on(setup: Setup, k: int, samples: Tensor) -> Setup:
    """The experiment in which client k trains on these samples."""
    federation = setup.world.federation
    train = list(federation.train)
    train[k] = samples
    world = replace(setup.world, federation=replace(federation, train=train))
    return replace(setup, world=world)


@dataclass(frozen=True)
class Shadow:
    """Confidences of one shadow run's models on the pool."""

    is_in: Tensor  # which samples it trained on
    confidence: dict[str, Tensor]  # by model


def train_shadow(setup: Setup, k: int, rounds: int, i: int) -> Shadow:
    """A run in which client k trains on a random half of its samples."""
    pool, _ = list_pool(setup, k)
    rng = Rng.seed(setup.options.seed, STREAM, i)
    chosen = rng.permutation(len(pool))[: len(pool) // 2].sort().values
    is_in = torch.zeros(len(pool), dtype=torch.bool)
    is_in[chosen] = True
    shadow = record(train_on(setup, k, pool[chosen]), k, rounds, lambda _: None)
    found = {}
    for name, w in read_models(shadow).items():
        found[name] = confidence(*read_logits(shadow, w, pool))
    return Shadow(is_in, found)


def likelihood_ratio(
    target: Tensor, shadows: list[Tensor], is_in: list[Tensor]
) -> Tensor:
    """LiRA: log p(confidence | member) - log p(confidence | not), by normal distributions.

    With few shadows the spread is estimated over all examples together.
    """
    values = torch.stack(shadows)
    inside = torch.stack(is_in)
    in_mean, in_spread = fit_normal(values, inside)
    out_mean, out_spread = fit_normal(values, ~inside)
    as_member = log_density((target - in_mean) / in_spread) - in_spread.log()
    as_other = log_density((target - out_mean) / out_spread) - out_spread.log()
    return as_member - as_other


def log_density(z: Tensor) -> Tensor:
    """Of the standard normal distribution, up to a constant."""
    return -z.square() / 2


def fit_normal(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """By example, the mean of the chosen values (of all, where none is); one spread for all."""
    weight = chosen.double()
    count = weight.sum(0)
    own = (values * weight).sum(0) / count.clamp(min=1)
    overall = (values * weight).sum() / weight.sum().clamp(min=1)
    mean = torch.where(count > 0, own, overall)
    variance = (weight * (values - mean).square()).sum() / weight.sum().clamp(min=1)
    return mean, variance.sqrt().clamp(min=LEAST_SPREAD)


def infer_members(
    setup: Setup, recording: Recording, shadows: int, say: Say
) -> list[MembershipScore]:
    """Both attacks on the victim's personal model and on the global one."""
    k = recording.k
    pool, is_member = list_pool(setup, k)
    others = []
    for i in range(shadows):
        others.append(train_shadow(setup, k, recording.t, i))
        say(f"membership: shadow run {i + 1} of {shadows}")
    found = []
    with torch_settings(setup.world.dtype, setup.world.device):
        for name, w in read_models(recording).items():
            logits, labels = read_logits(recording, w, pool)
            scores = {"loss threshold": -losses(logits, labels)}
            if others:
                scores["LiRA"] = likelihood_ratio(
                    confidence(logits, labels),
                    [shadow.confidence[name] for shadow in others],
                    [shadow.is_in for shadow in others],
                )
            for attack, score in scores.items():
                found.append(rate(name, attack, is_member, score))
    return found


def rate(model: str, attack: str, is_member: Tensor, score: Tensor) -> MembershipScore:
    """The measures of one attack."""
    return MembershipScore(
        model=model,
        attack=attack,
        auc=measure_auc(is_member, score),
        tpr=measure_tpr(is_member, score),
        members=int(is_member.sum()),
        others=int((~is_member).sum()),
    )
