"""Divide a data set among clients: subsample it, give samples to clients, split each client's own.

What the user asks for is in ``FederationSettings``; ``build_federation`` does the steps in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose, Rng
from fedtailor.data.federation import Dataset, Federation, Settings
from fedtailor.data.partition.defaults import (
    DEFAULT_CLIENTS,
    DEFAULT_SPLIT,
    DEFAULT_VALIDATION,
    choose_default_partition,
)
from fedtailor.data.partition.laws import Integers, draw_concepts
from fedtailor.data.partition.saved import (
    SavedPartition,
    check_fits,
    digest_labels,
    load_partition,
)
from fedtailor.data.partition.skew import cut_skew, skew_features
from fedtailor.data.partition.spec import (
    BLIND_LAWS,
    PartitionSpec,
    apportion,
    compute_test_weights,
    count_owners,
    draw_assignment,
    follow_labels,
    group_by_owner,
    parse_partition,
)
from fedtailor.data.partition.split import (
    ClientSplit,
    measure_overlap,
    number_windows,
    parse_split,
    split_in_order,
    split_randomly,
    split_recordings,
)
from fedtailor.data.targets import find_strata


@dataclass(frozen=True)
class FederationSettings:
    """The arguments of ``build_federation``, checked."""

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
        for name in ("clients", "limit", "batch"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise UserError(f"{name} {number}: must be at least 1")


@dataclass(frozen=True)
class Partition:
    """Every client's samples, and the labels that the samples have there."""

    splits: list[ClientSplit]
    y: Tensor
    common: Tensor | None
    owners: tuple[str, ...]
    settings: Settings


def build_federation(
    data: Dataset,
    *,
    partition: str | None = None,
    clients: int | None = None,
    split: str = DEFAULT_SPLIT,
    validation: float = DEFAULT_VALIDATION,
    seed: int = 0,
    limit: int | None = None,
    stratify: bool = True,
    batch: int = 10,
) -> Federation:
    """Divide a data set among clients; the same settings give the same federation.

    Args:
        data: the data set.
        partition: who gets which samples, see ``parse_partition``; by default the data set's
            natural clients, else ``dirichlet:0.1``. A saved partition (``p.npz``) has a split and
            validation samples of its own. Behind a ``+`` stands feature skew, see ``skew``.
        clients: how many; by default as many as the partition has, else 20.
        split: which of a client's samples train, see ``parse_split``.
        validation: share of each client's training samples.
        seed: everything random follows from it.
        limit: use only so many samples of the data set.
        stratify: keep the shares of the classes in every client's parts.
        batch: the batch size, which decides how few samples a client may have.
    """
    default = choose_default_partition(data)
    plain, skew = cut_skew(partition or default)
    settings = FederationSettings(
        plain, clients, split, validation, seed, limit, stratify, batch
    )
    spec = parse_partition(settings.partition, default)
    made = _make_partition(data, spec, settings)
    if skew:
        changed: Settings = {"partition": f"{plain}+{skew}", "skew": skew}
        made = replace(made, settings=made.settings | changed)
    return skew_features(_to_federation(data, made))


def _make_partition(
    data: Dataset, spec: PartitionSpec, settings: FederationSettings
) -> Partition:
    """The partition that is asked for; of a subset, only the clients that are kept."""
    if spec.keep is None:
        return _make_whole_partition(data, spec, settings)
    kept, made = spec.keep
    if settings.clients not in (None, kept):
        raise UserError(
            f"partition '{spec.text}' keeps {kept} clients, not {settings.clients}: "
            "leave --clients out"
        )
    whole = _make_whole_partition(data, spec, replace(settings, clients=made))
    return _keep_clients(
        whole, kept, Rng.seed(settings.seed, Purpose.SUBSET, 1).numpy()
    )


def _make_whole_partition(
    data: Dataset, spec: PartitionSpec, settings: FederationSettings
) -> Partition:
    if spec.law == "file":
        return _load_saved(data, spec, settings)
    return _draw_partition(data, spec, settings)


