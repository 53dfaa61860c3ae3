"""A visit to a client and its reply: the only messages that executors know."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from torch import Tensor

from fedtailor.core.tree import Params, Tree
from fedtailor.core.wire import Flat, decode, encode
from fedtailor.evaluation.score import Score
from fedtailor.executors.world import AnyMethod
from fedtailor.method_types import call_types
from fedtailor.training.loss_meter import LossSums


class Look(Enum):
    """Something a client is asked that is no function of the method and changes no state."""

    SCORE = "score"  # the personal model's score
    CANDIDATE = "candidate"  # the score and the personal model itself
    PERSONAL = "personal"  # the personal model
    GLOBAL = "global"  # the score of a model that is sent along
    POOL = "pool"  # log-probabilities on data that no client owns
    NEWCOMER = (
        "newcomer"  # the score of a client that never trained, once it has trained
    )
    FILTER = "filter"  # a filter's own question, such as for keys
    DIGEST = "digest"  # at a site: a digest of the private state
    CLOSE = "close"  # at a site: the run is over, keep the best model


class Candidate(NamedTuple):
    """A personal model and its score, for a run that keeps the models of its best round."""

    score: Score
    model: Params


class Report(NamedTuple):
    """What a client function leaves behind for the records, beside its upload."""

    losses: LossSums
    after: Score | None = None  # of the model right after training, where asked for


class Visit(NamedTuple):
    """One question to a client."""

    function: str | Look  # a client function of the method, or a look
    t: int  # round
    call: int  # number of the call within the round
    down: Tree  # what the client is sent
    # asks for the state at the end of round t, even if the next has begun
    before: bool = False
    # asks for the score of the model right after this training
    after: bool = False

    @property
    def is_look(self) -> bool:
        """Whether the visit leaves the client as it is."""
        return isinstance(self.function, Look)

    def to_json(self) -> dict[str, Any]:
        """All but what is sent, for a message header."""
        kind = "look" if isinstance(self.function, Look) else "function"
        name = self.function.value if isinstance(self.function, Look) else self.function
        return {
            kind: name,
            "t": self.t,
            "call": self.call,
            "before": self.before,
            "after": self.after,
        }

    @classmethod
    def from_json(cls, header: dict[str, Any], down: Tree = None) -> Visit:
        """From a message header."""
        function = Look(header["look"]) if "look" in header else str(header["function"])
        return cls(
            function,
            int(header["t"]),
            int(header["call"]),
            down,
            bool(header["before"]),
            bool(header["after"]),
        )


class Reply(NamedTuple):
    """What came back from a client: an upload, or the reason why there is none."""

    n: int  # training examples of the client
    up: Tree
    error: str = ""
    # the site's owner does not allow the question; ``error`` says which
    denied: bool = False
    report: Report | None = None  # of a client function
    seconds: float = 0.0  # that the visit took where the client is

    def without_model(self) -> Reply:
        """The reply with only the score, where a model came with it."""
        if isinstance(self.up, Candidate):
            return self._replace(up=self.up.score)
        return self

    def encode(self) -> Flat:
        """Flat, for workers and messages."""
        header = {
            "n": self.n,
            "error": self.error,
            "denied": self.denied,
            "seconds": self.seconds,
        }
        return {**header, **encode(self.up, "up"), **encode(self.report, "report")}

    @classmethod
    def decode(cls, kind: Any, flat: Flat) -> Reply:
        """From its flat form; ``kind`` is the declared type of the upload."""
        error = str(flat["error"])
        denied = bool(flat["denied"])
        if error:
            return cls(0, None, error, denied)
        return cls(
            int(flat["n"]),
            decode(kind, flat, "up"),
            report=decode(Report | None, flat, "report"),
            seconds=float(flat["seconds"]),
        )


def trains_like_local(method: AnyMethod, function: str) -> bool:
    """Whether a client function sends and keeps what ``local`` does.

    ``after_training`` is defined for those: Fed3+2p has one such function for every phase.
    """
    if function in (*method.setup_calls, "receive"):
        return False
    return call_types(method, function) == call_types(method, "local")


def down_type(method: AnyMethod, function: str | Look) -> Any:
    """The declared type of what a visit sends down."""
    if function is Look.GLOBAL:
        return dict[str, Tensor]
    if function is Look.DIGEST:
        return type(None)
    if function is Look.FILTER:
        return dict[str, Any]
    if isinstance(function, Look):
        return call_types(method, "local")[0]
    return call_types(method, function)[0]


def reply_type(method: AnyMethod, function: str | Look) -> Any:
    """The declared type of what a visit brings up."""
    if not isinstance(function, Look):
        return call_types(method, function)[1]
    if function is Look.FILTER:
        return dict[str, Any]
    if function is Look.CANDIDATE:
        return Candidate
    if function in (Look.PERSONAL, Look.POOL):
        return Params
    if function in (Look.DIGEST, Look.CLOSE):
        return str
    return Score
