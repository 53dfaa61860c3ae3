"""Sites in this very process: what a deployment does without Flower, with every accident that can be wished for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedtailor.deploy.server.executor import Lost
from fedtailor.deploy.server.serve import serve
from fedtailor.deploy.site.data import export, load
from fedtailor.deploy.site.service import Resident
from fedtailor.engine.loop import conduct
from fedtailor.experiment.config import make_experiment
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


class Street:
    """A Post whose nodes are residents next door."""

    def __init__(self, residents: Mapping[int, Resident]) -> None:
        self.residents, self.away = dict(residents), set[int]()
        self.traffic: list[tuple[int, bytes, bytes]] = []  # node, letter, answer
        self.accident: Callable[[int, bytes], bytes | Lost | None] = lambda node, letter: None
        self._answers: dict[str, bytes | Lost] = {}

    def online(self) -> set[int]:
        return set(self.residents) - self.away

    def send(self, letters: Mapping[int, bytes]) -> dict[str, int]:
        sent = {}
        for node, letter in letters.items():
            i = f"{len(self.traffic)}"
            answer = self.accident(node, letter)
            if answer is None:
                answer = self.residents[node].handle(letter)
            if not isinstance(answer, Lost):
                self.traffic.append((node, letter, answer))
            else:
                self.traffic.append((node, letter, b""))
            if answer != b"silence":
                self._answers[i] = answer
            sent[i] = node
        return sent

    def collect(self, ids: list[str]) -> dict[str, bytes | Lost]:
        return {i: self._answers.pop(i) for i in ids if i in self._answers}


class Told:
    """A watcher that remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, title: str, rounds: int, done: int) -> None: ...

    def tick(self) -> None: ...

    def round(self, t: int, accuracy: float | None) -> None: ...

    def say(self, text: str) -> None:
        self.lines.append(text)

    def end(self) -> None: ...


class Village:
    """A simulated run, and the sites that hold the very same data."""

    def __init__(self, folder: Path, method: str, **options: Any) -> None:
        self.folder, self.options = folder, {**OPTIONS, "method": method, **options}
        self.setup = prepare(make_experiment(self.options))
        self.files = export(self.setup.world.federation, folder / "sites")
        self.logs: list[str] = []
        self.street = Street({100 + k: self.resident(k) for k in range(len(self.files))})

    def resident(self, k: int, **settings: Any) -> Resident:
        log = {"log": self.logs.append}
        return Resident(
            f"site-{k}", load(str(self.files[k])), self.folder / f"state-{k}", **{**log, **settings}
        )

    def simulate(self) -> dict[str, Any]:
        return conduct(self.setup, RunFolder(self.folder / "simulated"), Told())

    def deploy(
        self, told: Told | None = None, out: str = "deployed", **order: Any
    ) -> dict[str, Any]:
        whole = {
            "experiment": self.options,
            "out": str(self.folder / out),
            "sites": len(self.files),
            "wait": 5,
            **order,
        }
        return serve(self.street, whole, told or Told())
