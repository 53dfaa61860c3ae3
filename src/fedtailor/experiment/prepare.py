"""From an experiment's options to the things a run needs: data dealt to clients, network, method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import torch
from torch import nn

from fedtailor import data as data_sets
from fedtailor import methods, models
from fedtailor.core.errors import UserError
from fedtailor.data.federation import Dataset, Federation
from fedtailor.data.partition.build import build_federation
from fedtailor.executors.world import AnyMethod, World
from fedtailor.experiment.config import Experiment, learning_rate
from fedtailor.models.backbone import Backbone
from fedtailor.training.optim import Plan

Own = Dataset | Federation | Sequence[Any]  # a user's own data, in code


@dataclass(frozen=True)
class Setup:
    """Everything decided: the options with no ``None`` left, and what they mean."""

    options: Experiment
    world: World
    notices: list[str]


def prepare(
    options: Experiment,
    *,
    method: AnyMethod | type[AnyMethod] | None = None,
    data: Own | None = None,
    model: nn.Module | None = None,
    last: str | None = None,
    check_data: bool = True,
) -> Setup:
    """Load, deal, build and check; raises UserError for whatever cannot be, and writes nothing."""
    device = _device(options.device)
    instance = _method(options, method)
    federation, notices = federate(options, data)
    backbone = _backbone(options, federation, model, last)
    instance = instance.with_defaults_for(backbone)
    with torch.random.fork_rng(devices=[]):
        instance.net(backbone)  # raises Unsupported now rather than in a worker
    count = federation.clients
    if check_data and not any(len(i) for i in federation.test):
        raise UserError(
            "no client has a test sample: use more data, or a split with a larger test part"
        )
    if options.new >= count:
        raise UserError(f"new={options.new}: of {count} clients at least one must train")
    if check_data and "external" in options.views.split(",") and not federation.external:
        raise UserError(
            f"views=external: the data set {federation.name} comes with no external data"
        )
    lr = options.lr if options.lr is not None else learning_rate(backbone)
    plan = Plan(
        lr,
        options.lr_decay,
        options.epochs,
        options.batch,
        options.momentum,
        options.weight_decay,
        options.batching,
    )
    settled = options.model_copy(
        update={
            "method": options.method if method is None else methods.name_of(type(instance)),
            "set": {k: v for k, v in asdict(instance).items() if v is not None}
            if is_dataclass(instance)
            else {},
            "clients": count,
            "lr": lr,
            "model": options.model or backbone.kind,
        }
    )
    world = World(
        instance,
        backbone,
        federation,
        plan,
        options.seed,
        options.rounds,
        options.bn,
        getattr(torch, options.dtype),
        device,
    )
    if options.model is None and model is None:
        size = sum(p.numel() for p in backbone.parameters())
        notices = [
            *notices,
            f"model: {backbone.kind} with {size:,} parameters, which fits the data",
        ]
    return Setup(settled, world, [*notices, *(f"warning: {d}" for d in instance.warnings())])


def _method(options: Experiment, given: AnyMethod | type[AnyMethod] | None) -> AnyMethod:
    if given is None:
        return methods.make(methods.find(options.method), options.set)
    if isinstance(given, type):
        return methods.make(given, options.set)
    if options.set:
        raise UserError("a method that is made already takes no further hyper-parameters")
    return given


def federate(options: Experiment, given: Own | None = None) -> tuple[Federation, list[str]]:
    """The data, dealt to clients, and what is worth knowing about them."""
    if isinstance(given, Federation):
        return given, []
    if given is None:
        dataset = data_sets.load_dataset(options.data, options.data_dir, missing=options.missing)
    else:
        dataset = given if isinstance(given, Dataset) else data_sets.build_dataset(given)
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


def _backbone(
    options: Experiment, f: Federation, model: nn.Module | None, last: str | None
) -> Backbone:
    if model is not None:
        return models.adopt(model, last)
    name = options.model or models.suggest(f.kind, f.shape, f.vocabulary)
    return models.build(name, f.shape, f.classes, vocabulary=f.vocabulary, norm=options.norm)


def _device(name: str) -> str:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"no device '{name}'; there are cpu, cuda, cuda:1, mps ...") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: this machine has no usable GPU")
    return name
