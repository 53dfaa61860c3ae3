"""The sites of a run: who they are, which client number each has, who is there, and whether their data fit together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation
from fedtailor.deploy.messages import read
from fedtailor.deploy.server.data_agreement import agree_on, check_facts, find_misfit, spec_of
from fedtailor.storage.files import write_bytes

PATIENCE = 30.0  # seconds after which a greeting that was not answered is sent again
STEP = 0.2  # seconds between two looks while a run waits for its sites


class Greeter(Protocol):
    """What of a ``Post`` is needed here."""

    def online(self) -> set[int]: ...

    def send(self, letters: Mapping[int, bytes]) -> dict[str, int]: ...

    def collect(self, ids: list[str]) -> Mapping[str, Any]: ...


@dataclass
class Entry:
    """A site."""

    name: str
    node: int  # Flower's number of its node
    facts: dict[str, Any]
    here: bool = True


@dataclass
class Sites:
    """Sites by client number: at first in the order of their names, later ones as they come."""

    post: Greeter
    hello: Callable[[], bytes]  # what every node is asked first
    path: Path | None = None  # where names and numbers are written down
    entries: list[Entry] = field(default_factory=list)
    news: list[str] = field(default_factory=list)
    federation: Federation | None = None  # outlines of their data, once they agree
    recorded: list[str] = field(default_factory=list)  # names by number of the run that goes on
    _online: set[int] = field(default_factory=set)
    _asked: dict[str, tuple[int, float]] = field(
        default_factory=dict
    )  # hellos on their way: to whom, since when
    _known: dict[int, str] = field(default_factory=dict)  # nodes that have answered one
    _came: dict[str, tuple[int, dict[str, Any]]] = field(
        default_factory=dict
    )  # sites that have no number yet

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self.recorded = [site["name"] for site in json.loads(self.path.read_text())]

    # ---------------------------------------------------------------- one site
    def name(self, k: int) -> str:
        """How site k is called, for what is said of it."""
        return f"site '{self.entries[k].name}'"

    def node(self, k: int) -> int:
        """Flower's number of site k's node."""
        return self.entries[k].node

    def samples(self, k: int) -> int:
        """How many training samples site k has."""
        return int(self.entries[k].facts["n"][0])

    def reachable(self, k: int) -> bool:
        """Whether site k can be written to."""
        return self.entries[k].node in self._online

    def present(self) -> list[int]:
        """The numbers of those that are there."""
        return [k for k, entry in enumerate(self.entries) if entry.here]

    def leave(self, k: int) -> None:
        """Site k did not answer: it is left out until it says hello again."""
        self.entries[k].here = False
        self._known.pop(self.entries[k].node, None)
        self.news.append(f"{self.name(k)} (client {k}) is left out until it is back")

    # ---------------------------------------------------------------- who is there
    def look(self) -> None:
        """Greet nodes that are new or back, and take in what earlier ones answered; never waits."""
        self._online = self.post.online()
        now = time.monotonic()
        asked = {node for node, since in self._asked.values() if now - since < PATIENCE}
        strangers = self._online - set(self._known) - asked
        if strangers:
            sent = self.post.send(dict.fromkeys(sorted(strangers), self.hello()))
            self._asked |= {i: (node, now) for i, node in sent.items()}
        for i, answer in self.post.collect(list(self._asked)).items():
            node, _ = self._asked.pop(i)
            if isinstance(answer, bytes):
                self._meet(node, answer)

    def _meet(self, node: int, answer: bytes) -> None:
        try:
            about = read(answer).about
            name, facts = str(about["site"]), about.get("facts")
            refused = str(about.get("refused") or "")
            if facts is not None:
                facts = check_facts(facts)
        except (UserError, KeyError, TypeError, ValueError) as error:
            self._known[node] = "?"
            self._warn(f"node {node} gave no sensible answer to a greeting: {error}")
            return
        self._known[node] = name
        known = next((e for e in self.entries if e.name == name), None)
        other = known.node if known else self._came[name][0] if name in self._came else node
        if other != node and other in self._online:
            self._warn(f"two nodes call themselves '{name}'; give each its own --name")
        elif refused or facts is None:
            self._warn(f"site '{name}' refuses: {refused or 'no reason given'}")
        elif known is not None:
            self._return(known, node, facts)
        else:
            self._came[name] = node, facts
            if self.federation is not None:
                self._admit(name)

    def _warn(self, text: str) -> None:
        if self.federation is None:
            raise UserError(text)
        self.news.append(f"warning: {text}")

    def _return(self, entry: Entry, node: int, facts: dict[str, Any]) -> None:
        if facts != entry.facts:
            entry.here = False
            self._warn(f"site '{entry.name}' came back with other data; it is left out")
            return
        if not entry.here:
            self.news.append(f"site '{entry.name}' is back")
        entry.node, entry.here = node, True

    def _admit(self, name: str) -> None:
        """A site that comes later gets the next number, if its data fit."""
        node, facts = self._came.pop(name)
        assert self.federation is not None
        wrong = find_misfit(facts, spec_of(self.federation))
        if wrong:
            self._warn(f"site '{name}' cannot join: {wrong}")
            return
        self._number(name, node, facts)
        self.news.append(f"site '{name}' joins as client {len(self.entries) - 1}")

    def _number(self, name: str, node: int, facts: dict[str, Any]) -> None:
        self.entries.append(Entry(name, node, facts))
        if self.federation is not None:
            for part, n in zip(
                (self.federation.train, self.federation.val, self.federation.test),
                facts["n"],
                strict=True,
            ):
                part.append(torch.arange(n))
        if self.path is not None:
            listed = [
                {"client": k, "name": e.name, "facts": e.facts} for k, e in enumerate(self.entries)
            ]
            write_bytes(self.path, json.dumps(listed, indent=1).encode())

    # ---------------------------------------------------------------- the beginning
    def gather(self, count: int, wait: float, say: Callable[[str], None]) -> None:
        """Wait for the sites of the run, and number them."""
        begun, told = time.monotonic(), -1
        need = set(self.recorded)
        while len(self._came) < count or need - set(self._came):
            if time.monotonic() - begun > wait:
                break
            self.look()
            if len(self._came) != told:
                told = len(self._came)
                say(f"{told} of {max(count, len(need))} sites are here" + _names(self._came))
            time.sleep(STEP)
        missing = sorted(need - set(self._came))
        if not self._came or (not need and len(self._came) < count):
            raise UserError(
                f"only {len(self._came)} of {count} sites came within {wait:g} s{_names(self._came)}"
            )
        old = json.loads(self.path.read_text()) if self.path is not None and need else []
        for name in self.recorded or sorted(self._came):
            if name in missing:
                facts = next(site["facts"] for site in old if site["name"] == name)
                self.entries.append(Entry(name, -1, facts, here=False))
                say(f"warning: site '{name}' is away")
            else:
                self.entries.append(Entry(name, *self._came.pop(name)))

    def agree(self, given: dict[str, Any]) -> Federation:
        """The outline of everybody's data: what the experiment says of it, else what the sites have in common."""
        spec = agree_on({e.name: e.facts for e in self.entries}, given)
        x = torch.zeros(0, *spec["shape"], dtype=getattr(torch, spec["dtype"]))
        self.federation = Federation(
            "sites",
            spec["kind"],
            x,
            torch.zeros(0, dtype=torch.int64),
            spec["classes"],
            train=[],
            val=[],
            test=[],
            labels=tuple(spec["labels"]),
            vocabulary=spec["vocabulary"],
        )
        entries, self.entries = self.entries, []
        for entry in entries:
            self._number(entry.name, entry.node, entry.facts)
            self.entries[-1].here = entry.here
        for name in sorted(self._came):
            self._admit(name)
        return self.federation


def _names(came: Mapping[str, Any]) -> str:
    return f" ({', '.join(sorted(came))})" if came else ""
