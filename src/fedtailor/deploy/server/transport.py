"""How the server of a run reaches its nodes; ``deploy.flower.server_app`` does it over Flower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class Lost(NamedTuple):
    """In place of an answer: the message or the answer was lost, and may be sent again."""

    why: str


class MessageTransport(Protocol):
    """Sends messages to nodes and collects their answers; never waits."""

    def online_nodes(self) -> set[int]:
        """Ids of the nodes that can be sent messages."""
        ...

    def send_messages(self, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Send one message to each node; returns the nodes by message id."""
        ...

    def collect_answers(self, ids: list[str]) -> dict[str, bytes | Lost]:
        """The answers to these messages that have arrived, by message id."""
        ...
