"""Clients at their own sites, far away: the executor of deployed runs.

It knows nothing of Flower but what a ``MessageTransport`` does (``deploy.flower.server_app`` has the real one):
messages go to nodes, answers come back or get lost. Private states stay at the sites, so the store here is empty for
ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.tree import Tree
from fedtailor.core.wire import encode
from fedtailor.deploy.messages import Message, read_message, write_request
from fedtailor.deploy.server.sites import Sites
from fedtailor.deploy.server.transport import Lost, MessageTransport
from fedtailor.executors import Tick
from fedtailor.executors.riders import Carrier
from fedtailor.executors.visit import Reply, Visit, reply_type
from fedtailor.executors.world import AnyMethod
from fedtailor.storage.private_state import MemoryStore

POLL = 0.2  # seconds between two looks for answers
LOOK = 1.0  # seconds between two looks for nodes that come, go or come back
AGAIN = 1.0  # seconds before a message that was lost is sent again
SILENT = 5.0  # seconds after which a node is asked whether it is still at it


class Flower(Carrier):
    """Carries calls to sites; bitwise equal to Sequential on the same data and versions."""

    def __init__(
        self,
        transport: MessageTransport,
        sites: Sites,
        method: AnyMethod,
        head: Callable[[], dict[str, Any]],
        *,
        deadline: float,
        absence: float,
    ) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.covered = 0  # the last round that a checkpoint covers
        self.best: int | None = None  # the round whose models are the best so far
        self._transport, self._sites, self._method, self._head = transport, sites, method, head
        self._deadline, self._absence = deadline, absence
        self._scored: tuple[int, dict[int, Reply]] = (-1, {})  # the last scores, and of which round

    # ---------------------------------------------------------------- what a run asks
    def present(self) -> list[int]:
        """The sites that are there, by number; one that comes back or comes anew is among them from now on."""
        self._sites.poll_nodes()
        until = time.monotonic() + self._absence
        while not self._sites.present() and time.monotonic() < until:
            time.sleep(POLL)
            self._sites.poll_nodes()
        return self._sites.present() or list(
            range(len(self._sites.entries))
        )  # nobody: then all are tried again

    def call(
        self, name: str, downs: Mapping[int, Tree], t: int, call: int, tick: Tick
    ) -> dict[int, Reply]:
        """The replies by client, in client order; one that failed or did not come carries the reason."""
        if name == "@score" and self._scored[0] == t and set(downs) <= set(self._scored[1]):
            return {
                k: self._scored[1][k] for k in downs
            }  # nothing has happened since: the scores are the same
        replies = self.carry({k: Visit(name, t, call, down) for k, down in downs.items()}, tick)
        if name == "@score":
            self._scored = t, replies
        elif not name.startswith("@"):
            self._scored = -1, {}
        return replies

    def notices(self) -> list[str]:
        """Who came, left or came back."""
        notices, self._sites.notices = self._sites.notices, []
        return notices

    def close(self) -> None:
        """The sites stay as they are: they wait for the next run."""

    # ---------------------------------------------------------------- messages and answers
    def exchange(
        self, bundles: dict[int, list[Visit]], done: Callable[[int], None]
    ) -> dict[int, list[Reply]]:
        """Send every client its message and wait for the answers; one that is lost is sent again."""
        begun = looked = time.monotonic()
        open_, out = set(bundles), dict[int, list[Reply]]()
        mail: dict[
            str, tuple[int, bool]
        ] = {}  # id -> client, and whether it is the visit (else: are you there?)
        sent, asked, gone = dict[int, float](), dict[int, float](), dict[int, float]()
        rest, why = dict[int, float](), dict[int, str]()

        def send(clients: list[int], visit: bool) -> None:
            at = {self._sites.node(k): k for k in clients}
            messages = {
                node: write_request({**self._about(), "client": k}, bundles[k] if visit else [])
                for node, k in at.items()
            }
            for i, node in self._transport.send_messages(messages).items():
                mail[i] = at[node], visit
                (sent if visit else asked)[at[node]] = time.monotonic()

        while open_:
            now = time.monotonic()
            send(
                [
                    k
                    for k in sorted(open_)
                    if k not in sent and now > rest.get(k, 0) and self._sites.reachable(k)
                ],
                True,
            )
            for i, answer in self._transport.collect_answers(list(mail)).items():
                k, visit = mail.pop(i)
                if isinstance(answer, Lost):
                    (sent if visit else asked).pop(k, None)
                    rest[k], why[k] = now + AGAIN, answer.why
                elif (
                    not visit
                ):  # a node answers one message after the other: it has not got that of the visit
                    asked.pop(k, None)
                    sent.pop(k, None)
                elif k in open_:
                    out[k] = self._read(k, answer, bundles[k])
                    open_.discard(k)
                    done(k)
            if now - looked > LOOK:
                self._sites.poll_nodes()
                looked = now
            silent = [k for k in open_ if k in sent and k not in asked and now - sent[k] > SILENT]
            send([k for k in silent if self._sites.reachable(k)], False)
            for k in sorted(open_):
                here = self._sites.reachable(k)
                away = 0.0 if here else now - gone.setdefault(k, now)
                if here:
                    gone.pop(k, None)
                if away > self._absence or now - begun > self._deadline:
                    how = f"did not reply within {self._deadline:g} s" + (
                        f" ({why[k]})" if k in why else ""
                    )
                    how = f"has been away for {away:.0f} s" if away > self._absence else how
                    out[k] = [Reply(0, None, f"{self._sites.name(k)} {how}")] * len(bundles[k])
                    open_.discard(k)
                    self._sites.leave_out(k)
            if open_:
                time.sleep(POLL)
        return out

    def _about(self) -> dict[str, Any]:
        return {**self._head(), "covered": self.covered, "best": self.best}

    def _read(self, k: int, data: bytes, visits: list[Visit]) -> list[Reply]:
        """The answers of a site, of which nothing is believed."""
        who = self._sites.name(k)
        try:
            message = read_message(data)
            if message.header.get("refused"):
                return [Reply(0, None, f"{who} refuses: {message.header['refused']}")] * len(visits)
            listed = message.header["replies"]
            if len(listed) != len(visits):
                raise ValueError(f"{len(listed)} answers to {len(visits)} questions")
            denied = next((r["denied"] for r in listed if r.get("denied")), None)
            if denied is None:
                return [
                    self._reply(k, message, i, v, r)
                    for i, (v, r) in enumerate(zip(visits, listed, strict=True))
                ]
        except Exception as error:  # whatever a stranger sends
            text = " ".join(str(error).split())[:200]
            return [Reply(0, None, f"{who}'s answer cannot be read: {text}")] * len(visits)
        raise UserError(f"{who} does not allow this run what it asks for: {denied}")

    def _reply(
        self, k: int, message: Message, i: int, visit: Visit, about: dict[str, Any]
    ) -> Reply:
        who, known = self._sites.name(k), self._sites.samples(k)
        if about.get("error"):
            return Reply(0, None, f"{who}: {str(about['error'])[:300]}")
        if about["n"] != known:
            return Reply(
                0, None, f"{who} claims {about['n']} training samples, at first it was {known}"
            )
        up = message.decode_tree(i, self._kind(visit.name))
        odd = "" if visit.name.startswith("@") else self._find_odd_type(up, visit)
        return Reply(0, None, f"{who}: {odd}") if odd else Reply(known, up)

    def _find_odd_type(self, up: Tree, visit: Visit) -> str:
        """A tensor of another type than its like in the download, which would spread over all models."""
        for name, wanted in self._method.expected_upload(visit.down, visit.t).items():
            want, have = encode(wanted), encode(getattr(up, name, None))
            for path in want.keys() & have.keys():
                a, b = want[path], have[path]
                if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype != b.dtype:
                    return (
                        f"its upload's {name}/{path} is {str(b.dtype)[6:]}, not {str(a.dtype)[6:]}"
                    )
        return ""

    def _kind(self, name: str) -> Any:
        return str if name in ("@digest", "@close") else reply_type(self._method, name)
