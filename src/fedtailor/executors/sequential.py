"""One client after another: plain PyTorch, where print and pdb work."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from fedtailor.core.errors import NoRoom, describe_error
from fedtailor.executors import Done, Executor
from fedtailor.executors.client_runner import ClientRunner, Refused
from fedtailor.executors.failures import describe_failure
from fedtailor.executors.looks import look_at
from fedtailor.executors.visit import Reply, Visit


class Sequential(Executor):
    """The reference executor."""

    def __init__(self, runner: ClientRunner) -> None:
        self.runner = runner
        self.store = runner.store

    def run(
        self, visits: Mapping[int, Sequence[Visit]], done: Done
    ) -> dict[int, list[Reply]]:
        """Make every client's visits, in order."""
        replies: dict[int, list[Reply]] = {}
        for k in sorted(visits):
            replies[k] = [attempt(self.runner, k, visit) for visit in visits[k]]
            done(k, replies[k])
        return replies


def attempt(runner: ClientRunner, k: int, visit: Visit) -> Reply:
    """One visit; an exception becomes the reply's error, and the private state stays as it was.

    Numbers that are not finite are no bug: a training diverged. Any other exception comes with its
    traceback, with which a simulation ends.
    """
    began = time.monotonic()
    make = look_at if visit.is_look else ClientRunner.visit
    try:
        reply = make(runner, k, visit)
        return reply._replace(seconds=time.monotonic() - began)
    except NoRoom:  # a run that left this client out would silently be another run
        raise
    except Refused as error:
        return Reply(0, None, describe_error(error))
    except Exception as error:
        return describe_failure(error, runner.method, visit.function)
