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
from fedtailor.core.torch_settings import torch_settings
from fedtailor.data.federation import Dataset, Federation, features
from fedtailor.data.own.external_sets import Pair, add_external
from fedtailor.data.partition.build import build_federation, describe_bins
from fedtailor.data.readers.csv_table import Columns
from fedtailor.data.targets import settle_targets
from fedtailor.executors.world import AnyMethod, World
from fedtailor.experiment.config import Experiment
from fedtailor.experiment.learning import (
    build_task,
    check_method,
    check_options,
    check_outputs,
    settle_task,
)
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
from fedtailor.filters.by_option.server_optimiser import (
    DEFAULT_RATES,
    ServerOptimiser,
    ServerRule,
)
from fedtailor.models.backbone import Backbone
from fedtailor.models.constants import hold_buffers
from fedtailor.models.trial import try_network
from fedtailor.training.optim import ADAPTIVE_RATES, Plan
from fedtailor.training.schedule import parse_schedule
from fedtailor.training.task import Task

TRIED = 2  # inputs on which an own network is tried

# what ``build_own_data`` takes, beside what is ready
OwnData = (
    Dataset | Federation | Sequence[Any] | Mapping[str, Any]
)  # a user's own data, in code


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
    options = settle_task(options, federation)
    task = _build_task(options, instance, federation)
    options = settle_sums(options, federation)
    instance = adapt_to_sums(options, instance, federation.clients)
    backbone = _build_backbone(options, federation, task, model, last)
    instance = instance.with_defaults_for(backbone)
    network = _build_network(instance, backbone)
    _check_federation(options, federation, check_data)
    federation = protect(options, instance, network, federation)
    plan = _make_plan(options, backbone)
    decided = {
        "method": _name_method(options, method),
        "set": _hyper_parameters(instance),
        "clients": federation.clients,
        "lr": plan.lr,
        "model": options.model or backbone.kind,
    }
    settled = options.model_copy(update=decided)
    world = _make_world(options, instance, backbone, federation, plan, task)
    if model is None:
        notices += _describe_chosen_model(options, backbone)
    return Setup(settled, world, [*notices, *_list_notices(options, world)])


def _build_task(options: Experiment, method: AnyMethod, federation: Federation) -> Task:
    """The task, if method and options can do it."""
    task = build_task(options, federation)
    check_method(method, options.method, task)
    check_options(options, task)
    return task


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
    dataset, told = settle_targets(dataset, options.task)
    if options.partition is not None:
        told += describe_bins(dataset, options.partition)
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
    return federation, [*told, *data_sets.list_notices(dataset)]


def _load_dataset(options: Experiment, own: OwnData | None) -> Dataset:
    if own is None:
        return data_sets.load_dataset(
            options.data,
            options.data_dir,
            missing=options.missing,
            columns=Columns.parse(options.label, options.drop_columns),
        )
    if isinstance(own, Dataset):
        return own
    return data_sets.build_own_data(own, missing=options.missing)


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
    options: Experiment,
    federation: Federation,
    task: Task,
    own: nn.Module | None,
    last: str | None,
) -> Backbone:
    if own is not None:
        backbone = models.wrap_own_network(own, last, options.init or "given")
        _try_own_network(backbone, federation, type(own).__name__, options)
        check_outputs(backbone, task)
        return backbone
    if options.init == "given":
        raise UserError(
            "init=given is for a network of your own; those by name are drawn from the seed"
        )
    shape = federation.shape
    vocabulary = federation.vocabulary
    name = options.model or models.suggest_architecture(
        federation.kind, shape, vocabulary
    )
    return models.build(
        name, shape, task.outputs, vocabulary=vocabulary, norm=options.norm
    )


def _try_own_network(
    backbone: Backbone, federation: Federation, name: str, options: Experiment
) -> None:
    """Refuse a network that does not fit; buffers that it never writes become constants."""
    if not len(federation.x):  # only their outline is here
        return
    with torch_settings(getattr(torch, options.dtype)):
        x = features(federation.x[:TRIED])
        unchanged = try_network(backbone, x, federation.classes, name)
    hold_buffers(backbone, unchanged)


def _describe_chosen_model(options: Experiment, backbone: Backbone) -> list[str]:
    """The network, where the user named none."""
    if options.model is not None:
        return []
    size = sum(p.numel() for p in backbone.parameters())
    return [f"model: {backbone.kind} with {size:,} parameters, which fits the data"]


def _make_plan(options: Experiment, backbone: Backbone) -> Plan:
    """How clients train locally."""
    rate = ADAPTIVE_RATES.get(options.optimizer)
    if rate is None:
        rate = models.find_learning_rate(backbone)
    lr = rate if options.lr is None else options.lr
    return Plan(
        lr=lr,
        lr_decay=options.lr_decay,
        epochs=options.epochs,
        batch=options.batch,
        momentum=options.momentum,
        nesterov=options.nesterov,
        weight_decay=options.weight_decay,
        batching=options.batching,
        kind=options.optimizer,
        schedule=parse_schedule(options.schedule, options.warmup),
        is_within_rounds=options.schedule_over == "steps",
        rounds=options.rounds,
        clip=options.clip_gradient,
        keeps_state=options.optimizer_state == "keep",
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
    protection = make_protection(options, name, clients, method)
    return [*make_server_optimiser(options, name), *protection, *named]


def make_server_optimiser(options: Experiment, method: str) -> list[Filter]:
    """The optimiser beneath the means that the server takes, if there is one.

    It is the last to see an upload, so that it steps along what protection leaves.
    """
    kind = options.server_optimizer
    if kind is None:
        if options.server_lr is not None:
            raise UserError("server_lr needs server_optimizer=adam, momentum, ...")
        return []
    rate = options.server_lr or DEFAULT_RATES[kind]
    rule = ServerRule(kind, rate, options.server_momentum, options.server_tau)
    return [ServerOptimiser(rule, method)]


def _make_world(
    options: Experiment,
    method: AnyMethod,
    backbone: Backbone,
    federation: Federation,
    plan: Plan,
    task: Task,
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
        chosen_task=task,
    )


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(
            f"no device '{name}'; there are cpu, cuda, cuda:1, mps ..."
        ) from None
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(
            f"device={name}: this machine has no usable {device.type}"
        ) from None


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
