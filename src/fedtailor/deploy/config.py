"""What ``fedtailor federate`` asks the server to run, as it travels to the SuperLink."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class DeployConfig:
    """An experiment, and how it is deployed. Times are in seconds."""

    experiment: dict[str, Any]  # options as ``fedtailor run`` takes them
    out: str  # folder of the run on the server's machine
    resume: bool = False
    sites: int = 2  # begin when so many are there
    wait: float = 600.0  # for the sites to come
    deadline: float = 600.0  # for a reply
    absence: float = 60.0  # for a site that is away
    # classes and shape, where they are given
    data: dict[str, Any] = field(default_factory=dict)
    # the run's words, where data are texts
    vocabulary: list[str] = field(default_factory=list)
    source: str = ""  # of a method file, which may not be on the server's machine

    def to_json(self) -> str:
        """As text for Flower's run configuration."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The configuration in a text that ``to_json`` gave."""
        return cls(**json.loads(text))
