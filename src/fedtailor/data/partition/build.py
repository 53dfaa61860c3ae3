"""Deal a data set to clients: thin it out, partition it, split every client's share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose, Rng
from fedtailor.data.federation import Dataset, Federation
from fedtailor.data.partition.laws import Integers, draw_concepts
from fedtailor.data.partition.saved import check_fits, digest_labels, load_partition
from fedtailor.data.partition.spec import (
    OWNED,
    Hands,
    Spec,
    apportion,
    assign,
    check_owners,
    follow,
    gather,
    parse,
    weigh,
)
from fedtailor.data.partition.split import (
    Cut,
    cut_blocks,
    cut_ordered,
    cut_random,
    locate,
    measure_overlap,
    parse_split,
)

CLIENTS = 20  # where nobody says how many


@dataclass(frozen=True)
class Settings:
    """How a data set is dealt; see ``deal``."""

    partition: str
    clients: int | None
    split: str
    validation: float
    seed: int
    limit: int | None
    stratify: bool
    batch: int

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 1:
            raise UserError(
                f"validation {self.validation}: the share must be at least 0 and below 1, e.g. 0.1"
            )
        for what, number in (
            ("clients", self.clients),
            ("limit", self.limit),
            ("batch", self.batch),
        ):
            if number is not None and number < 1:
                raise UserError(f"{what} {number}: must be at least 1")


@dataclass(frozen=True)
class Parts:
    """Every client's samples, and the labels they have there."""

    cuts: list[Cut]
    y: Tensor
    common: Tensor | None
    owners: tuple[str, ...]
    dealt: dict[str, str | int | float | None]


def deal(
    data: Dataset,
    *,
    partition: str | None = None,
    clients: int | None = None,
    split: str = "merged:0.75",
    validation: float = 0.1,
    seed: int = 0,
    limit: int | None = None,
    stratify: bool = True,
    batch: int = 10,
) -> Federation:
    """The federation that these settings describe, the same for the same settings.

    ``partition``: see ``partition.parse``; natural clients where the data set has them, else ``iid``. A saved one
    (``p.npz``) brings its own split and validation samples. ``clients``: 20 unless the partition knows. ``split``: see
    ``split``. ``validation``: share of each client's training samples. ``limit``: use that many samples of the data
    set. ``stratify``: keep the classes' shares in every client's parts. ``batch``: sets the least size of a client.
    """
    default = "natural" if data.owner is not None else "iid"
    how = Settings(partition or default, clients, split, validation, seed, limit, stratify, batch)
    spec = parse(how.partition, default)
    if spec.keep and clients not in (None, spec.keep[0]):
        raise UserError(
            f"partition '{spec.text}' keeps {spec.keep[0]} clients, not {clients}: leave --clients out"
        )
    how = replace(how, clients=spec.keep[1] if spec.keep else clients)
    parts = _reopen(data, spec, how) if spec.law == "file" else _deal_fresh(data, spec, how)
    if spec.keep:
        parts = _keep(parts, spec.keep[0], Rng.seed(seed, Purpose.SUBSET, 1).numpy())
    train = [torch.from_numpy(cut.train) for cut in parts.cuts]
    return Federation(
        name=data.name,
        kind=data.kind,
        x=data.x if data.fit is None else data.fit(torch.cat(train)),
        y=parts.y,
        classes=data.classes,
        train=train,
        val=[torch.from_numpy(cut.val) for cut in parts.cuts],
        test=[torch.from_numpy(cut.test) for cut in parts.cuts],
        common=parts.common,
        row=data.row,
        labels=data.labels,
        owners=parts.owners,
        vocabulary=data.vocabulary,
        external=data.external,
        dealt=parts.dealt | {"clients": len(train)},
    )


