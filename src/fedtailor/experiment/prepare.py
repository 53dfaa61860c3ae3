"""From the options of an experiment to what a run needs: federation, network, method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import torch
from torch import nn

from fedtailor import data as data_sets
from fedtailor import methods, models
from fedtailor.core.errors import UserError
from fedtailor.data.federation import Dataset, Federation
from fedtailor.data.own.external_sets import Pair, add_external
from fedtailor.data.partition.build import build_federation
from fedtailor.executors.world import AnyMethod, World
from fedtailor.experiment.config import Experiment
from fedtailor.experiment.protect import (
    adapt_to_sums,
    describe_attackers,
    describe_encryption,
    describe_privacy,
    describe_secure_sum,
    make_protection,
    make_sample_noise,
    protect,
    settle_privacy,
    settle_sums,
)
from fedtailor.experiment.protocols import describe_protocol
from fedtailor.filters import Filter, find_filter
from fedtailor.models.backbone import Backbone
from fedtailor.training.optim import Plan

OwnData = Dataset | Federation | Sequence[Any]  # a user's own data, in code


@dataclass(frozen=True)
class Setup:
    """A run, ready to begin: its options, with no ``None`` left to decide, and what they mean."""

    options: Experiment
    world: World
    notices: list[str]


def prepare(
    options: Experiment,
    *,
    method: AnyMethod | type[AnyMethod] | None = None,
    data: OwnData | None = None,
    model: nn.Module | None = None,
    last: str | None = None,
    external: Mapping[str, Pair] | None = None,
    check_data: bool = True,
) -> Setup:
    """Load and divide the data, build the network and the method, and check that they fit.

    ``method``, ``data`` (with ``external``) and ``model`` (with ``last``) are a user's own, given
    in code. Raises UserError for what cannot be, and writes nothing.
    """
    _check_device(options.device)
    options = settle_privacy(options)
    instance = _make_method(options, method)
    federation, notices = prepare_federation(options, data, external)
    options = settle_sums(options, federation)
    instance = adapt_to_sums(options, instance, federation.clients)
    backbone = _build_backbone(options, federation, model, last)
    instance = instance.with_defaults_for(backbone)
    network = _build_network(instance, backbone)
    _check_federation(options, federation, check_data)
    federation = protect(options, instance, network, federation)
    plan = _make_plan(options, backbone)
    settled = options.model_copy(
        update={
            "method": _name_method(options, method),
            "set": _hyper_parameters(instance),
            "clients": federation.clients,
            "lr": plan.lr,
            "model": options.model or backbone.kind,
        }
    )
    world = _make_world(options, instance, backbone, federation, plan)
    if options.model is None and model is None:
        notices = [*notices, _describe_chosen_model(backbone)]
    return Setup(settled, world, [*notices, *_list_notices(options, world)])


def _name_method(options: Experiment, own: AnyMethod | type[AnyMethod] | None) -> str:
    """The method as the options of a run name it."""
    if own is None:
        return options.method
    return methods.name_of(own if isinstance(own, type) else type(own))


def _build_network(method: AnyMethod, backbone: Backbone) -> nn.Module:
    """What clients train; raises Unsupported now rather than in a worker."""
    with torch.random.fork_rng(devices=[]):
        return method.net(backbone)


def _list_notices(options: Experiment, world: World) -> list[str]:
    """What the user should know of protocol, attackers, privacy and hyper-parameters."""
    warnings = [f"warning: {text}" for text in world.method.warnings()]
    attackers = describe_attackers(options, world.federation.clients)
    return [
        *_tell_protocol(options),
        *attackers,
        *describe_privacy(options),
        *describe_encryption(options),
        *describe_secure_sum(options),
        *warnings,
    ]


def _tell_protocol(options: Experiment) -> list[str]:
    if options.protocol is None:
        return []
    return [describe_protocol(options.protocol, options.model_dump())]


def prepare_federation(
    options: Experiment,
    own: OwnData | None = None,
    external: Mapping[str, Pair] | None = None,
) -> tuple[Federation, list[str]]:
    """The data, divided among clients, and what the user should know about them.

    ``external`` adds sets of samples that no client owns, by name.
    """
    if isinstance(own, Federation):
        return add_external(own, external or {}), []
    dataset = add_external(_load_dataset(options, own), external or {})
    federation = build_federation(
        dataset,
        partition=options.partition,
        clients=options.clients,
        split=options.split,
        validation=options.validation,
        seed=options.seed,
        limit=options.limit,
        stratify=options.stratify,
        batch=options.batch,
    )
    return federation, data_sets.list_notices(dataset)


def _load_dataset(options: Experiment, own: Dataset | Sequence[Any] | None) -> Dataset:
    if own is None:
        return data_sets.load_dataset(
            options.data, options.data_dir, missing=options.missing
        )
    if isinstance(own, Dataset):
        return own
    return data_sets.build_dataset(own)


def _make_method(
    options: Experiment, own: AnyMethod | type[AnyMethod] | None
) -> AnyMethod:
    if own is None:
        return methods.make(methods.find(options.method), options.set)
    if isinstance(own, type):
        return methods.make(own, options.set)
    if options.set:
        raise UserError(
            "a method that is made already takes no further hyper-parameters"
        )
    methods.check_hooks(type(own))
    return own


def _hyper_parameters(method: AnyMethod) -> dict[str, Any]:
    """Those with a value; TOML has none for None."""
    if not is_dataclass(method):
        return {}
    values: dict[str, Any] = {}
    for name, value in asdict(method).items():
        if isinstance(value, frozenset):
            values[name] = ",".join(sorted(value))
        elif value is not None:
            values[name] = value
    return values


def _build_backbone(
    options: Experiment, federation: Federation, own: nn.Module | None, last: str | None
) -> Backbone:
    if own is not None:
        return models.wrap_own_network(own, last)
    shape = federation.shape
    vocabulary = federation.vocabulary
    name = options.model or models.suggest_architecture(
        federation.kind, shape, vocabulary
    )
    return models.build(
        name, shape, federation.classes, vocabulary=vocabulary, norm=options.norm
    )


def _describe_chosen_model(backbone: Backbone) -> str:
    size = sum(p.numel() for p in backbone.parameters())
    return f"model: {backbone.kind} with {size:,} parameters, which fits the data"


def _make_plan(options: Experiment, backbone: Backbone) -> Plan:
    """How clients train locally."""
    lr = models.find_learning_rate(backbone) if options.lr is None else options.lr
    return Plan(
        lr=lr,
        lr_decay=options.lr_decay,
        epochs=options.epochs,
        batch=options.batch,
        momentum=options.momentum,
        nesterov=options.nesterov,
        weight_decay=options.weight_decay,
        batching=options.batching,
        kind=options.optimiser,
    )


def _make_filters(options: Experiment, method: AnyMethod, clients: int) -> list[Filter]:
    """What every message passes, in the order in which downloads pass it.

    Protection comes first, so that it sees uploads last, as they leave.
    """
    names = options.filters.split(",")
    if options.bn == "local":
        names.insert(0, "local_buffers")
    each_once = dict.fromkeys(filter(None, names))
    named = [find_filter(name)() for name in each_once]
    name = methods.name_of(type(method))
    return [*make_protection(options, name, clients, method), *named]


def _make_world(
    options: Experiment,
    method: AnyMethod,
    backbone: Backbone,
    federation: Federation,
    plan: Plan,
) -> World:
    return World(
        method=method,
        backbone=backbone,
        federation=federation,
        plan=plan,
        seed=options.seed,
        rounds=options.rounds,
        filters=_make_filters(options, method, federation.clients),
        dtype=getattr(torch, options.dtype),
        device=options.device,
        sample_noise=make_sample_noise(options),
        newcomer_epochs=options.newcomer_epochs,
    )


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(
            f"no device '{name}'; there are cpu, cuda, cuda:1, mps ..."
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: this machine has no usable GPU")


def _check_federation(
    options: Experiment, federation: Federation, check_data: bool
) -> None:
    if check_data and not any(len(indices) for indices in federation.test):
        raise UserError(
            "no client has a test sample: use more data, or a split with a larger test part"
        )
    count = federation.clients
    if options.new_clients >= count:
        raise UserError(
            f"new_clients={options.new_clients}: of {count} clients at least one must train"
        )
    if (
        check_data
        and "external" in options.views.split(",")
        and not federation.external
    ):
        raise UserError(
            f"views=external: the data set {federation.name} comes with no external data"
        )
