"""The task of a run: settled from options and targets, and whether method and network can do it."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor import methods
from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation
from fedtailor.data.targets import DESCRIBED, KIND_OF, TASK_OF
from fedtailor.executors.world import AnyMethod
from fedtailor.experiment.config import Experiment, parse_weights
from fedtailor.models.backbone import Backbone
from fedtailor.training.task import Task
from fedtailor.training.tasks import make_task
from fedtailor.training.tasks.target import Target


def settle_task(options: Experiment, federation: Federation) -> Experiment:
    """The options with the task, and with what follows from the clients' sums."""
    name = options.task or TASK_OF[federation.target]
    if KIND_OF[name] != federation.target:
        raise UserError(
            f"task={name}: the targets of {federation.name} are"
            f" {DESCRIBED[federation.target]}; take {TASK_OF[federation.target]}"
        )
    settled: dict[str, object] = {"task": name}
    if name == "regression":
        mean, std = _measure_targets(options, federation)
        settled |= {"target_mean": mean, "target_std": std}
    if options.class_weights == "balanced" and KIND_OF[name] == "classes":
        weights = _balance(federation)
        texts = [f"{weight:.6g}" for weight in weights.tolist()]
        settled["class_weights"] = ",".join(texts)
    return options.model_copy(update=settled)


def build_task(options: Experiment, federation: Federation) -> Task:
    """The task that settled options name."""
    weights: tuple[float, ...] = ()
    if options.class_weights is not None:
        weights = _read_weights(options.class_weights, federation)
    assert options.task is not None
    target = Target(
        classes=federation.classes,
        weights=weights,
        mean=options.target_mean or 0.0,
        std=options.target_std or 1.0,
        select=options.select or "",
    )
    return make_task(options.task, target)


def check_method(method: AnyMethod, name: str, task: Task) -> None:
    """Refuse a method that needs classes where there are none."""
    if task.has_classes or not method.needs_classes:
        return
    raise UserError(
        f"{name} needs classes ({method.needs_classes}), and the task is {task.name};"
        f" methods that can do it are {', '.join(list_methods_without_classes())}"
    )


def check_options(options: Experiment, task: Task) -> None:
    """Refuse options that need classes, or losses of single examples, where there are none."""
    views = options.views.split(",")
    combined = [name for name in ("new", "external") if name in views]
    if combined and not task.has_classes:
        raise UserError(
            f"views={combined[0]}: it combines probabilities of classes, and {task.name} has none"
        )
    poisoned = (options.attack or "").partition(":")[0]
    if poisoned in ("label_flip", "backdoor") and not task.has_classes:
        raise UserError(
            f"attack={options.attack}: {task.name} has no classes to confuse"
        )
    if options.dp == "sample" and options.optimizer_state == "keep":
        raise UserError(
            "dp=sample trains anew every round; leave --optimizer-state out"
        )
    if options.dp == "sample" and task.needs_all_examples:
        raise UserError(
            f"dp=sample: the loss of {task.name} compares examples, so that none has a"
            " gradient of its own; take dp=client"
        )


def list_methods_without_classes() -> list[str]:
    """The methods that do every task."""
    return [name for name in methods.names() if not methods.find(name).needs_classes]


def check_outputs(backbone: Backbone, task: Task) -> None:
    """Refuse an own network that has other outputs than a task without classes needs."""
    if not task.has_classes and backbone.classes != task.outputs:
        raise UserError(
            f"the network gives {backbone.classes} numbers an example, and {task.name}"
            f" needs {task.outputs}: change its last layer"
        )


# ---------------------------------------------------------------- sums over the clients
def _measure_targets(
    options: Experiment, federation: Federation
) -> tuple[float, float]:
    """Mean and deviation of all training targets, from three sums of each client."""
    if options.target_mean is not None and options.target_std is not None:
        return options.target_mean, options.target_std
    n = 0
    total = 0.0
    squares = 0.0
    for index in federation.train:
        y = _targets_at(federation, index)
        n += len(y)
        total += float(y.sum())
        squares += float(y.square().sum())
    mean = total / n if n else 0.0
    variance = squares / n - mean**2 if n else 1.0
    std = variance**0.5 if variance > 0 else 1.0
    if options.target_mean is not None:
        mean = options.target_mean
    return mean, options.target_std or std


def _targets_at(federation: Federation, index: Tensor) -> Tensor:
    """A client's training targets; none where this machine has not seen them."""
    if not len(federation.y):
        return torch.zeros(0, dtype=torch.float64)
    return federation.y[index].double()


def _balance(federation: Federation) -> Tensor:
    """Weights that make all classes worth the same, over all clients' training examples.

    A class that nobody has counts as one example.
    """
    if not len(federation.y):
        raise UserError(
            "class_weights=balanced: the server has not seen the sites' labels;"
            " give one number a class, such as 1,2.5"
        )
    labels = federation.y[torch.cat(federation.train)]
    counts = torch.bincount(labels, minlength=federation.classes).double()
    return len(labels) / (federation.classes * counts.clamp(min=1))


def _read_weights(text: str, federation: Federation) -> tuple[float, ...]:
    if text == "balanced":  # of a task that has no classes, which refuses them
        return (1.0,)
    weights = parse_weights(text)
    if federation.target == "classes" and len(weights) != federation.classes:
        raise UserError(
            f"class_weights={text}: {len(weights)} numbers for {federation.classes} classes"
        )
    return weights
