"""What every message passes, whatever the method, in every executor.

A message goes down from the server (``server_sends``) to a client
(``client_receives``), and an upload goes up from the client (``client_sends``) to the
server (``server_receives``). Client-side hooks run where the client runs: in this
process, under vmap, in a worker or at a site.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedtailor.core.errors import UserError, unknown
from fedtailor.core.rng import Rng
from fedtailor.core.sealed import has_sealed
from fedtailor.core.tree import Params, Tree
from fedtailor.method import Uploads
from fedtailor.training.net import Template

SETUP_CALLS = 1000  # calls made by a method's setup are numbered from here, apart from the round's


class Call(NamedTuple):
    """One call of a client function, or a look at clients that changes none of them."""

    function: str
    t: int  # round
    number: int  # of the call within the round
    is_look: bool = False

    @property
    def is_setup(self) -> bool:
        """Whether it asks newcomers what the method must know of them."""
        return self.number > SETUP_CALLS or self.t == 0


class RoundPlan(NamedTuple):
    """What is known of a round before it begins."""

    t: int
    clients: int  # that could take part
    share: float  # of them that is asked
    is_poisson: bool  # whether each is drawn by itself
    down: Tree = None  # what a client is sent
    # whether a round that is done again, after a crash, tells anybody something new
    is_remote: bool = False


class RoundNotes(NamedTuple):
    """What a filter has to say after a round."""

    messages: Sequence[str] = ()
    privacy: dict[str, float] = {}  # noqa: RUF012 (spent so far; nobody writes into it)


# asks clients questions around a call, in one phase of it; gives the answers that arrived
Ask = Callable[[Call, Mapping[int, Tree], int], dict[int, Tree]]


class Filter:
    """Base class: every hook lets messages pass unchanged. Override what you need.

    A filter must be the same value on server and clients, so it is made from the experiment's
    options.
    What a client must remember for it from round to round is its ``memory``, kept with the client's
    private state under the filter's ``name``.
    """

    name = ""  # prefix of its memory in a client's private state
    withheld: frozenset[str] = frozenset()  # names of tensors that clients do not send
    needs_trial = False  # whether a round is tried before the run, to refuse in time
    seals = False  # whether parts of uploads come sealed
    # whether clients bound what they send, so that no upload is refused as an outlier
    bounds_uploads = False

    def for_network(self, template: Template) -> Self:
        """The filter for a network, before the first message."""
        return self

    def begin_simulation(self, folder: Path | None, resume: bool) -> None:
        """A simulated run begins, in a folder where clients may keep secrets."""

    def begin_at_site(self, key_file: Path | None, run: str, state: Path) -> None:
        """A site opens a run: its owner's key, if there is one, and where it keeps state."""

    def for_server(self) -> Self:
        """The server's part, without what only clients know."""
        return self

    def for_client(self, k: int, n: int) -> Self:
        """The filter where client k runs, which has n training examples."""
        return self

    # ---------------------------------------------------------------- rounds, at the server
    def allows(self, plan: RoundPlan) -> str:
        """Why the run must end before this round; empty if it need not."""
        return ""

    def before_round(self, plan: RoundPlan) -> None:
        """A round begins."""

    def after_round(self, t: int) -> RoundNotes:
        """A round is over: what to tell the user, and what to write into its record."""
        return RoundNotes()

    def save(self) -> dict[str, Any]:
        """What the server must remember for it, as JSON; kept in the checkpoint."""
        return {}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on with what ``save`` gave."""

    def report(self, until: int) -> dict[str, Any]:
        """What the result says of it after so many rounds, under its name."""
        return {}

    # ---------------------------------------------------------------- questions of its own
    def connect(self, ask: Ask) -> None:
        """The server's part may ask its clients' parts from now on, around every call."""

    def briefs(self, call: Call) -> dict[int, Tree]:
        """What clients' parts are told right before a call's visit, on the same way."""
        return {}

    def answer(self, question: Tree, call: Call, rng: Rng) -> Tree:
        """A client's part answers the server's."""
        raise UserError(f"{type(self).__name__} answers no questions")

    # ---------------------------------------------------------------- messages
    def server_sends(self, call: Call, downs: dict[int, Tree]) -> dict[int, Tree]:
        """What clients are sent, by client; those that are left out are not called."""
        return downs

    def open_tree(self, down: Tree) -> Tree:
        """What the client was sent, with what is sealed opened."""
        return down

    def client_receives(self, down: Tree, memory: Params) -> Tree:
        """What the client's function is given."""
        return down

    def client_sends(
        self, up: Tree, down: Tree, memory: Params, rng: Rng
    ) -> tuple[Tree, Params]:
        """What leaves the client, and its new memory."""
        return up, memory

    def find_faults(self, call: Call, ups: Mapping[int, Tree]) -> dict[int, str]:
        """Uploads that must not be used, with the reason, where only the filter can tell."""
        return {}

    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        """What the method merges; ``ups.with_reduction`` changes how."""
        return ups


Memories = dict[str, Params]  # by filter