def _reopen(data: Dataset, spec: Spec, how: Settings) -> Parts:
    """A saved partition, if it is one of this data set."""
    saved = load_partition(spec.path)
    check_fits(saved, data, spec.path)
    if how.clients not in (None, len(saved.train)):
        raise UserError(
            f"the partition '{spec.path}' has {len(saved.train)} clients, not {how.clients}"
        )
    given, usual = (
        asdict(how),
        {"split": "merged:0.75", "validation": 0.1, "limit": None, "stratify": True},
    )
    for key, value in usual.items():  # the seed may differ: one partition serves many runs
        if given[key] not in (value, saved.dealt.get(key)):
            raise UserError(
                f"the partition '{spec.path}' was saved with {key} {saved.dealt.get(key)}, not {given[key]}: "
                f"leave --{key} out or save it anew"
            )
    cuts = [
        Cut(*(v.numpy() for v in c)) for c in zip(saved.train, saved.val, saved.test, strict=True)
    ]
    written = spec.text.removesuffix(spec.path) + str(saved.dealt.get("partition", "file"))
    y = data.y if saved.y is None else saved.y
    return Parts(cuts, y, saved.common, saved.owners, saved.dealt | {"partition": written})


def _deal_fresh(data: Dataset, spec: Spec, how: Settings) -> Parts:
    """A new partition and split of this data set."""
    rule, y = parse_split(how.split), data.y.numpy()
    used = thin(data, how.limit, Rng.seed(how.seed, Purpose.SUBSET, 0).numpy())
    exam = np.zeros(len(used), np.bool_)
    if rule.kind == "official" and data.test is not None:
        exam = data.test.numpy()[used]
    if rule.kind == "official" and not exam.any():
        raise UserError(
            f"split 'official': data set '{data.name}' has no official test part; use merged:0.75"
        )
    pool, rest = used[~exam], used[exam]
    owned = spec.law in OWNED or (spec.law == "concept" and not spec.whole)
    if owned:
        owner = _find_owners(data, spec, how)
        clients, owners = int(owner.max()) + 1, data.owners
        hands, heirs = Hands(owner[pool]), owner[rest]
    else:
        clients, owners = how.clients or CLIENTS, ()
        hands = assign(
            spec, y[pool], clients, Rng.seed(how.seed, Purpose.PARTITION, 0).numpy(), how.batch
        )
        weight = weigh(hands, y[pool], clients, data.classes)
        heirs = follow(y[rest], weight, Rng.seed(how.seed, Purpose.PARTITION, 1).numpy())
    cut = _choose_cutter(data, spec, how, pool, hands.owner)
    mine, theirs = gather(hands.owner, clients), gather(heirs, clients)
    empty = [k for k in range(clients) if not len(mine[k])]
    if empty:
        raise UserError(
            f"client {empty[0]} of {clients} has no training samples under partition '{spec.text}' and split "
            f"'{how.split}'; use merged:0.75, fewer clients or a larger --limit"
        )
    cuts = []
    for k in range(clients):
        own = pool[mine[k]]
        train, val, test = cut(own, k)
        cuts.append(Cut(own[train], own[val], rest[theirs[k]] if len(rest) else own[test]))
    labels = data.y
    if spec.law == "concept" and not owned:
        owner = np.zeros(len(y), np.int64)
        owner[pool], owner[rest] = hands.owner, heirs
        labels = _relabel(data, spec, owner, clients, how.seed)
    dealt = asdict(how) | {"labels": digest_labels(data.y)}
    return Parts(cuts, labels, torch.from_numpy(rest) if len(rest) else None, owners, dealt)


def thin(data: Dataset, limit: int | None, rng: np.random.Generator) -> Integers:
    """The samples used: all, or ``limit`` of them in the proportions of owners, official parts and classes."""
    everything = np.arange(len(data))
    if limit is None or limit >= len(data):
        return everything
    keys = [data.y.numpy()]
    if data.test is not None:
        keys.insert(0, data.test.numpy().astype(np.int64))
    if data.owner is None:
        return np.sort(_thin(everything, keys, limit, rng))
    owners = gather(data.owner.numpy(), check_owners(data.owner.numpy(), data.name))
    if limit < len(owners):
        raise UserError(
            f"limit {limit}: data set '{data.name}' has {len(owners)} natural clients; ask for more samples"
        )
    spare = np.array([len(own) - 1 for own in owners])  # everybody keeps one at least
    shares = apportion(limit - len(owners), spare, rng) + 1
    return np.sort(
        np.concatenate([_thin(own, keys, n, rng) for own, n in zip(owners, shares, strict=True)])
    )


