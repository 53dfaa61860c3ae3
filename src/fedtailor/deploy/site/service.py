"""The resident of a site: answers the letters of runs, with the site's own data, method files and private state.

It runs nothing that is sent: only functions of the fedtailor that is installed here (or of method files that the site
was given), called by name, and only those that a method declares as client functions.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedtailor import methods
from fedtailor._version import __version__
from fedtailor.core.errors import UserError
from fedtailor.core.torch_settings import torch_settings
from fedtailor.deploy import messages as letters
from fedtailor.deploy.code_digests import asked_in_setup, digest_engine, digest_method, explain
from fedtailor.deploy.messages import About, Letter
from fedtailor.deploy.site.data import Source, cut
from fedtailor.deploy.site.run import Engagement, engage
from fedtailor.engine.exchange import LATER
from fedtailor.executors.sequential import describe
from fedtailor.experiment.config import make_experiment
from fedtailor.method_types import client_functions
from fedtailor.storage.files import write_bytes


@dataclass
class Resident:
    """One site."""

    name: str
    source: Source
    state: Path
    allow: Collection[str] | None = None  # what setup may ask for; None is anything
    files: Collection[Path] = ()  # method files beside the built-in ones
    log: Callable[[str], None] = lambda text: None
    device: str = "cpu"

    def __post_init__(self) -> None:
        self.incarnation = uuid.uuid4().hex
        self._engaged: tuple[str, Engagement] | None = None
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)

    def handle(self, data: bytes) -> bytes:
        """The answer to a letter; whatever goes wrong is told in one line."""
        about: About = {"site": self.name, "incarnation": self.incarnation}
        try:
            letter = letters.read(data)
            if "hello" in letter.about:
                return letters.write({**about, **self._greet(letter.about["hello"])})
            replies, trees = self._serve(letter)
            return letters.write({**about, "replies": replies}, trees)
        except UserError as error:
            self.log(f"refused: {error}")
            return letters.write({**about, "refused": " ".join(str(error).split())})
        except Exception as error:
            self.log(f"failed: {describe(error)}")
            return letters.write({**about, "refused": f"it failed: {describe(error)}"})

    # ---------------------------------------------------------------- greeting
    def _greet(self, hello: dict[str, Any]) -> About:
        """Say what data there are, if this site has the run's method."""
        cls = methods.find(self._find(hello))
        options = make_experiment({**hello["experiment"], "set": {}})
        words = [str(word) for word in hello.get("vocabulary") or []]
        holdings = cut(self.source, options, words)
        if words:
            write_bytes(self._folder(hello["run"]) / "vocabulary.json", json.dumps(words).encode())
        asked = asked_in_setup(cls)
        self.log(
            f"run {hello['run'][:8]} ({options.method}) says hello; told it: {_sum_up(holdings.facts())}"
        )
        for name in asked:
            self.log(
                f"it will ask for '{name}': {explain(cls, name)}; {self._permit(name) or 'allowed'}"
            )
        return {
            "facts": holdings.facts(),
            "torch": torch.__version__,
            "fedtailor": __version__,
        }

    def _find(self, about: dict[str, Any]) -> str:
        """The method of a run: its name, or this site's own copy of its file, which must be the same."""
        name = str(about["experiment"]["method"])
        if name.endswith(".py"):
            mine = [path for path in self.files if path.name == Path(name).name]
            if not mine:
                raise UserError(
                    f"this site has no method file {Path(name).name}: start it with --method FILE"
                )
            name = str(mine[0])
        cls = methods.find(name)
        for what, have, want in (
            ("method " + Path(name).stem, digest_method(cls), about["method"]),
            ("fedtailor's engine", digest_engine(), about["engine"]),
        ):
            if have != want:
                raise UserError(
                    f"this site has another version of {what} (digest {have}) than the run ({want})"
                )
        return name

    def _folder(self, run: str) -> Path:
        if not run.isalnum():
            raise UserError(f"'{run[:40]}' is no name of a run")
        folder = self.state / f"run-{run}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    # ---------------------------------------------------------------- visits
    def _serve(self, letter: Letter) -> tuple[list[dict[str, Any]], list[Any]]:
        """Make the visits that a letter asks for, in order."""
        replies: list[dict[str, Any]] = []
        trees: list[Any] = []
        if not letter.about["visits"]:
            return replies, trees
        engagement = self._engage(letter.about)
        with torch_settings(engagement.site.world.dtype, self.device):
            for i, visit in enumerate(letter.about["visits"]):
                about, tree = self._visit(engagement, letter, i, visit)
                replies.append(about)
                trees.append(tree)
        return replies, trees

    def _engage(self, about: About) -> Engagement:
        """The place where this run's clients are run; made once, and again when anything about the run changes."""
        key = json.dumps(
            [about[k] for k in ("run", "client", "experiment", "data", "method", "engine")]
        )
        if self._engaged is None or self._engaged[0] != key:
            method, folder = self._find(about), self._folder(about["run"])
            words: list[str] = []
            with contextlib.suppress(FileNotFoundError):
                words = json.loads((folder / "vocabulary.json").read_text())
            self._engaged = (
                key,
                engage(method, about, self.source, words, folder, self.name, self.device),
            )
        engagement = self._engaged[1]
        engagement.catch_up(about)
        return engagement

    def _visit(
        self, at: Engagement, letter: Letter, i: int, about: dict[str, Any]
    ) -> tuple[dict[str, Any], Any]:
        name, t, call, before = (
            str(about["name"]),
            int(about["t"]),
            int(about["call"]),
            bool(about["before"]),
        )
        cls, begun = type(at.site.method), time.monotonic()
        run = f"run {str(letter.about['run'])[:8]}, round {t}"
        if name.startswith("@"):
            reply = at.look(name, letter, i, t, before)
            where = f" in {at.folder / 'model'}" if name == "@close" else ""
            self.log(
                f"{run}: {LOOKS.get(name, name)}{where}, {reply.error or f'{time.monotonic() - begun:.2f} s'}"
            )
        elif name not in client_functions(cls):
            raise UserError(f"{cls.__name__} has no client function '{name}'")
        else:
            asked = name in asked_in_setup(cls) or (call > LATER and name != "local")
            denied = self._permit(name) if asked else ""
            if denied:
                self.log(f"{run}: asked for '{name}' ({explain(cls, name)}): {denied}")
                return {
                    "n": 0,
                    "error": "",
                    "denied": f"'{name}' ({explain(cls, name)}) is {denied}",
                }, None
            reply = at.call(name, letter, i, t, call)
            what = f"asked for '{name}' ({explain(cls, name)}): answered" if asked else f"'{name}'"
            self.log(f"{run}: {what}, {reply.error or f'{time.monotonic() - begun:.2f} s'}")
        return {"n": reply.n, "error": reply.error}, reply.up

    def _permit(self, name: str) -> str:
        """Why a function may not be asked for, if it may not."""
        if self.allow is None or name in self.allow:
            return ""
        return f"not allowed here (--allow {','.join(sorted(self.allow)) or 'none'})"


LOOKS = {
    "@score": "evaluated the personal model",
    "@after": "evaluated the model after training",
    "@global": "evaluated the global model",
    "@digest": "gave a digest of the private state",
    "@close": "kept the best personal model",
}


def _sum_up(facts: dict[str, Any]) -> str:
    shape = "x".join(map(str, facts["shape"]))
    return f"{'/'.join(map(str, facts['n']))} samples of {shape} to train/validate/test, {facts['classes']} classes"
