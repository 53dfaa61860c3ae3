"""The entry: run an experiment from its beginning, or from its checkpoint, to its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from fedtailor.core.torch_settings import torch_settings
from fedtailor.engine.finish import finish_run
from fedtailor.engine.journal import Journal
from fedtailor.engine.loop import run_rounds
from fedtailor.engine.observer import Observer, Observers
from fedtailor.engine.protection import refuse_in_time, with_invented_data
from fedtailor.engine.run import Run
from fedtailor.engine.stopping import stop_politely
from fedtailor.executors import Executor
from fedtailor.experiment.prepare import Setup
from fedtailor.experiment.protect import needs_sums
from fedtailor.experiment.run_folder import RunFolder


def run_experiment(
    setup: Setup,
    folder: RunFolder,
    observers: Sequence[Observer] = (),
    *,
    resume: bool = False,
    executor: Executor | None = None,
) -> dict[str, Any]:
    """Run an experiment to its end, or continue it, and give its result.

    Args:
        setup: the experiment with its data, network and method.
        folder: where the run is written.
        observers: who is told how it goes; the journal is written in any case.
        resume: continue from the folder's checkpoint.
        executor: runs the clients; chosen by the options unless given.
    """
    observer = Observers([Journal(folder), *observers])
    # A deployed run is stopped by whoever started it; its checkpoint is at most one round old.
    stopping = nullcontext(list[bool]()) if executor else stop_politely(observer)
    with torch_settings(setup.world.dtype, setup.world.device), stopping as stop:
        if executor is None:
            refuse_in_time(setup)
        elif needs_sums(setup.options):
            refuse_in_time(with_invented_data(setup))
        run = Run(setup, folder, observer, resume, executor)
        result = None
        try:
            run.begin(resume)
            folder.note_begin(resume)
            run_rounds(run, stop)
            result = finish_run(run)
        finally:
            run.executor.close()
            folder.note_end(is_finished=result is not None)
            observer.end(result)
        return result
