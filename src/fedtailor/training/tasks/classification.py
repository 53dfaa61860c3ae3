"""One label out of several; the likeliest class is the answer."""

from __future__ import annotations

from fedtailor.training.task import Classification
from fedtailor.training.tasks.target import Target


def make(target: Target) -> Classification:
    """Classification of so many classes."""
    return Classification(target.classes, select=target.select, weights=target.weights)