class FilterChain:
    """Several filters one after another: down in order, up in reverse order."""

    def __init__(self, filters: Sequence[Filter], template: Template) -> None:
        self.template = template
        self.filters = [f.for_network(template) for f in filters]
        names = ["keep", *(f.name for f in self.filters if f.name)]
        assert len(names) == len(set(names)), "a filter's name is taken"

    def for_server(self) -> FilterChain:
        """The server's parts of the filters, without what only clients know."""
        return FilterChain([f.for_server() for f in self.filters], self.template)

    @property
    def withheld(self) -> frozenset[str]:
        """Names of tensors that clients do not send."""
        return frozenset().union(*(f.withheld for f in self.filters))

    def server_sends(self, call: Call, downs: dict[int, Tree]) -> dict[int, Tree]:
        """What clients are sent."""
        for f in self.filters:
            downs = f.server_sends(call, downs)
        return downs

    def client_receives(self, down: Tree, memories: Memories) -> Tree:
        """What the client's function is given."""
        for f in self.filters:
            down = f.client_receives(down, memories.get(f.name, {}))
        return down

    def client_sends(
        self, k: int, n: int, up: Tree, down: Tree, memories: Memories, rng: Rng
    ) -> tuple[Tree, Memories]:
        """What leaves client k, which has n training examples, and its new memories."""
        new = dict(memories)
        for f in self.filters:
            down = f.open_tree(down)
        for i, shared in reversed(list(enumerate(self.filters))):
            f = shared.for_client(k, n)
            up, memory = f.client_sends(up, down, memories.get(f.name, {}), rng.fold(i))
            if f.name and memory:
                new[f.name] = memory
        return up, new

    def find_faults(self, call: Call, ups: Mapping[int, Tree]) -> dict[int, str]:
        """Uploads that must not be used, with the reason."""
        faults: dict[int, str] = {}
        if not any(f.seals for f in self.filters):
            sealed = [k for k, up in ups.items() if has_sealed(up)]
            faults = dict.fromkeys(
                sealed, "its upload is sealed, which nobody asked for"
            )
        for f in self.filters:
            faults = f.find_faults(call, ups) | faults
        return faults

    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        """What the method merges."""
        for f in reversed(self.filters):
            ups = f.server_receives(call, ups)
        return ups

    # ---------------------------------------------------------------- questions of filters
    def connect(self, ask: Ask) -> None:
        """Filters at the server may ask clients."""
        for f in self.filters:
            f.connect(partial(_ask_by_name, ask, f.name))

    def briefs(self, call: Call) -> list[dict[int, Tree]]:
        """What clients are told right before a call's visit, for every filter that does."""
        told: list[dict[int, Tree]] = []
        for f in self.filters:
            briefs = f.briefs(call)
            if briefs:
                told.append(_name_questions(f.name, briefs))
        return told

    def answer(self, k: int, n: int, question: Tree, call: Call, rng: Rng) -> Tree:
        """What the filter that a question is for answers at client k, of n examples."""
        for f in self.filters:
            if f.name and f.name == question.get("filter"):
                return f.for_client(k, n).answer(question, call, rng)
        raise UserError(f"there is no filter '{question.get('filter')}' to ask")

    # ---------------------------------------------------------------- rounds
    @property
    def bounds_uploads(self) -> bool:
        """Whether clients bound what they send."""
        return any(f.bounds_uploads for f in self.filters)

    def allows(self, plan: RoundPlan) -> str:
        """Why the run must end before this round; empty if it need not."""
        reasons = [f.allows(plan) for f in self.filters]
        return next(filter(None, reasons), "")

    def before_round(self, plan: RoundPlan) -> None:
        """A round begins."""
        for f in self.filters:
            f.before_round(plan)

    def after_round(self, t: int) -> RoundNotes:
        """What all filters have to say after a round."""
        messages: list[str] = []
        privacy: dict[str, float] = {}
        for f in self.filters:
            notes = f.after_round(t)
            messages.extend(notes.messages)
            privacy |= notes.privacy
        return RoundNotes(messages, privacy)

    def report(self, until: int) -> dict[str, Any]:
        """What the result says of the filters, by name."""
        reports = {f.name: f.report(until) for f in self.filters if f.name}
        return {name: report for name, report in reports.items() if report}

    def save(self) -> dict[str, Any]:
        """What the server must remember for the filters, by name."""
        saved = {f.name: f.save() for f in self.filters if f.name}
        return {name: state for name, state in saved.items() if state}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on with what ``save`` gave."""
        for f in self.filters:
            if f.name in saved:
                f.restore(saved[f.name])


def _name_questions(name: str, questions: Mapping[int, Tree]) -> dict[int, Tree]:
    """Questions that say which filter they are for."""
    return {k: {**question, "filter": name} for k, question in questions.items()}


def _ask_by_name(
    ask: Ask, name: str, call: Call, questions: Mapping[int, Tree], phase: int
) -> dict[int, Tree]:
    """Ask the clients' parts of one filter."""
    return ask(call, _name_questions(name, questions), phase)


def filter_names() -> list[str]:
    """What filters there are: the files of this folder."""
    files = Path(__file__).parent.glob("*.py")
    return sorted(path.stem for path in files if not path.stem.startswith("_"))


def find_filter(name: str) -> type[Filter]:
    """The filter that a file of this folder holds."""
    if name not in filter_names():
        raise unknown("filter", name, filter_names())
    module = importlib.import_module(f"fedtailor.filters.{name}")
    (found,) = (
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Filter) and cls.__module__ == module.__name__
    )
    return found