def _to_federation(data: Dataset, partition: Partition) -> Federation:
    splits = partition.splits
    train = [torch.from_numpy(split.train) for split in splits]
    x = data.x if data.fit is None else data.fit(torch.cat(train))
    fills = [] if data.find_fills is None else data.find_fills(train)
    return Federation(
        name=data.name,
        kind=data.kind,
        x=x,
        y=partition.y,
        classes=data.classes,
        train=train,
        val=[torch.from_numpy(split.val) for split in splits],
        test=[torch.from_numpy(split.test) for split in splits],
        common=partition.common,
        row=data.row,
        labels=data.labels,
        owners=partition.owners,
        vocabulary=data.vocabulary,
        columns=data.columns,
        words=data.words,
        fills=fills,
        external=data.external,
        target=data.target,
        settings=partition.settings | {"clients": len(splits)},
    )


def _load_saved(
    data: Dataset, spec: PartitionSpec, settings: FederationSettings
) -> Partition:
    """A saved partition, if it is one of this data set and fits the settings."""
    saved = load_partition(spec.path)
    check_fits(saved, data, spec.path)
    if settings.clients not in (None, len(saved.train)):
        raise UserError(
            f"the partition '{spec.path}' has {len(saved.train)} clients, not {settings.clients}"
        )
    _check_saved_settings(saved, spec, settings)
    splits = []
    for train, val, test in zip(saved.train, saved.val, saved.test, strict=True):
        splits.append(ClientSplit(train.numpy(), val.numpy(), test.numpy()))
    prefix = spec.text.removesuffix(spec.path)  # subset:N/M:
    original = saved.settings.get("partition", "file")
    return Partition(
        splits=splits,
        y=data.y if saved.y is None else saved.y,
        common=saved.common,
        owners=saved.owners,
        settings=saved.settings | {"partition": f"{prefix}{original}"},
    )


def _check_saved_settings(
    saved: SavedPartition, spec: PartitionSpec, settings: FederationSettings
) -> None:
    """Refuse settings that the saved partition was not made with; defaults are not looked at.

    The seed may differ: one partition serves many runs.
    """
    given = asdict(settings)
    defaults = {
        "split": DEFAULT_SPLIT,
        "validation": DEFAULT_VALIDATION,
        "limit": None,
        "stratify": True,
    }
    for key, default in defaults.items():
        original = saved.settings.get(key)
        if given[key] not in (default, original):
            raise UserError(
                f"the partition '{spec.path}' was saved with {key} {original}, not {given[key]}: "
                f"leave --{key} out or save it anew"
            )


class Ownership(NamedTuple):
    """Who owns which samples."""

    clients: int
    names: tuple[str, ...]  # of the clients, where they have names
    owner: Integers  # of every sample that is divided
    test_owner: Integers  # of every sample of the official test part


def _draw_partition(
    data: Dataset, spec: PartitionSpec, settings: FederationSettings
) -> Partition:
    """A new partition and split of this data set."""
    pool, official_test = _set_test_part_aside(data, settings)
    ownership = _find_ownership(data, spec, settings, pool, official_test)
    clients = ownership.clients
    split_client = _choose_splitter(data, spec, settings, pool, ownership.owner)
    own_samples = group_by_owner(ownership.owner, clients)
    own_tests = group_by_owner(ownership.test_owner, clients)
    _check_every_client_trains(own_samples, spec, settings)
    splits = []
    for k in range(clients):
        own = pool[own_samples[k]]
        train, val, test = split_client(own, k)
        test = official_test[own_tests[k]] if len(official_test) else own[test]
        splits.append(ClientSplit(own[train], own[val], test))
    y = data.y
    if spec.law == "concept" and not spec.uses_owners:
        owner = np.zeros(len(y), np.int64)
        owner[pool] = ownership.owner
        owner[official_test] = ownership.test_owner
        y = _draw_concepts_for(data, spec, owner, clients, settings.seed)
    return Partition(
        splits=splits,
        y=y,
        common=torch.from_numpy(official_test) if len(official_test) else None,
        owners=ownership.names,
        settings=asdict(settings) | {"labels": digest_labels(data.y)},
    )


def _set_test_part_aside(
    data: Dataset, settings: FederationSettings
) -> tuple[Integers, Integers]:
    """The samples to divide, and the official test part if the split uses it."""
    split = parse_split(settings.split)
    used = subsample(
        data, settings.limit, Rng.seed(settings.seed, Purpose.SUBSET, 0).numpy()
    )
    is_test = np.zeros(len(used), np.bool_)
    if split.kind == "official" and data.test is not None:
        is_test = data.test.numpy()[used]
    if split.kind == "official" and not is_test.any():
        raise UserError(
            f"split 'official': data set '{data.name}' has no official test part; use merged:0.75"
        )
    return used[~is_test], used[is_test]


