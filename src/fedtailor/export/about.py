"""What is said about an exported model, in its file or beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedtailor._version import __version__
from fedtailor.data.input_spec import InputSpec


@dataclass(frozen=True)
class About:
    """What a user of the model must know, and where it comes from.

    Attributes:
        client: the client's name or number; ``shared`` for the global model.
        inputs: what the model takes.
        labels: the classes in the order of the outputs.
        method, hyper_parameters, network, data, round: of the run that it is from.
        examples: the client's training examples of every class.
        scores: the client's own test measures in that round.
        run_hash: the digest that ``result.json`` has.
    """

    client: str
    inputs: InputSpec
    labels: tuple[str, ...]
    method: str
    network: str
    data: str
    round: int
    examples: tuple[int, ...]
    hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    run_hash: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "fedtailor": __version__,
            "client": self.client,
            "method": self.method,
            "hyper_parameters": dict(self.hyper_parameters),
            "network": self.network,
            "data": self.data,
            "round": self.round,
            "run_hash": self.run_hash,
            "labels": list(self.labels),
            "examples": list(self.examples),
            "scores": dict(self.scores),
            "inputs": self.inputs.to_dict(),
        }


def describe_inputs(inputs: InputSpec) -> str:
    """What the model takes, in one sentence."""
    shape = ", ".join(map(str, ("batch", *inputs.shape)))
    if inputs.vocabulary:
        return (
            f"int64 ({shape}): words by number, 0 to {inputs.vocabulary - 1};"
            " 0 fills short texts up, 1 stands for unknown words"
        )
    if inputs.dtype == "uint8":
        return (
            f"uint8 ({shape}): bytes as they are in the files;"
            " the model itself scales them to -1 to 1"
        )
    if inputs.fill is not None:
        gaps = len(inputs.fill.medians)
        return (
            f"float32 ({shape}): {gaps} values, gaps filled with the client's medians and"
            f" scaled as config.json says, then {gaps} marks (1 where there was a gap)"
        )
    return f"float32 ({shape}): numbers, scaled as the training data were"
