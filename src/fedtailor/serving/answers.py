"""Predictions as people and programs read them: csv, JSON, or the classes' numbers as npy."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.serving.inputs import Inputs
from fedtailor.serving.models import Model

FORMATS = ("csv", "json", "npy")
BATCH = 500  # inputs at once


@dataclass(frozen=True)
class Answers:
    """A label and probabilities for every input."""

    names: Sequence[str]  # of the inputs
    labels: tuple[str, ...]
    probabilities: Tensor

    @property
    def chosen(self) -> list[str]:
        """The label of every input."""
        return [self.labels[i] for i in self.probabilities.argmax(-1).tolist()]

    def to_csv(self) -> str:
        """A line for every input: its name, its label, every class's probability."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["input", "prediction", *(f"p({x})" for x in self.labels)])
        rows = self.probabilities.tolist()
        for name, label, row in zip(self.names, self.chosen, rows, strict=True):
            writer.writerow([name, label, *(f"{p:.6g}" for p in row)])
        return text.getvalue()

    def to_json(self) -> str:
        """A list with an entry for every input."""
        entries = []
        rows = self.probabilities.tolist()
        for name, label, row in zip(self.names, self.chosen, rows, strict=True):
            shares = dict(zip(self.labels, row, strict=True))
            entry = {"input": name, "prediction": label, "probabilities": shares}
            entries.append(entry)
        return json.dumps(entries, indent=1) + "\n"

    def to_npy(self) -> bytes:
        """The numbers of the labels."""
        buffer = io.BytesIO()
        np.save(buffer, self.probabilities.argmax(-1).numpy())
        return buffer.getvalue()

    def write_as(self, form: str) -> bytes:
        """In one of ``FORMATS``."""
        if form == "npy":
            return self.to_npy()
        text = self.to_json() if form == "json" else self.to_csv()
        return text.encode()


def answer(model: Model, inputs: Inputs) -> Answers:
    """The model's predictions, batch by batch."""
    if not len(inputs.x):
        raise UserError("there are no inputs to predict")
    batches = torch.split(inputs.x, BATCH)
    parts = [model.predict_proba(batch).cpu() for batch in batches]
    return Answers(inputs.names, model.labels, torch.cat(parts))
