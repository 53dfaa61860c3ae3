"""Sites in this process: a deployment without Flower, with every fault that a test asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedtailor.deploy.config import DeployConfig
from fedtailor.deploy.server.serve import serve
from fedtailor.deploy.server.transport import Lost
from fedtailor.deploy.site.data import export_clients, load_source
from fedtailor.deploy.site.service import SiteService
from fedtailor.engine.observer import Observer, RoundRecord
from fedtailor.engine.start import run_experiment
from fedtailor.experiment.config import Experiment, make_experiment
from fedtailor.experiment.prepare import prepare
from fedtailor.experiment.run_folder import RunFolder

OPTIONS: dict[str, Any] = {
    "data": "digits",
    "partition": "dirichlet:0.5",
    "clients": 3,
    "rounds": 3,
    "lr": 0.1,
    "limit": 120,
    "executor": "sequential",
}
FIRST_NODE = 100  # node of site 0
# given by a fault: the message arrives, and nothing ever comes back
NO_ANSWER = b"no answer"

# an answer in place of the site's, or None
Fault = Callable[[int, bytes], bytes | Lost | None]


class FakeTransport:
    """A MessageTransport whose nodes are services in this process."""

    def __init__(self, services: Mapping[int, SiteService]) -> None:
        self.services = dict(services)
        self.away: set[int] = set()
        self.traffic: list[tuple[int, bytes, bytes]] = []  # node, message, answer
        self.fault: Fault = lambda node, message: None
        self._answers: dict[str, bytes | Lost] = {}

    def online_nodes(self) -> set[int]:
        return set(self.services) - self.away

    def send_messages(self, messages: Mapping[int, bytes]) -> dict[str, int]:
        sent = {}
        for node, message in messages.items():
            message_id = str(len(self.traffic))
            answer = self.fault(node, message)
            if answer is None:
                answer = self.services[node].answer_message(message)
            seen = b"" if isinstance(answer, Lost) else answer
            self.traffic.append((node, message, seen))
            if answer != NO_ANSWER:
                self._answers[message_id] = answer
            sent[message_id] = node
        return sent

    def collect_answers(self, ids: list[str]) -> dict[str, bytes | Lost]:
        return {i: self._answers.pop(i) for i in ids if i in self._answers}


class RecordingObserver(Observer):
    """An observer that remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.events: list[tuple[Any, ...]] = []

    def begin(self, config: Experiment, first_round: int) -> None:
        self.events.append(("begin", config, first_round))

    def round(self, record: RoundRecord) -> None:
        self.events.append(("round", record))

    def message(self, text: str) -> None:
        self.lines.append(text)

    def end(self, result: dict[str, Any] | None) -> None:
        self.events.append(("end", result))


class FakeSites:
    """A simulated run, and sites that hold the very same data."""

    def __init__(self, folder: Path, method: str, **options: Any) -> None:
        self.folder = folder
        self.options = {**OPTIONS, "method": method, **options}
        self.setup = prepare(make_experiment(self.options))
        self.files = export_clients(self.setup.world.federation, folder / "sites")
        self.logs: list[str] = []
        services = {
            FIRST_NODE + k: self.make_service(k) for k in range(len(self.files))
        }
        self.transport = FakeTransport(services)

    def make_service(self, k: int, **settings: Any) -> SiteService:
        source = load_source(str(self.files[k]))
        state = self.folder / f"state-{k}"
        return SiteService(
            f"site-{k}", source, state, **{"log": self.logs.append, **settings}
        )

    def simulate(self) -> dict[str, Any]:
        return run_experiment(self.setup, RunFolder(self.folder / "simulated"))

    def deploy(
        self,
        observer: RecordingObserver | None = None,
        out: str = "deployed",
        **settings: Any,
    ) -> dict[str, Any]:
        defaults = {"sites": len(self.files), "wait": 5.0}
        config = DeployConfig(
            self.options, str(self.folder / out), **{**defaults, **settings}
        )
        return serve(self.transport, config, observer or RecordingObserver())
