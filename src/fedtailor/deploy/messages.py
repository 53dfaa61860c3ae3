"""Messages between the server of a run and its sites, as the bytes of safetensors files.

The server asks a site who it is (``Hello``), then for visits: calls of client functions and
evaluations, each with what it is sent. The site answers with what came of each visit. A message
is a header that JSON can hold, and trees that are encoded by the declared types of the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.tree import Tree
from fedtailor.core.wire import Flat, decode, encode
from fedtailor.deploy.data_facts import DataSpec
from fedtailor.executors.visit import Visit
from fedtailor.storage.files import dump_flat, parse_flat

FORMAT = 3  # a message of another format is refused

Header = dict[str, Any]


class Message(NamedTuple):
    """A message that was read: its header, and all its trees in flat form."""

    header: Header
    flat: Flat

    def decode_tree(self, i: int, kind: Any) -> Tree:
        """Tree number i, as a tree of its declared type."""
        return decode(kind, self.flat, f"{i}/it")

    def flat_tree(self, i: int) -> Flat:
        """Tree number i, which was a flat tree when it was written."""
        place = f"{i}/it"
        if place in self.flat:  # it had no tensors
            return dict(self.flat[place])
        prefix = place + "/"
        return {
            path.removeprefix(prefix): value
            for path, value in self.flat.items()
            if path.startswith(prefix)
        }


# -------------------------------------------------------------------- what the server asks
@dataclass(frozen=True)
class Hello:
    """The first message to a node: which run it is, so that the site can say whether it fits."""

    run: str  # id of the run
    method: str  # digest of the method's code
    engine: str  # digest of the engine's code
    experiment: dict[str, Any]
    vocabulary: list[str]  # the run's words, where its data are texts


@dataclass(frozen=True)
class RequestHeader:
    """The header of a request for visits."""

    run: str  # id of the run
    method: str  # digest of the method's code
    engine: str  # digest of the engine's code
    attempt: int  # how often the server has been started
    since: int  # the round after which this start of the server went on
    covered: int  # the last round that a checkpoint of the server covers
    best: int | None  # the round whose models are the best so far
    client: int  # number of the site in the run
    experiment: dict[str, Any]
    data: DataSpec  # what the data of all sites have in common
    visits: list[Visit]  # without what they send, which are trees of the message


# -------------------------------------------------------------------- writing
def write_message(header: Header, trees: Sequence[Tree] = ()) -> bytes:
    """The bytes of a message; a tensor that several of its trees share is written once."""
    flat: Flat = {}
    same: dict[str, str] = {}  # path -> path under which the same tensor is written
    # all paths as the trees have them, which decides the order of sums
    order: list[str] = []
    written: dict[int, str] = {}  # id of a tensor -> path
    for i, tree in enumerate(trees):
        for path, value in encode(tree, f"{i}/it").items():
            order.append(path)
            if isinstance(value, Tensor) and id(value) in written:
                same[path] = written[id(value)]
                continue
            if isinstance(value, Tensor):
                written[id(value)] = path
            flat[path] = value
    layout = {"format": FORMAT, "same": same, "order": order}
    return dump_flat({"about": {**header, **layout}, **flat})


def write_hello(hello: Hello) -> bytes:
    """The bytes of the first message to a node."""
    return write_message({"hello": asdict(hello)})


def write_request(header: Header, visits: Sequence[Visit]) -> bytes:
    """The bytes of a request for visits."""
    listed = [visit.to_json() for visit in visits]
    return write_message({**header, "visits": listed}, [visit.down for visit in visits])


# -------------------------------------------------------------------- reading
def read_message(data: bytes) -> Message:
    """Read a message; bytes that are none are refused in one line."""
    flat = parse_flat(data, "the message")
    header = flat.pop("about", None)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise UserError("the message is damaged or of another version of fedtailor")
    try:
        for path, source in header["same"].items():
            flat[path] = flat[source]
        return Message(header, {path: flat[path] for path in header["order"]})
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"the message is damaged ({error})") from None


def parse_hello(header: Header) -> Hello:
    """The hello in a message's header, with the types it must have."""
    try:
        hello = header["hello"]
        return Hello(
            run=str(hello["run"]),
            method=str(hello["method"]),
            engine=str(hello["engine"]),
            experiment=dict(hello["experiment"]),
            vocabulary=[str(word) for word in hello.get("vocabulary") or []],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"the message is damaged ({error})") from None


def parse_request(header: Header) -> RequestHeader:
    """The header of a request for visits, with the types it must have."""
    try:
        best = header["best"]
        return RequestHeader(
            run=str(header["run"]),
            method=str(header["method"]),
            engine=str(header["engine"]),
            attempt=int(header["attempt"]),
            since=int(header["since"]),
            covered=int(header["covered"]),
            best=None if best is None else int(best),
            client=int(header["client"]),
            experiment=dict(header["experiment"]),
            data=DataSpec.parse(header["data"]),
            visits=[Visit.from_json(visit) for visit in header["visits"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"the message is damaged ({error})") from None
