"""A filter that changes nothing and remembers all traffic, for tests and audits."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from fedtailor.core.tree import Tree
from fedtailor.filters import Call, Filter
from fedtailor.method import Uploads


@dataclass
class Traffic:
    """The messages of one call, by client: what was sent, and what came back and was accepted."""

    call: Call
    down: dict[int, Tree]
    up: dict[int, Tree] = field(default_factory=dict)

    @property
    def t(self) -> int:
        """The round of the call."""
        return self.call.t


class Tap(Filter):
    """Listens where messages leave and reach the server, so that every executor can be heard.

    Example:
        tap = Tap()
        run_small(FedAvg(), filters=[tap])
        tap.traffic[0].up[3].w
    """

    def __init__(self) -> None:
        self.traffic: list[Traffic] = []

    def server_sends(self, call: Call, downs: dict[int, Tree]) -> dict[int, Tree]:
        """Remember what clients are sent; evaluations are no part of the method and not heard."""
        if call.is_look:
            return downs
        self.traffic.append(Traffic(call, copy.deepcopy(downs)))
        return downs

    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        """Remember what came back."""
        self.traffic[-1].up = copy.deepcopy(ups.by_client())
        return ups

    def __deepcopy__(self, memo: dict[int, Any]) -> Tap:
        return self

    def __reduce__(self) -> tuple[type[Tap], tuple[()]]:
        return Tap, ()  # a worker's copy starts empty