def _find_ownership(
    data: Dataset,
    spec: PartitionSpec,
    settings: FederationSettings,
    pool: Integers,
    official_test: Integers,
) -> Ownership:
    """The owners that the data set has, or owners drawn by the partition's law."""
    if spec.uses_owners:
        owner = _read_owners(data, spec, settings)
        clients = int(owner.max()) + 1
        return Ownership(clients, data.owners, owner[pool], owner[official_test])
    _check_law(data, spec)
    y = find_strata(data)
    clients = settings.clients or DEFAULT_CLIENTS
    kinds = max(data.classes, int(y.max()) + 1)
    rng = Rng.seed(settings.seed, Purpose.PARTITION, 0).numpy()
    assignment = draw_assignment(spec, y[pool], clients, rng, settings.batch)
    weight = compute_test_weights(assignment, y[pool], clients, kinds)
    test_rng = Rng.seed(settings.seed, Purpose.PARTITION, 1).numpy()
    test_owner = follow_labels(y[official_test], weight, test_rng)
    return Ownership(clients, (), assignment.owner, test_owner)


def _check_law(data: Dataset, spec: PartitionSpec) -> None:
    """Refuse laws of classes where there are none."""
    if spec.law in BLIND_LAWS or data.target == "classes":
        return
    if spec.law == "concept" or data.target == "labels":
        raise UserError(
            f"partition '{spec.text}' divides classes, and the targets of '{data.name}' are"
            " none; use iid, quantity:0.5 or natural"
        )


def describe_bins(data: Dataset, partition: str) -> list[str]:
    """What a law of classes divides where there are none."""
    plain, _ = cut_skew(partition)
    spec = parse_partition(plain)
    if data.target in ("classes", "labels") or spec.law in BLIND_LAWS:
        return []
    kinds = len(np.unique(find_strata(data)))
    what = "quantiles of the targets"
    if data.target == "survival":
        what = "quantiles of the times, with and without event,"
    return [f"partition: '{partition}' divides {kinds} {what} as if they were classes"]


def _read_owners(
    data: Dataset, spec: PartitionSpec, settings: FederationSettings
) -> Integers:
    """The owner of every sample as the data set has it."""
    if data.owner is None and spec.law == "concept":
        raise UserError(
            f"partition '{spec.text}': data set '{data.name}' has no raters; write concept:2"
        )
    if data.owner is None:
        raise UserError(
            f"partition '{spec.text}': data set '{data.name}' has no client column; "
            "use iid or dirichlet:0.1"
        )
    if spec.law == "concept" and data.row is None:
        raise UserError(
            f"partition '{spec.text}': the clients of '{data.name}' rate nothing in common; "
            "write concept:2"
        )
    owner = data.owner.numpy()
    clients = count_owners(owner, data.name)
    if settings.clients not in (None, clients):
        raise UserError(
            f"data set '{data.name}' has {clients} natural clients, not {settings.clients}; "
            f"leave --clients out, or keep some of them with --partition subset:N/{clients}:natural"
        )
    return owner


def _check_every_client_trains(
    own_samples: list[Integers], spec: PartitionSpec, settings: FederationSettings
) -> None:
    for k, own in enumerate(own_samples):
        if not len(own):
            raise UserError(
                f"client {k} of {len(own_samples)} has no training samples under partition "
                f"'{spec.text}' and split '{settings.split}'; use merged:0.75, fewer clients "
                "or a larger --limit"
            )


def subsample(data: Dataset, limit: int | None, rng: np.random.Generator) -> Integers:
    """The samples to use: all, or ``limit`` of them.

    They keep the proportions of owners, official parts and classes, and every owner keeps one
    sample at least.
    """
    everything = np.arange(len(data))
    if limit is None or limit >= len(data):
        return everything
    keys = [find_strata(data)]
    if data.test is not None:
        keys.insert(0, data.test.numpy().astype(np.int64))
    if data.owner is None:
        return np.sort(_subsample_by(keys, everything, limit, rng))
    owner = data.owner.numpy()
    owned = group_by_owner(owner, count_owners(owner, data.name))
    if limit < len(owned):
        raise UserError(
            f"limit {limit}: data set '{data.name}' has {len(owned)} natural clients; "
            "ask for more samples"
        )
    beyond_one = np.array([len(own) - 1 for own in owned])
    shares = apportion(limit - len(owned), beyond_one, rng) + 1
    chosen = []
    for own, share in zip(owned, shares, strict=True):
        chosen.append(_subsample_by(keys, own, share, rng))
    return np.sort(np.concatenate(chosen))


