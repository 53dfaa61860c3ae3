"""The laws of partition: how many samples of each class every client holds.

Each law takes the class sizes and draws a matrix (clients, classes) whose columns add up to them.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import UserError

Integers: TypeAlias = npt.NDArray[np.int64]

REDRAWS = (
    1000  # of a Dirichlet partition before it is repaired; fewer when clients x classes is large
)
WORK = 2_000_000  # redraws x clients x classes, at most


def least_size(n: int, clients: int, batch: int) -> int:
    """The least samples a client may have: a batch of test samples out of a quarter, or half an even share (PFLlib)."""
    return max(1, int(min(batch / (1 - 0.75), n / clients / 2)))


def deal_evenly(n: int, clients: int, rng: np.random.Generator) -> Integers:
    """``iid``: every client a random n/clients samples, one more for some."""
    return rng.permutation(np.arange(n) % clients)


def draw_dirichlet(
    sizes: Integers, clients: int, beta: float, least: int, capped: bool, rng: np.random.Generator
) -> Integers:
    """``dirichlet:B``: each class falls to clients in shares ~ Dir(B), drawn anew until all have ``least`` samples.

    A client that holds n/clients samples gets no further class when ``capped`` (FedCP, GPFL: PFLlib's "practical"
    setting; pFedC and Fed3+2p are uncapped). After bounded redraws the last draw is repaired, so that it always ends.
    """
    n = int(sizes.sum())
    if n < least * clients:
        raise UserError(
            f"a dirichlet partition cannot give each of {clients} clients {least} samples out of {n}; "
            f"ask for at most {n // least} clients or a smaller least="
        )
    counts = np.zeros((clients, len(sizes)), np.int64)
    for _ in range(min(REDRAWS, max(10, WORK // counts.size))):
        counts, held = np.zeros_like(counts), np.zeros(clients, np.int64)
        for c, size in enumerate(sizes):
            # Dir(B) with some entries struck out and rescaled is Dir(B) on the others.
            able = np.flatnonzero(held < n / clients) if capped else np.arange(clients)
            edges = np.minimum(
                np.cumsum(rng.dirichlet(np.full(len(able), beta))) * size, size
            ).astype(np.int64)
            edges[-1] = size
            counts[able, c] = np.diff(edges, prepend=0)
            held += counts[:, c]
        if held.min() >= least:
            return counts
    return repair(counts, least)


def repair(counts: Integers, least: int) -> Integers:
    """Lift every client to ``least`` samples: the largest client gives of its largest class, again and again."""
    counts = counts.copy()
    held = counts.sum(1)
    for k in np.flatnonzero(held < least):
        while held[k] < least:
            giver = int(held.argmax())
            c = int(counts[giver].argmax())
            gift = min(least - held[k], held[giver] - least, counts[giver, c])
            counts[giver, c] -= gift
            counts[k, c] += gift
            held[giver] -= gift
            held[k] += gift
    return counts


def draw_hsu(sizes: Integers, clients: int, alpha: float, rng: np.random.Generator) -> Integers:
    """``hsu:B``: equal clients, each filled by its own class shares ~ Dir(B p) (Hsu et al. 2019).

    p are the shares of the classes in the data set. A class that has run out is struck from the client's shares; late
    clients so take what is left.
    """
    n, left = int(sizes.sum()), sizes.copy()
    counts = np.zeros((clients, len(sizes)), np.int64)
    for k, size in enumerate(np.diff(np.arange(clients + 1) * n // clients)):
        q = rng.dirichlet(alpha * sizes / n)
        while (missing := size - counts[k].sum()) > 0:
            p = np.where(left > 0, q, 0.0)
            p = p if p.sum() > 1e-12 else left.astype(np.float64)
            got = np.minimum(rng.multinomial(missing, p / p.sum()), left)
            counts[k] += got
            left -= got
    return counts


def draw_pathological(
    sizes: Integers, clients: int, k: int, least: int, rng: np.random.Generator
) -> Integers:
    """``pathological:K``: K classes a client, groups of neighbours with the same ones, unbalanced (PFLlib).

    Class by class the first clients with room left hold it; a client whose room equals the classes to come goes
    first, so that all end with exactly K. All but the last holder get a random part of at most an even share.
    """
    total, slots = len(sizes), clients * k
    if slots < total:
        raise UserError(
            f"pathological:{k} with {clients} clients covers {slots} of {total} classes; "
            f"ask for pathological:{-(-total // clients)} or at least {-(-total // k)} clients"
        )
    counts, room = np.zeros((clients, total), np.int64), np.full(clients, k)
    for c, size in enumerate(sizes):
        m = (c + 1) * slots // total - c * slots // total
        able = np.flatnonzero(room)
        holders = np.sort(able[np.argsort(room[able] < total - c, kind="stable")][:m])
        _refuse_thin(f"pathological:{k}", size, m)
        low, high = int(max(size / m / 10, least / total, 1)), size // m
        part = rng.integers(min(low, high), max(high, min(low, high) + 1), m)
        part[-1] = size - part[:-1].sum()
        counts[holders, c] = part
        room[holders] -= 1
    return counts


def draw_shards(
    sizes: Integers, clients: int, s: int, rng: np.random.Generator
) -> tuple[Integers, Integers]:
    """``shards:S``: S near-equal one-class shards a client, a class may repeat (LG-FedAvg); and who drew what."""
    total = len(sizes)
    each, odd = divmod(s * clients, total)
    if odd or not each:
        step = total // math.gcd(total, s)
        raise UserError(
            f"shards:{s} with {clients} clients makes {s * clients} shards, which {total} classes cannot share evenly; "
            f"ask for a multiple of {step} clients"
        )
    matrix = rng.permutation(np.repeat(np.arange(total), each)).reshape(clients, s)
    counts = np.zeros((clients, total), np.int64)
    for c, size in enumerate(sizes):
        _refuse_thin(f"shards:{s}", size, each)
        shard = rng.permutation(size // each + (np.arange(each) < size % each))
        np.add.at(counts[:, c], np.nonzero(matrix == c)[0], shard)
    return counts, matrix


def draw_classes(
    sizes: Integers, clients: int, k: int, partial: bool, rng: np.random.Generator
) -> Integers:
    """``classes:K``: K random classes a client, each class with equally many clients in equal parts (pFedC)."""
    total, slots = len(sizes), clients * k
    if slots < total and not partial:
        raise UserError(
            f"classes:{k} with {clients} clients covers {slots} of {total} classes; ask for "
            f"classes:{-(-total // clients)}, at least {-(-total // k)} clients, or classes:{k}:partial"
        )
    left = slots // total + (rng.permutation(total) < slots % total)
    holds = np.zeros((clients, total), bool)
    for j in rng.permutation(
        clients
    ):  # the classes with most places left always leave a way to fill the others
        pick = np.lexsort((rng.random(total), -left))[:k]
        holds[j, pick] = True
        left[pick] -= 1
    counts = np.zeros((clients, total), np.int64)
    for c in np.flatnonzero(holds.any(0)):
        holders = rng.permutation(np.flatnonzero(holds[:, c]))
        _refuse_thin(f"classes:{k}", sizes[c], len(holders))
        counts[holders, c] = sizes[c] // len(holders) + (
            np.arange(len(holders)) < sizes[c] % len(holders)
        )
    return counts


def _refuse_thin(law: str, size: int, parts: int) -> None:
    if size < parts:
        raise UserError(
            f"{law} would cut a class of {size} samples into {parts} parts; ask for fewer clients"
        )


def draw_concepts(groups: int, classes: int, rng: np.random.Generator) -> Integers:
    """``concept:K``: what each label becomes in each group, all groups different, the first as it was."""
    if groups > math.factorial(min(classes, 12)):
        raise UserError(
            f"concept:{groups}: {classes} classes have only {math.factorial(classes)} orders"
        )
    tables = {tuple(range(classes)): None}
    while len(tables) < groups:
        tables[tuple(rng.permutation(classes).tolist())] = None
    return np.array(list(tables), np.int64)
