"""The interface of a method: what stays, what goes down, what is done, what goes up, how it is combined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from fedtailor.client import Client
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.tree import Params, Tree
from fedtailor.models.backbone import Backbone

New = Callable[[int], Params]  # new(i): the i-th set of initial parameters

Server = TypeVar("Server")
Down = TypeVar("Down")
Keep = TypeVar("Keep")
Up = TypeVar("Up")

# Ranges of hyper-parameters, for the fields of a method; a value outside is refused by name.
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1)]


class NoReplies(Exception):
    """Nobody answered a call: the round is skipped."""


class Uploads:
    """The replies of one call, in client order. ``ups.w`` is the list of all uploads' field ``w``.

    Lost replies are simply absent. ``clients`` are their senders, ``n`` their numbers of training examples.
    """

    def __init__(self, clients: Sequence[int], n: Tensor, replies: Sequence[Tree]) -> None:
        self.clients, self.n, self._replies = list(clients), n, list(replies)

    def __getattr__(self, field: str) -> list[Any]:
        if field.startswith("_"):
            raise AttributeError(field)
        return [getattr(r, field) for r in self._replies]

    def __len__(self) -> int:
        return len(self._replies)

    def of(self, clients: Iterable[int]) -> Uploads:
        """Those of the given clients."""
        wanted = set(clients)
        at = [i for i, k in enumerate(self.clients) if k in wanted]
        return Uploads([self.clients[i] for i in at], self.n[at], [self._replies[i] for i in at])


class Exchange(Protocol):
    """Whoever carries calls to clients and brings the checked replies back (fedtailor.engine.exchange)."""

    seed: int
    rounds: int

    def call(
        self, name: str, downs: dict[int, Tree], t: int, number: int
    ) -> dict[int, tuple[int, Tree]]:
        """Run a client function on the keys of ``downs``; gives (n, upload) by client, sorted."""
        ...


class Cohort:
    """The clients of this round, as the server sees them. ``run`` calls a client function and waits for the replies."""

    def __init__(self, exchange: Exchange, clients: Iterable[int], t: int, calls: int = 0) -> None:
        self._exchange, self._calls = (
            exchange,
            [calls],
        )  # calls made so far: each has its own randomness
        self.clients, self.t, self.rounds = sorted(clients), t, exchange.rounds
        self.rng = Rng.seed(
            exchange.seed, Purpose.SERVER, t
        )  # the server's randomness of this round

    def __len__(self) -> int:
        return len(self.clients)

    def only(self, clients: Iterable[int]) -> Cohort:
        """Those of the given clients that are in this cohort."""
        mine = set(self.clients)
        sub = Cohort(self._exchange, (k for k in clients if k in mine), self.t)
        sub._calls = self._calls
        return sub

    def shuffle(self, clients: Iterable[int]) -> list[int]:
        """Those of the given clients that are in this cohort, in a random order."""
        mine = self.only(clients).clients
        order = self.rng.fold(min(mine, default=0)).permutation(len(mine)).tolist()
        return [mine[i] for i in order]

    def run(self, function: Callable[..., Any], down: Any) -> Uploads:
        """Call a client function (a method of the class) on every client; ``down`` is a tree, or a function of k."""
        self._calls[0] += 1
        send = down if callable(down) else lambda k: down
        downs = {k: send(k) for k in self.clients}
        replies = (
            self._exchange.call(function.__name__, downs, self.t, self._calls[0]) if downs else {}
        )
        if not replies:
            raise NoReplies(f"no reply to '{function.__name__}' in round {self.t}")
        n = torch.tensor([float(n) for n, _ in replies.values()], dtype=torch.float64)
        return Uploads(list(replies), n, [up for _, up in replies.values()])


class Method(Generic[Server, Down, Keep, Up]):
    """Subclass as a frozen dataclass whose fields are the method's own hyper-parameters."""

    test_backbone: ClassVar[str] = "cnn"  # the backbone the conformance suite tries it on
    also_sent: ClassVar[
        tuple[str, ...]
    ] = ()  # fields of Keep that are, by design, part of what goes up
    setup_calls: ClassVar[tuple[str, ...]] = ()  # client functions that ``setup`` calls
    depends_on_rounds: ClassVar[bool] = (
        False  # whether the method's course depends on how many rounds there will be
    )

    # ---------------------------------------------------------------- before the first round
    def with_defaults_for(self, backbone: Backbone) -> Self:
        """The method with the fields that the paper gives per backbone filled in."""
        return self

    def warnings(self) -> list[str]:
        """What is odd about these hyper-parameters: values that switch the method off."""
        return []

    def net(self, backbone: Backbone) -> nn.Module:
        """The network clients train; raises Unsupported(reason) where the backbone will not do."""
        return backbone

    def init(self, new: New, clients: int) -> Server:
        """The server's first state."""
        raise NotImplementedError

    def setup(self, server: Server, cohort: Cohort) -> Server:
        """Ask clients not seen before what the method must know of them (label counts, angles ...)."""
        return server

    # ---------------------------------------------------------------- a round
    def sample(self, server: Server, clients: Sequence[int], share: float, rng: Rng) -> list[int]:
        """Who takes part: a uniform share, at least one."""
        m = max(1, round(share * len(clients)))
        return sorted(clients[i] for i in rng.permutation(len(clients))[:m].tolist())

    def send(self, server: Server, k: int) -> Down:
        """What client k is sent; also used to evaluate, so it decides nothing at random."""
        raise NotImplementedError

    def first_keep(self, c: Client, down: Down) -> Keep:
        """The first private state of a client."""
        return None  # type: ignore[return-value]

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """What the client does: gives what goes up and what it keeps."""
        raise NotImplementedError

    def expected_upload(self, down: Tree, t: int) -> dict[str, Tree]:
        """By field of Up, a tree that must come back: of the same shapes, and not absurdly far from it.

        What ``shape`` gives has no distance. Other fields are only checked for being finite.
        """
        return dict(zip(down._fields, down, strict=True)) if hasattr(down, "_fields") else {}

    def merge(self, server: Server, ups: Uploads) -> Server:
        """The server's new state from the uploads."""
        raise NotImplementedError

    def round(self, server: Server, cohort: Cohort) -> Server:
        """One round; override it for phases."""
        return self.merge(server, cohort.run(self.local, lambda k: self.send(server, k)))

    # ---------------------------------------------------------------- what comes of it
    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        """The model this client would deploy now."""
        raise NotImplementedError

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        """The model right after local training, before anything is combined."""
        return self.personal(c, down, keep)

    def shared(self, server: Server) -> Params | None:
        """The global model, where the method has one."""
        return None

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        """Logits of a model that ``personal``, ``after`` or ``shared`` gave."""
        logits: Tensor = c.model(w, x)
        return logits

    def diagnostics(self, c: Client, w: Params, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Per-example diagnostics, averaged by the evaluator: numbers, or the shares of equal bins between 0 and 1."""
        return {}

    def closing_remarks(self, server: Server) -> list[str]:
        """What the user should know about how the run went, told at its end (a clustering that never split ...)."""
        return []


def shape(x: Tensor) -> Tensor:
    """For ``expected_upload``: a tensor of this shape must come back, at whatever distance from this one."""
    return x.to("meta")


F = TypeVar("F", bound=Callable[..., Any])


def one_by_one(function: F) -> F:
    """Mark a client function that cannot be vectorised over clients."""
    function.one_by_one = True  # type: ignore[attr-defined]
    return function