def _subsample_by(
    keys: list[Integers], samples: Integers, n: int, rng: np.random.Generator
) -> Integers:
    """n of the samples in the proportions of the first key, and among equals of the next keys."""
    if not keys:
        return rng.permutation(samples)[:n]
    first, *others = keys
    values = first[samples]
    kinds, sizes = np.unique(values, return_counts=True)
    shares = apportion(n, sizes, rng)
    chosen = []
    for kind, share in zip(kinds, shares, strict=True):
        chosen.append(_subsample_by(others, samples[values == kind], share, rng))
    return np.concatenate(chosen)


# of a client's samples and its number
Splitter = Callable[[Integers, int], ClientSplit]


def _choose_splitter(
    data: Dataset,
    spec: PartitionSpec,
    settings: FederationSettings,
    pool: Integers,
    owner: Integers,
) -> Splitter:
    """The function that splits a client's samples, as indices among these."""
    split = parse_split(settings.split)
    validation = settings.validation
    if split.kind == "block":
        return _make_recording_splitter(data, spec, settings, pool, owner)

    def split_ordered(own: Integers, k: int) -> ClientSplit:
        return split_in_order(own, split.share, validation)

    if split.kind == "ordered":
        return split_ordered
    y = find_strata(data)
    streams = Rng.seed(settings.seed, Purpose.SPLIT)

    def split_random(own: Integers, k: int) -> ClientSplit:
        rng = streams.fold(k).numpy()
        return split_randomly(y[own], split.share, validation, settings.stratify, rng)

    return split_random


def _make_recording_splitter(
    data: Dataset,
    spec: PartitionSpec,
    settings: FederationSettings,
    pool: Integers,
    owner: Integers,
) -> Splitter:
    """The splitter of ``block:S``, for data that were cut from recordings."""
    if data.segment is None:
        raise UserError(
            f"split '{settings.split}': data set '{data.name}' has no recordings to cut; "
            "use merged:0.75"
        )
    segment = data.segment.numpy()
    recording_and_owner = np.unique(np.stack([segment[pool], owner]), axis=1)
    has_several_owners = np.diff(recording_and_owner[0]) == 0
    if has_several_owners.any():
        raise UserError(
            f"split '{settings.split}': partition '{spec.text}' gives one recording to several "
            "clients; use natural"
        )
    share = parse_split(settings.split).share
    place = number_windows(segment)
    gap = measure_overlap(data.x, segment, data.row)

    def split_blocks(own: Integers, k: int) -> ClientSplit:
        return split_recordings(
            segment[own], place[own], share, settings.validation, gap
        )

    return split_blocks


def _draw_concepts_for(
    data: Dataset, spec: PartitionSpec, owner: Integers, clients: int, seed: int
) -> Tensor:
    """Labels as their owners see them: client k belongs to group k mod K.

    Samples without an owner keep their labels.
    """
    groups = spec.whole
    if groups > clients:
        raise UserError(
            f"partition '{spec.text}': {groups} groups need at least as many clients, not {clients}"
        )
    rng = Rng.seed(seed, Purpose.PARTITION, 2).numpy()
    tables = draw_concepts(groups, data.classes, rng)
    group = np.maximum(owner, 0) % groups  # the first group keeps its labels
    return torch.from_numpy(tables[group, data.y.numpy()])


def _keep_clients(partition: Partition, n: int, rng: np.random.Generator) -> Partition:
    """A random n of the clients, in their order."""
    clients = len(partition.splits)
    kept = np.sort(rng.permutation(clients)[:n]).tolist()
    owners: tuple[str, ...] = ()
    if partition.owners:
        owners = tuple(partition.owners[k] for k in kept)
    splits = [partition.splits[k] for k in kept]
    return replace(partition, splits=splits, owners=owners)
