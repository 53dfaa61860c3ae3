"""A model's score on one client: its validation and test data, and the method's diagnostics."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import IntEnum

import torch
from torch import Tensor

from fedtailor.client import Client, Examples
from fedtailor.core.tree import Params
from fedtailor.evaluation.score import Score, average_diagnostics, tally_examples
from fedtailor.executors.world import AnyMethod
from fedtailor.method import Method


class Part(IntEnum):
    """Which examples: a word of the randomness with which a model predicts them."""

    VALIDATION = 0
    TEST = 1
    TRAINING = 2
    POOL = 3


def predict_in_pieces(
    method: AnyMethod, c: Client, w: Params, part: Part
) -> Callable[[Tensor], Tensor]:
    """Predicts the examples of one part, a piece a call, each with randomness of its own."""
    numbers = itertools.count()

    def predict(x: Tensor) -> Tensor:
        here = c.with_stream(part, next(numbers))
        return method.predict(here, w, x)

    return predict


def diagnose_in_pieces(
    method: AnyMethod, c: Client, w: Params, part: Part
) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """Diagnoses the examples of one part, with the randomness of their prediction."""
    numbers = itertools.count()

    def diagnose(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        here = c.with_stream(part, next(numbers))
        return method.diagnostics(here, w, x, y)

    return diagnose


def score(
    method: AnyMethod,
    c: Client,
    w: Params,
    test: Examples,
    diagnostics: bool = False,
) -> Score:
    """A model on a client's validation and test data."""

    means: dict[str, Tensor] = {}
    has_diagnostics = type(method).diagnostics is not Method.diagnostics
    with torch.no_grad():
        if diagnostics and has_diagnostics:
            diagnose = diagnose_in_pieces(method, c, w, Part.TRAINING)
            means |= average_diagnostics(diagnose, c.data, "train")
            diagnose = diagnose_in_pieces(method, c, w, Part.TEST)
            means |= average_diagnostics(diagnose, test, "test")
        predict_val = predict_in_pieces(method, c, w, Part.VALIDATION)
        predict_test = predict_in_pieces(method, c, w, Part.TEST)
        return Score(
            val=tally_examples(c.task, predict_val, c.val),
            test=tally_examples(c.task, predict_test, test),
            diagnostics=means,
        )
