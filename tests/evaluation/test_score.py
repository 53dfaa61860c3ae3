"""A model on a client's data: sums over examples, in chunks, without padding."""

from __future__ import annotations

import pytest
import torch

from fedtailor.core.rng import Rng
from fedtailor.evaluation.score import average_diagnostics, tally_examples
from fedtailor.training.client_data import CHUNK, Examples
from fedtailor.training.task import Classification

CLASSES = 4


def make_examples(n: int, padding: int = 0) -> Examples:
    """n examples, and some rows that are none."""
    x = Rng.seed(1).normal(n + padding, 3)
    y = torch.arange(n + padding) % CLASSES
    return Examples(x, y, None, torch.arange(n + padding), n, CLASSES)


def predict(x):
    return torch.cat([x, x.sum(1, keepdim=True)], 1)


@pytest.mark.parametrize("n", [0, 7, CHUNK + 3])
def test_a_tally_by_hand(n):
    examples = make_examples(n, padding=2)
    tally = tally_examples(Classification(CLASSES), predict, examples)
    x = examples.x[:n]
    y = examples.y[:n]
    hit = predict(x).argmax(1) == y
    assert tally.n.tolist() == torch.bincount(y, minlength=CLASSES).tolist()
    assert tally.correct.tolist() == torch.bincount(y[hit], minlength=CLASSES).tolist()
    loss = torch.nn.functional.cross_entropy(predict(x), y, reduction="sum")
    assert torch.allclose(tally.loss, loss)


def test_a_tasks_measures_are_those_of_the_sums():
    task = Classification(CLASSES)
    whole = tally_examples(task, predict, make_examples(9))
    once = task.measures([whole])
    twice = task.measures([whole, whole])
    # average precision of so few examples depends on their number
    del once["auprc"], twice["auprc"]
    assert twice == pytest.approx(once)
    assert task.measures([whole])["accuracy"] == float(whole.correct.sum()) / 9
    assert task.measures([whole])["loss"] == pytest.approx(float(whole.loss) / 9)
    assert task.measures([task.empty_tally(torch.device("cpu"))]) == {}


@pytest.mark.parametrize("n", [5, CHUNK + 3])
def test_diagnostics_are_means_over_examples(n):
    examples = make_examples(n, padding=2)

    def diagnose(x, y):
        return {
            "size": x.abs().sum(1),
            "bins": torch.nn.functional.one_hot(y, CLASSES).float(),
        }

    found = average_diagnostics(diagnose, examples, "train")
    assert found.keys() == {"train/size", "train/bins"}
    assert torch.allclose(found["train/size"], examples.x[:n].abs().sum(1).mean())
    shares = torch.bincount(examples.y[:n], minlength=CLASSES) / n
    assert torch.allclose(found["train/bins"], shares)
