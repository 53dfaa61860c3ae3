"""The sites of a run: their names, client numbers and data, and which of them are there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation, Kind
from fedtailor.deploy.data_facts import DataSpec, SiteFacts
from fedtailor.deploy.messages import read_message
from fedtailor.deploy.server.data_agreement import agree_on_data, find_misfit
from fedtailor.deploy.server.transport import MessageTransport
from fedtailor.storage.files import write_bytes

HELLO_TIMEOUT = 30.0  # seconds after which a hello that was not answered is sent again
POLL = 0.2  # seconds between two polls while a run waits for its sites
NO_NODE = -1  # in place of the node of a site that has not come yet


class Arrival(NamedTuple):
    """A site that has answered a hello and has no client number yet."""

    node: int
    facts: SiteFacts


class SentHello(NamedTuple):
    """A hello that has not been answered yet."""

    node: int
    at: float  # time.monotonic()


@dataclass
class Site:
    """A site with a client number."""

    name: str
    node: int  # Flower's id of its node
    facts: SiteFacts
    present: bool = True


@dataclass
class Sites:
    """Sites by client number: at first in the order of their names, later ones as they come."""

    transport: MessageTransport
    hello: bytes  # the first message to every node
    path: Path | None = None  # where names and numbers are written
    entries: list[Site] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    federation: Federation | None = None  # outlines of the sites' data, once they agree
    # Sites by number as an earlier start of the run wrote them.
    recorded: dict[str, SiteFacts] = field(default_factory=dict)
    _online: set[int] = field(default_factory=set)
    _hellos: dict[str, SentHello] = field(default_factory=dict)  # by message id
    _answered: set[int] = field(default_factory=set)  # nodes that have answered a hello
    _arrivals: dict[str, Arrival] = field(default_factory=dict)  # by name

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for site in json.loads(self.path.read_text()):
                self.recorded[site["name"]] = SiteFacts.parse(site["facts"])

    # ---------------------------------------------------------------- one site
    def name(self, k: int) -> str:
        """Site k in a sentence."""
        return f"site '{self.entries[k].name}'"

    def node(self, k: int) -> int:
        """Flower's id of site k's node."""
        return self.entries[k].node

    def samples(self, k: int) -> int:
        """How many training samples site k has."""
        return self.entries[k].facts.n[0]

    def reachable(self, k: int) -> bool:
        """Whether site k can be sent messages."""
        return self.entries[k].node in self._online

    def present(self) -> list[int]:
        """The client numbers of the sites that are there."""
        return [k for k, site in enumerate(self.entries) if site.present]

    def leave_out(self, k: int) -> None:
        """Leave site k out, which did not answer, until it answers a hello again."""
        self.entries[k].present = False
        self._answered.discard(self.entries[k].node)
        self.notices.append(f"{self.name(k)} (client {k}) is left out until it is back")

    # ---------------------------------------------------------------- who is there
    def poll_nodes(self) -> None:
        """Send hellos to nodes that are new or back, and read answers that came; never waits."""
        self._online = self.transport.online_nodes()
        now = time.monotonic()
        waiting = {
            sent.node for sent in self._hellos.values() if now - sent.at < HELLO_TIMEOUT
        }
        unknown = self._online - self._answered - waiting
        if unknown:
            messages = dict.fromkeys(sorted(unknown), self.hello)
            for message_id, node in self.transport.send_messages(messages).items():
                self._hellos[message_id] = SentHello(node, now)
        for message_id, answer in self.transport.collect_answers(
            list(self._hellos)
        ).items():
            sent = self._hellos.pop(message_id)
            if isinstance(answer, bytes):
                self._read_answer(sent.node, answer)

    def _read_answer(self, node: int, answer: bytes) -> None:
        """Read a node's answer to a hello, of which nothing is believed."""
        self._answered.add(node)
        try:
            header = read_message(answer).header
            name = str(header["site"])
            refusal = str(header.get("refused") or "")
            facts = None
            if header.get("facts") is not None:
                facts = SiteFacts.parse(header["facts"])
        except (UserError, KeyError, TypeError, ValueError) as error:
            self._warn(f"node {node} gave no sensible answer to a hello: {error}")
            return
        if self._name_is_taken(name, node):
            self._warn(f"two nodes call themselves '{name}'; give each its own --name")
        elif refusal or facts is None:
            self._warn(f"site '{name}' refuses: {refusal or 'no reason given'}")
        else:
            self._receive_site(name, node, facts)

    def _name_is_taken(self, name: str, node: int) -> bool:
        """Whether another node that is online answers to this name."""
        known = self._find_site(name)
        if known is not None:
            holder = known.node
        elif name in self._arrivals:
            holder = self._arrivals[name].node
        else:
            return False
        return holder != node and holder in self._online

    def _find_site(self, name: str) -> Site | None:
        for site in self.entries:
            if site.name == name:
                return site
        return None

    def _receive_site(self, name: str, node: int, facts: SiteFacts) -> None:
        """A site is there: for the first time, or again."""
        known = self._find_site(name)
        if known is not None:
            self._take_back(known, node, facts)
            return
        self._arrivals[name] = Arrival(node, facts)
        if self.federation is not None:
            self._admit_arrival(name, self.federation)

    def _take_back(self, site: Site, node: int, facts: SiteFacts) -> None:
        """Take in a site that was away, if its data are still the same."""
        if facts != site.facts:
            site.present = False
            self._warn(f"site '{site.name}' came back with other data; it is left out")
            return
        if not site.present:
            self.notices.append(f"site '{site.name}' is back")
        site.node = node
        site.present = True

    def _admit_arrival(self, name: str, federation: Federation) -> None:
        """Give a site that comes later the next number, if its data fit."""
        arrival = self._arrivals.pop(name)
        misfit = find_misfit(arrival.facts, DataSpec.of(federation))
        if misfit:
            self._warn(f"site '{name}' cannot join: {misfit}")
            return
        self._add_client(Site(name, arrival.node, arrival.facts), federation)
        self.notices.append(f"site '{name}' joins as client {len(self.entries) - 1}")

    def _warn(self, text: str) -> None:
        """Stop a run that has not begun; one that goes on gets a warning."""
        if self.federation is None:
            raise UserError(text)
        self.notices.append(f"warning: {text}")

    def _add_client(self, site: Site, federation: Federation) -> None:
        """Give a site the next client number."""
        self.entries.append(site)
        train, val, test = site.facts.n
        federation.train.append(torch.arange(train))
        federation.val.append(torch.arange(val))
        federation.test.append(torch.arange(test))
        self._write_entries()

    def _write_entries(self) -> None:
        if self.path is None:
            return
        listed: list[dict[str, Any]] = []
        for k, site in enumerate(self.entries):
            listed.append({"client": k, "name": site.name, "facts": asdict(site.facts)})
        write_bytes(self.path, json.dumps(listed, indent=1).encode())

    # ---------------------------------------------------------------- the beginning
    def wait_for_sites(
        self, count: int, wait: float, say: Callable[[str], None]
    ) -> None:
        """Wait until ``count`` sites and those of an earlier start are there; give them numbers."""
        expected = set(self.recorded)
        deadline = time.monotonic() + wait
        announced = -1
        while len(self._arrivals) < count or expected - set(self._arrivals):
            if time.monotonic() > deadline:
                break
            self.poll_nodes()
            if len(self._arrivals) != announced:
                announced = len(self._arrivals)
                total = max(count, len(expected))
                say(
                    f"{announced} of {total} sites are here"
                    + list_names(self._arrivals)
                )
            time.sleep(POLL)
        came = len(self._arrivals)
        if not came or (not expected and came < count):
            names = list_names(self._arrivals)
            raise UserError(
                f"only {came} of {count} sites came within {wait:g} s{names}"
            )
        self._number_arrivals(say)

    def _number_arrivals(self, say: Callable[[str], None]) -> None:
        """Numbers by name, or as an earlier start of the run gave them."""
        for name in list(self.recorded) or sorted(self._arrivals):
            if name in self._arrivals:
                arrival = self._arrivals.pop(name)
                self.entries.append(Site(name, arrival.node, arrival.facts))
            else:
                away = Site(name, NO_NODE, self.recorded[name], present=False)
                self.entries.append(away)
                say(f"warning: site '{name}' is away")

    def make_federation(self, given: Mapping[str, Any]) -> Federation:
        """The outline of all sites' data: what is ``given``, else what the sites have in common."""
        spec = agree_on_data({site.name: site.facts for site in self.entries}, given)
        federation = make_outline(spec)
        self.federation = federation
        numbered = self.entries
        self.entries = []
        for site in numbered:
            self._add_client(site, federation)
        for name in sorted(self._arrivals):
            self._admit_arrival(name, federation)
        return federation


def make_outline(spec: DataSpec) -> Federation:
    """A federation of such data that has no samples and no clients yet."""
    return Federation(
        name="sites",
        kind=cast(Kind, spec.kind),
        x=torch.zeros(0, *spec.shape, dtype=getattr(torch, spec.dtype)),
        y=torch.zeros(0, dtype=torch.int64),
        classes=spec.classes,
        train=[],
        val=[],
        test=[],
        labels=spec.labels,
        vocabulary=spec.vocabulary,
    )


def list_names(names: Iterable[str]) -> str:
    """Names in brackets, for the end of a sentence."""
    listed = ", ".join(sorted(names))
    return f" ({listed})" if listed else ""
