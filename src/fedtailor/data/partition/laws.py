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

# of a Dirichlet partition before it is repaired; fewer when clients x classes is large
MAX_REDRAWS = 1000
MAX_WORK = 2_000_000  # redraws x clients x classes


def compute_least_size(n: int, clients: int, batch: int) -> int:
    """The least samples a client may have, as in PFLlib.

    It is enough for a batch of test samples out of a quarter, or half an even share.
    """
    for_a_test_batch = batch / (1 - 0.75)
    half_an_even_share = n / clients / 2
    return max(1, int(min(for_a_test_batch, half_an_even_share)))


def draw_iid(n: int, clients: int, rng: np.random.Generator) -> Integers:
    """``iid``: the owner of each of n samples; every client gets n/clients, one more for some."""
    return rng.permutation(np.arange(n) % clients)


def draw_quantity(
    n: int, clients: int, beta: float, least: int, rng: np.random.Generator
) -> Integers:
    """``quantity:B``: the owner of each of n samples; clients' sizes are shares ~ Dir(B).

    Whose sample it is says nothing of its target. Every client gets ``least`` samples before the
    others are shared.
    """
    if n < least * clients:
        raise UserError(
            f"a quantity partition cannot give each of {clients} clients {least} samples "
            f"out of {n}; ask for at most {n // least} clients or a smaller least="
        )
    free = n - least * clients
    shares = rng.dirichlet(np.full(clients, beta))
    edges = np.minimum(np.cumsum(shares) * free, free).astype(np.int64)
    edges[-1] = free
    sizes = least + np.diff(edges, prepend=0)
    return rng.permutation(np.repeat(np.arange(clients), sizes))


def draw_dirichlet(
    sizes: Integers,
    clients: int,
    beta: float,
    least: int,
    capped: bool,
    rng: np.random.Generator,
) -> Integers:
    """``dirichlet:B``: each class falls to clients in shares ~ Dir(B).

    Shares are drawn again until all clients have ``least`` samples. After a bounded number of draws
    the last one is repaired, so that it always ends.

    When ``capped``, a client that holds n/clients samples gets no further class (FedCP, GPFL:
    PFLlib's "practical" setting; pFedC and Fed3+2p are uncapped).
    """
    n = int(sizes.sum())
    if n < least * clients:
        raise UserError(
            f"a dirichlet partition cannot give each of {clients} clients {least} samples "
            f"out of {n}; ask for at most {n // least} clients or a smaller least="
        )
    affordable = MAX_WORK // (clients * len(sizes))
    for _ in range(min(MAX_REDRAWS, max(10, affordable))):
        counts = _draw_dirichlet_once(sizes, clients, beta, capped, rng)
        if counts.sum(1).min() >= least:
            return counts
    return repair_counts(counts, least)


def _draw_dirichlet_once(
    sizes: Integers, clients: int, beta: float, capped: bool, rng: np.random.Generator
) -> Integers:
    n = int(sizes.sum())
    counts = np.zeros((clients, len(sizes)), np.int64)
    held = np.zeros(clients, np.int64)
    for c, size in enumerate(sizes):
        # Dir(B) with some entries struck out and rescaled is Dir(B) on the others.
        able = np.flatnonzero(held < n / clients) if capped else np.arange(clients)
        shares = rng.dirichlet(np.full(len(able), beta))
        edges = np.minimum(np.cumsum(shares) * size, size).astype(np.int64)
        edges[-1] = size
        counts[able, c] = np.diff(edges, prepend=0)
        held += counts[:, c]
    return counts


def repair_counts(counts: Integers, least: int) -> Integers:
    """Lift every client to ``least`` samples.

    The largest client gives samples of its largest class, again and again.
    """
    counts = counts.copy()
    held = counts.sum(1)
    for k in np.flatnonzero(held < least):
        while held[k] < least:
            giver = int(held.argmax())
            c = int(counts[giver].argmax())
            moved = min(least - held[k], held[giver] - least, counts[giver, c])
            counts[giver, c] -= moved
            counts[k, c] += moved
            held[giver] -= moved
            held[k] += moved
    return counts


