"""A model's score on one client: its validation and test data, and the method's diagnostics."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.client import Client, Examples
from fedtailor.core.tree import Params
from fedtailor.evaluation.score import Score, average_diagnostics, tally_examples
from fedtailor.executors.world import AnyMethod
from fedtailor.method import Method


def score(
    method: AnyMethod,
    c: Client,
    w: Params,
    test: Examples,
    diagnostics: bool = False,
) -> Score:
    """A model on a client's validation and test data."""

    def predict(x: Tensor) -> Tensor:
        return method.predict(c, w, x)

    def diagnose(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return method.diagnostics(c, w, x, y)

    means: dict[str, Tensor] = {}
    has_diagnostics = type(method).diagnostics is not Method.diagnostics
    with torch.no_grad():
        if diagnostics and has_diagnostics:
            means |= average_diagnostics(diagnose, c.data, "train")
            means |= average_diagnostics(diagnose, test, "test")
        return Score(
            val=tally_examples(c.task, predict, c.val),
            test=tally_examples(c.task, predict, test),
            diagnostics=means,
        )
