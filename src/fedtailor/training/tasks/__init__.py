"""The tasks, one file each: found by file name, nothing to register.

A file has a function ``make(target) -> Task``. ``Classification`` itself is in
``training/task.py``.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from fedtailor.core.errors import UserError, unknown
from fedtailor.training.task import Task
from fedtailor.training.tasks.target import Target

NO_TASKS = ("target",)


def task_names() -> list[str]:
    """The names of all tasks."""
    files = Path(__file__).parent.glob("*.py")
    names = {path.stem for path in files if not path.stem.startswith("_")}
    return sorted(names - set(NO_TASKS))


def make_task(name: str, target: Target) -> Task:
    """The task of this name, for such targets."""
    if name not in task_names():
        raise unknown("task", name, task_names())
    module = importlib.import_module(f"{__name__}.{name}")
    task: Task = module.make(target)
    if target.weights and not task.has_classes:
        raise UserError(
            f"class_weights: {name} has no classes to weigh; leave --class-weights out"
        )
    if task.select and task.select not in task.known_measures:
        raise unknown(f"measure of {name}", task.select, task.known_measures)
    return task