def draw_hsu(
    sizes: Integers, clients: int, alpha: float, rng: np.random.Generator
) -> Integers:
    """``hsu:B``: equal clients, each filled by its own class shares ~ Dir(B p) (Hsu et al. 2019).

    p are the shares of the classes in the data set. A class that has run out is struck from the
    client's shares, so that late clients take what is left.
    """
    n = int(sizes.sum())
    left = sizes.copy()
    counts = np.zeros((clients, len(sizes)), np.int64)
    client_sizes = np.diff(np.arange(clients + 1) * n // clients)
    for k, size in enumerate(client_sizes):
        shares = rng.dirichlet(alpha * sizes / n)
        missing = size
        while missing > 0:
            p = np.where(left > 0, shares, 0.0)
            if not p.sum() > 1e-12:
                p = left.astype(np.float64)
            got = np.minimum(rng.multinomial(missing, p / p.sum()), left)
            counts[k] += got
            left -= got
            missing = size - counts[k].sum()
    return counts


def draw_pathological(
    sizes: Integers, clients: int, k: int, least: int, rng: np.random.Generator
) -> Integers:
    """``pathological:K``: K classes a client, unbalanced, neighbours with the same ones (PFLlib).

    Class by class, the first clients with free places hold it. A client whose free places equal the
    classes to come goes first, so that all end with exactly K. All holders but the last get a
    random part of at most an even share.
    """
    total = len(sizes)
    places = clients * k
    if places < total:
        raise UserError(
            f"pathological:{k} with {clients} clients covers {places} of {total} classes; ask for "
            f"pathological:{_divide_up(total, clients)} or at least {_divide_up(total, k)} clients"
        )
    counts = np.zeros((clients, total), np.int64)
    free = np.full(clients, k)
    for c, size in enumerate(sizes):
        # clients that hold this class
        m = (c + 1) * places // total - c * places // total
        able = np.flatnonzero(free)
        must_hold_first = np.argsort(free[able] < total - c, kind="stable")
        holders = np.sort(able[must_hold_first][:m])
        _check_class_size(f"pathological:{k}", size, m)
        high = size // m
        low = min(int(max(size / m / 10, least / total, 1)), high)
        parts = rng.integers(low, max(high, low + 1), m)
        parts[-1] = size - parts[:-1].sum()
        counts[holders, c] = parts
        free[holders] -= 1
    return counts


def draw_shards(
    sizes: Integers, clients: int, s: int, rng: np.random.Generator
) -> tuple[Integers, Integers]:
    """``shards:S``: S near-equal one-class shards a client; a class may repeat (LG-FedAvg).

    Returns the counts, and the classes (clients, S) that every client drew.
    """
    total = len(sizes)
    each, remainder = divmod(s * clients, total)
    if remainder or not each:
        step = total // math.gcd(total, s)
        raise UserError(
            f"shards:{s} with {clients} clients makes {s * clients} shards, which {total} classes "
            f"cannot share evenly; ask for a multiple of {step} clients"
        )
    drawn = rng.permutation(np.repeat(np.arange(total), each)).reshape(clients, s)
    counts = np.zeros((clients, total), np.int64)
    for c, size in enumerate(sizes):
        _check_class_size(f"shards:{s}", size, each)
        shards = rng.permutation(_share_evenly(size, each))
        holders, _ = np.nonzero(drawn == c)
        np.add.at(counts[:, c], holders, shards)
    return counts, drawn


def draw_classes(
    sizes: Integers, clients: int, k: int, partial: bool, rng: np.random.Generator
) -> Integers:
    """``classes:K``: K random classes a client (pFedC).

    Each class is held by equally many clients, in equal parts. ``partial`` allows classes that no
    client holds.
    """
    total = len(sizes)
    places = clients * k
    if places < total and not partial:
        raise UserError(
            f"classes:{k} with {clients} clients covers {places} of {total} classes; ask for "
            f"classes:{_divide_up(total, clients)}, at least {_divide_up(total, k)} clients, "
            f"or classes:{k}:partial"
        )
    left = places // total + (rng.permutation(total) < places % total)
    holds = np.zeros((clients, total), bool)
    for j in rng.permutation(clients):
        # taking the classes with most places left always leaves a way to fill the others
        chosen = np.lexsort((rng.random(total), -left))[:k]
        holds[j, chosen] = True
        left[chosen] -= 1
    counts = np.zeros((clients, total), np.int64)
    for c in np.flatnonzero(holds.any(0)):
        holders = rng.permutation(np.flatnonzero(holds[:, c]))
        _check_class_size(f"classes:{k}", sizes[c], len(holders))
        counts[holders, c] = _share_evenly(sizes[c], len(holders))
    return counts


def _share_evenly(size: int, parts: int) -> Integers:
    """The sizes of so many parts; the first ones get one more if it does not divide."""
    return size // parts + (np.arange(parts) < size % parts)


def _divide_up(a: int, b: int) -> int:
    return math.ceil(a / b)


def _check_class_size(law: str, size: int, parts: int) -> None:
    """Refuse to divide a class into more parts than it has samples."""
    if size < parts:
        raise UserError(
            f"{law} would cut a class of {size} samples into {parts} parts; ask for fewer clients"
        )


def draw_concepts(groups: int, classes: int, rng: np.random.Generator) -> Integers:
    """``concept:K``: what each label becomes in each group.

    All groups are different; the first keeps the labels as they are.
    """
    if groups > math.factorial(min(classes, 12)):
        raise UserError(
            f"concept:{groups}: {classes} classes have only {math.factorial(classes)} orders"
        )
    # a dict keeps the order in which they were drawn
    tables = {tuple(range(classes)): None}
    while len(tables) < groups:
        order = rng.permutation(classes).tolist()
        tables[tuple(order)] = None
    return np.array(list(tables), np.int64)
