"""Clients at their own sites: the executor of deployed runs.

It knows nothing of Flower but what a ``MessageTransport`` does
(``deploy/flower/server_app.py`` has the real one): messages go to nodes, answers come
back or get lost. Private states stay at the sites, so the store here is always empty.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.sealed import has_sealed
from fedtailor.core.tree import Tree
from fedtailor.core.wire import encode
from fedtailor.deploy.messages import Header, read_message, write_request
from fedtailor.deploy.server.sites import Sites
from fedtailor.deploy.server.transport import Lost, MessageTransport
from fedtailor.executors import Done, Executor
from fedtailor.executors.visit import Reply, Visit, reply_type
from fedtailor.executors.world import AnyMethod
from fedtailor.method import Method
from fedtailor.storage.private_state import MemoryStore

POLL = 0.2  # seconds between two looks for answers
LOOK = 1.0  # seconds between two looks for nodes that come, go or come back
AGAIN = 1.0  # seconds before a message that was lost is sent again
SILENT = 5.0  # seconds after which a node is asked whether it is still working


class SiteExecutor(Executor):
    """Makes visits to sites; bitwise equal to Sequential on the same data and versions."""

    late_evaluation = True
    remote = True

    def __init__(
        self,
        transport: MessageTransport,
        sites: Sites,
        method: AnyMethod,
        header: Header,
        *,
        deadline: float,
        absence: float,
    ) -> None:
        self.store = MemoryStore()
        self.transport = transport
        self.sites = sites
        self.deadline = deadline  # seconds for a reply
        self.absence = absence  # seconds that a site may be away
        self._method = method
        self._header = header  # what every request says of the run
        self._saved = 0  # the last round that a checkpoint covers
        self._best: int | None = None  # the round with the best models so far

    def available(self, clients: Sequence[int]) -> list[int]:
        """Sites that are online, also new ones; if none is, after waiting, all are tried again."""
        self.sites.poll_nodes()
        until = time.monotonic() + self.absence
        while not self.sites.present() and time.monotonic() < until:
            time.sleep(POLL)
            self.sites.poll_nodes()
        return self.sites.present() or list(range(len(self.sites.entries)))

    def inform(self, *, saved: int | None = None, best: int | None = None) -> None:
        """Sites learn both with the next request: what they may delete, which model to keep."""
        if saved is not None:
            self._saved = saved
        if best is not None:
            self._best = best

    def notices(self) -> list[str]:
        """Sites that came, left or came back."""
        notices = self.sites.notices
        self.sites.notices = []
        return notices

    def run(
        self, visits: Mapping[int, Sequence[Visit]], done: Done
    ) -> dict[int, list[Reply]]:
        """Send every site its request and wait for the answers."""
        replies = _RequestRound(self, visits, done).run()
        return {k: replies[k] for k in sorted(replies)}

    # ---------------------------------------------------------------- messages
    def write_request(self, k: int, visits: Sequence[Visit]) -> bytes:
        """A request for visits to client k; without visits, it asks whether the site is there."""
        header = {
            **self._header,
            "covered": self._saved,
            "best": self._best,
            "client": k,
        }
        return write_request(header, visits)

    def read_answer(self, k: int, data: bytes, visits: Sequence[Visit]) -> list[Reply]:
        """The replies of a site; nothing in them is trusted."""
        site = self.sites.name(k)
        try:
            message = read_message(data)
            if message.header.get("refused"):
                error = f"{site} refuses: {message.header['refused']}"
                return [Reply(0, None, error)] * len(visits)
            count = int(message.header["replies"])
            if count != len(visits):
                raise ValueError(f"{count} answers to {len(visits)} questions")
            replies = []
            for i, visit in enumerate(visits):
                kind = reply_type(self._method, visit.function)
                replies.append(Reply.decode(kind, message.flat_tree(i)))
        except Exception as error:  # a site may send anything
            text = " ".join(str(error).split())[:200]
            return [Reply(0, None, f"{site}'s answer cannot be read: {text}")] * len(
                visits
            )
        for reply in replies:
            if reply.denied:
                raise UserError(
                    f"{site} does not allow this run what it asks for: {reply.error}"
                )
        return [
            self._check_reply(k, v, r) for v, r in zip(visits, replies, strict=True)
        ]

    def _check_reply(self, k: int, visit: Visit, reply: Reply) -> Reply:
        """The reply, or an error in its place."""
        site = self.sites.name(k)
        known = self.sites.samples(k)
        if reply.error:
            return Reply(0, None, f"{site}: {reply.error[:300]}")
        if reply.n != known:
            return Reply(
                0,
                None,
                f"{site} claims {reply.n} training samples, at first it was {known}",
            )
        if has_sealed(reply.report) or (visit.is_look and has_sealed(reply.up)):
            return Reply(0, None, f"{site} seals what nobody asked to be sealed")
        fault = self._find_wrong_dtype(reply.up, visit)
        return Reply(0, None, f"{site}: {fault}") if fault else reply

    def _find_wrong_dtype(self, up: Tree, visit: Visit) -> str:
        """A tensor of another type than in the download, which merging would spread."""
        if visit.is_look or visit.function == Method.receive.__name__:
            return ""
        for field, wanted in self._method.expected_upload(visit.down, visit.t).items():
            want = encode(wanted)
            have = encode(getattr(up, field, None))
            for path in want.keys() & have.keys():
                a = want[path]
                b = have[path]
                if (
                    isinstance(a, Tensor)
                    and isinstance(b, Tensor)
                    and a.dtype != b.dtype
                ):
                    return f"its upload's {field}/{path} is {_name(b)}, not {_name(a)}"
        return ""


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@dataclass
class _Waiting:
    """A client whose answer is awaited."""

    # when the request was sent; None: it is to be sent (again)
    sent: float | None = None
    asked: float | None = None  # when the site was asked whether it is there
    away_since: float | None = None
    retry_at: float = 0.0  # after a loss
    loss: str = ""  # why the last message was lost


class _RequestRound:
    """One request to each of several sites, repeated where messages get lost."""

    def __init__(
        self, executor: SiteExecutor, visits: Mapping[int, Sequence[Visit]], done: Done
    ) -> None:
        self._executor = executor
        self._sites = executor.sites
        self._visits = visits
        self._done = done
        self._waiting = {k: _Waiting() for k in sorted(visits)}
        # id -> client, whether it is a request
        self._messages: dict[str, tuple[int, bool]] = {}
        self._replies: dict[int, list[Reply]] = {}

    def run(self) -> dict[int, list[Reply]]:
        """Wait until every site has answered or is given up."""
        begun = time.monotonic()
        polled = begun
        while self._waiting:
            now = time.monotonic()
            self._send_requests(now)
            self._take_answers(now)
            if now - polled > LOOK:
                self._sites.poll_nodes()
                polled = now
            self._ask_silent_sites(now)
            self._give_up(now, begun)
            if self._waiting:
                time.sleep(POLL)
        return self._replies

    def _send_requests(self, now: float) -> None:
        """Requests that were not sent yet, or got lost."""
        self._send(
            k
            for k, waiting in self._waiting.items()
            if waiting.sent is None
            and now > waiting.retry_at
            and self._sites.reachable(k)
        )

    def _ask_silent_sites(self, now: float) -> None:
        """Ask sites that have not answered for a while whether they are there."""
        silent = [
            k
            for k, waiting in self._waiting.items()
            if waiting.sent is not None
            and waiting.asked is None
            and now - waiting.sent > SILENT
            and self._sites.reachable(k)
        ]
        self._send(silent, is_request=False)

    def _send(self, clients: Iterable[int], is_request: bool = True) -> None:
        nodes: dict[int, int] = {}
        messages: dict[int, bytes] = {}
        for k in clients:
            node = self._sites.node(k)
            nodes[node] = k
            visits = self._visits[k] if is_request else []
            messages[node] = self._executor.write_request(k, visits)
        for message_id, node in self._executor.transport.send_messages(
            messages
        ).items():
            k = nodes[node]
            self._messages[message_id] = (k, is_request)
            if is_request:
                self._waiting[k].sent = time.monotonic()
            else:
                self._waiting[k].asked = time.monotonic()

    def _take_answers(self, now: float) -> None:
        """Answers that have arrived, and messages that got lost."""
        arrived = self._executor.transport.collect_answers(list(self._messages))
        for message_id, answer in arrived.items():
            k, is_request = self._messages.pop(message_id)
            waiting = self._waiting.get(k)
            if waiting is None:
                continue
            if isinstance(answer, Lost):
                waiting.retry_at = now + AGAIN
                waiting.loss = answer.why
                if is_request:
                    waiting.sent = None
                else:
                    waiting.asked = None
            elif is_request:
                self._finish(k, self._executor.read_answer(k, answer, self._visits[k]))
                self._done(k)
            else:
                # a node answers one message after the other: it never got the request
                waiting.asked = None
                waiting.sent = None

    def _give_up(self, now: float, begun: float) -> None:
        """Give up sites that are away, or have not answered, for too long."""
        for k, waiting in list(self._waiting.items()):
            if self._sites.reachable(k):
                waiting.away_since = None
            elif waiting.away_since is None:
                waiting.away_since = now
            away = 0.0 if waiting.away_since is None else now - waiting.away_since
            if away > self._executor.absence:
                why = f"has been away for {away:.0f} s"
            elif now - begun > self._executor.deadline:
                reason = f" ({waiting.loss})" if waiting.loss else ""
                why = f"did not reply within {self._executor.deadline:g} s{reason}"
            else:
                continue
            error = f"{self._sites.name(k)} {why}"
            self._finish(k, [Reply(0, None, error)] * len(self._visits[k]))
            self._sites.leave_out(k)

    def _finish(self, k: int, replies: list[Reply]) -> None:
        self._replies[k] = replies
        del self._waiting[k]