def _thin(samples: Integers, keys: list[Integers], n: int, rng: np.random.Generator) -> Integers:
    if not keys:
        return rng.permutation(samples)[:n]
    value = keys[0][samples]
    kinds, sizes = np.unique(value, return_counts=True)
    shares = apportion(n, sizes, rng)
    return np.concatenate(
        [_thin(samples[value == v], keys[1:], m, rng) for v, m in zip(kinds, shares, strict=True)]
    )


def _find_owners(data: Dataset, spec: Spec, how: Settings) -> Integers:
    if data.owner is None:
        if spec.law == "concept":
            raise UserError(
                f"partition '{spec.text}': data set '{data.name}' has no raters; write concept:2"
            )
        raise UserError(
            f"partition '{spec.text}': data set '{data.name}' has no client column; use iid or dirichlet:0.1"
        )
    if spec.law == "concept" and data.row is None:
        raise UserError(
            f"partition '{spec.text}': the clients of '{data.name}' rate nothing in common; write concept:2"
        )
    clients = check_owners(data.owner.numpy(), data.name)
    if how.clients not in (None, clients):
        raise UserError(
            f"data set '{data.name}' has {clients} natural clients, not {how.clients}; leave --clients out, "
            f"or keep some of them with --partition subset:N/{clients}:natural"
        )
    return data.owner.numpy()


def _choose_cutter(
    data: Dataset, spec: Spec, how: Settings, pool: Integers, owner: Integers
) -> Callable[[Integers, int], Cut]:
    """The function (samples, client) -> places among them that train, validate and test."""
    rule = parse_split(how.split)
    if rule.kind == "ordered":
        return lambda own, _: cut_ordered(own, rule.share, how.validation)
    if rule.kind != "block":
        y, stream = data.y.numpy(), Rng.seed(how.seed, Purpose.SPLIT)
        return lambda own, k: cut_random(
            y[own], rule.share, how.validation, how.stratify, stream.fold(k).numpy()
        )
    if data.segment is None:
        raise UserError(
            f"split '{how.split}': data set '{data.name}' has no recordings to cut; use merged:0.75"
        )
    segment = data.segment.numpy()
    pairs = np.unique(np.stack([segment[pool], owner]), axis=1)
    if (np.diff(pairs[0]) == 0).any():
        raise UserError(
            f"split '{how.split}': partition '{spec.text}' deals one recording to several clients; use natural"
        )
    place, gap = locate(segment), measure_overlap(data.x, segment, data.row)
    return lambda own, _: cut_blocks(segment[own], place[own], rule.share, how.validation, gap)


def _relabel(data: Dataset, spec: Spec, owner: Integers, clients: int, seed: int) -> Tensor:
    """Labels as their owners see them: client k belongs to group k mod K; nobody's samples stay as they are."""
    if spec.whole > clients:
        raise UserError(
            f"partition '{spec.text}': {spec.whole} groups need at least as many clients, not {clients}"
        )
    tables = draw_concepts(spec.whole, data.classes, Rng.seed(seed, Purpose.PARTITION, 2).numpy())
    return torch.from_numpy(tables[np.maximum(owner, 0) % spec.whole, data.y.numpy()])


def _keep(parts: Parts, n: int, rng: np.random.Generator) -> Parts:
    """A random n of the clients, in their order."""
    kept = np.sort(rng.permutation(len(parts.cuts))[:n]).tolist()
    owners = tuple(parts.owners[k] for k in kept) if parts.owners else ()
    return replace(parts, cuts=[parts.cuts[k] for k in kept], owners=owners)
