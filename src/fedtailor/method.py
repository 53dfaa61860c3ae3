"""The interface of a method: what is sent, what a client does, what comes back, how it is combined.

A method is one class in one file; ``methods/fedavg.py`` is a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from torch import Tensor, nn

from fedtailor.client import Client
from fedtailor.core.hyper import (
    Count,
    Doc,
    NonNegative,
    Positive,
    Share,
    hyper,
    read_sets,
)
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.sealed import Sealed
from fedtailor.core.tree import Params, Tree
from fedtailor.core.uploads import Uploads
from fedtailor.models.backbone import Backbone

__all__ = [
    "Cohort",
    "Count",
    "Doc",
    "Exchange",
    "Method",
    "New",
    "NoReplies",
    "NonNegative",
    "Positive",
    "Share",
    "Uploads",
    "hyper",
    "one_by_one",
    "shape",
]

New = Callable[[int], Params]  # new(i): the i-th set of initial parameters

Server = TypeVar("Server")
Down = TypeVar("Down")
Keep = TypeVar("Keep")
Up = TypeVar("Up")


class NoReplies(Exception):
    """No client answered a call: the round is skipped."""


class Exchange(Protocol):
    """Carries calls to clients and brings the checked replies back (engine/exchange.py)."""

    seed: int
    rounds: int

    def call(
        self, function: str, downs: dict[int, Tree], t: int, number: int
    ) -> Uploads[Any]:
        """Run a client function on the clients in ``downs``."""
        ...


class Cohort:
    """The clients of this round, as the server sees them.

    Attributes:
        clients: their ids, in order.
        t, rounds: this round, and how many there will be.
        rng: the server's randomness of this round.
    """

    def __init__(
        self, exchange: Exchange, clients: Iterable[int], t: int, calls_made: int = 0
    ) -> None:
        self._exchange = exchange
        # shared with sub-cohorts: each call has its own randomness
        self._calls_made = [calls_made]
        self.clients = sorted(clients)
        self.t = t
        self.rounds = exchange.rounds
        self.rng = Rng.seed(exchange.seed, Purpose.SERVER, t)

    def __len__(self) -> int:
        return len(self.clients)

    def only(self, clients: Iterable[int]) -> Cohort:
        """Those of the given clients that are in this cohort."""
        members = set(self.clients)
        cohort = Cohort(self._exchange, (k for k in clients if k in members), self.t)
        cohort._calls_made = self._calls_made
        return cohort

    def shuffle(self, clients: Iterable[int]) -> list[int]:
        """Those of the given clients that are in this cohort, in a random order."""
        members = self.only(clients).clients
        rng = self.rng.fold(min(members, default=0))
        return [members[i] for i in rng.permutation(len(members)).tolist()]

    def run(self, function: Callable[..., Any], down: Any) -> Uploads[Any]:
        """Call a client function on every client of the cohort.

        Args:
            function: a method of the class, with parameters ``(c, down, keep)``.
            down: what each client is sent: one tree for all, or a function of the client's id.

        Raises:
            NoReplies: no client answered.
        """
        self._calls_made[0] += 1
        downs = {k: down(k) if callable(down) else down for k in self.clients}
        ups = self._exchange.call(function.__name__, downs, self.t, self._calls_made[0])
        if not len(ups):
            raise NoReplies(f"no reply to '{function.__name__}' in round {self.t}")
        return ups


class Method(Generic[Server, Down, Keep, Up]):
    """Subclass as a frozen dataclass whose fields are the method's hyper-parameters.

    The four types are named tuples: the server's state, what a client is sent, what it keeps to
    itself, what it sends back. ``None`` where there is nothing.
    """

    # the network the conformance suite tries it on
    test_backbone: ClassVar[str] = "cnn"
    # fields of Keep that, by design, are also sent
    also_sent: ClassVar[tuple[str, ...]] = ()
    setup_calls: ClassVar[tuple[str, ...]] = ()  # client functions that ``setup`` calls
    # what the server can compute from uploads, and how: found by ``fedtailor audit``
    reveals: ClassVar[dict[str, str]] = {}
    # fields of Up that ``merge`` adds up by ``ups.sum``, where others are averaged
    summed: ClassVar[tuple[str, ...]] = ()
    # fields of Up that are sealed with the heads, beside those that are called so
    head_fields: ClassVar[tuple[str, ...]] = ()
    # hyper-parameters (or a value, "name=value") of earlier versions, and what stands for them
    moved: ClassVar[dict[str, str]] = {}
    # whether it matters how many rounds there will be
    depends_on_rounds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        read_sets(self)

    # ---------------------------------------------------------------- before the first round
    def with_defaults_for(self, backbone: Backbone) -> Self:
        """The method with the hyper-parameters that its paper gives per network filled in."""
        return self

    @property
    def counts_alike(self) -> bool:
        """Whether ``merge`` averages with equal weights, not by numbers of examples."""
        return False

    def with_sealed_sums(self, clients: int) -> Self:
        """The method as it runs where the server can only add up what it is sent."""
        return self

    def warnings(self) -> list[str]:
        """What is odd about these hyper-parameters, above all values that switch the method off."""
        return []

    def net(self, backbone: Backbone) -> nn.Module:
        """The network that clients train.

        Raises:
            Unsupported: the method cannot work with this backbone; the reason is in the message.
        """
        return backbone

    def init(self, new: New, clients: int) -> Server:
        """The server's first state.

        Args:
            new: ``new(i)`` is the i-th set of initial parameters of the network.
            clients: how many clients there are.
        """
        raise NotImplementedError

    def setup(self, server: Server, cohort: Cohort) -> Server:
        """Ask clients that were not seen before what the method must know of them.

        Unless overridden, clients receive what ``given`` returns.
        """
        values = self.given(server)
        if values is not None:
            with suppress(NoReplies):  # the answers are empty anyway
                cohort.run(self.receive, values)
        return server

    def given(self, server: Server) -> Params | None:
        """First values for the private state of every client, sent once before its first round."""
        return None

    def keep_given(self, c: Client, given: Params) -> Keep:
        """The first private state of a client that received what is ``given``."""
        raise NotImplementedError

    def receive(self, c: Client, down: Params, keep: Any) -> tuple[None, Any]:
        """Receive what is ``given``; the client has made its first private state from it."""
        return None, keep

    # ---------------------------------------------------------------- a round
    def sample(
        self, server: Server, clients: Sequence[int], share: float, rng: Rng
    ) -> list[int]:
        """Ids of the clients that take part: a uniform share, at least one."""
        count = max(1, round(share * len(clients)))
        chosen = rng.permutation(len(clients))[:count].tolist()
        return sorted(clients[i] for i in chosen)

    def send(self, server: Server, k: int) -> Down:
        """What client k is sent. Evaluation uses it too, so it must not be random."""
        raise NotImplementedError

    def first_keep(self, c: Client, down: Down) -> Keep:
        """The first private state of a client that was given none."""
        return None  # type: ignore[return-value]

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """What a client does in a round: gives what it sends and what it keeps."""
        raise NotImplementedError

    def expected_upload(self, down: Tree, t: int) -> dict[str, Tree]:
        """By field of Up, a tree of the shapes that must come back, and not absurdly far from it.

        Tensors on the meta device (see ``shape``) are compared by shape only. Fields that are not
        named here are only checked for being finite.
        """
        if not hasattr(down, "_fields"):
            return {}
        return dict(zip(down._fields, down, strict=True))

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        """The server's new state from the uploads."""
        raise NotImplementedError

    def round(self, server: Server, cohort: Cohort) -> Server:
        """One round; override it for methods with several calls a round or several phases."""
        ups = cohort.run(self.local, lambda k: self.send(server, k))
        return self.merge(server, ups)

    # ---------------------------------------------------------------- the models
    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        """The model that this client would deploy now."""
        raise NotImplementedError

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        """The client's model right after local training, before anything is combined."""
        return self.personal(c, down, keep)

    def shared(self, server: Server) -> Params | None:
        """The global model, if the method has one."""
        return None

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        """The output (logits) of a model that one of the functions above gave."""
        output: Tensor = c.model(w, x)
        return output

    def log_probabilities(self, c: Client, w: Params, x: Tensor) -> Tensor:
        """How likely each class is, for examples that may belong to any client.

        Minus infinity stands for a class that this client's model does not know.
        """
        return self.predict(c, w, x).log_softmax(-1)

    def diagnostics(
        self, c: Client, w: Params, x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        """Values per example to average and record: numbers, or shares of bins."""
        return {}

    def closing_remarks(self, server: Server) -> list[str]:
        """What the user should know at the end of a run (a clustering that never split ...)."""
        return []


def shape(x: Tensor | Sealed) -> Tensor:
    """For ``expected_upload``: a tensor of this shape must come back, with any values."""
    if isinstance(x, Sealed):
        return x.outline()
    return x.to("meta")


Function = TypeVar("Function", bound=Callable[..., Any])


def one_by_one(function: Function) -> Function:
    """Mark a client function that cannot be vectorised over clients."""
    function.one_by_one = True  # type: ignore[attr-defined]
    return function
