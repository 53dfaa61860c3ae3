"""Measures from sums, compared with scikit-learn's on the very predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    log_loss,
    roc_auc_score,
)
from torch import Tensor

from fedtailor.data.sets.digits import read_digits
from fedtailor.training import score_sums
from fedtailor.training.task import Classification, Tally

RANKING_TOLERANCE = 0.002  # of AUROC and AUPRC up to 20 classes


def predict_digits(classes: int) -> tuple[Tensor, Tensor]:
    """Logits and labels of a model that has learnt real digits from few noisy examples."""
    x, y = (np.asarray(part) for part in read_digits())
    x = x.reshape(len(x), -1) / 16 + np.random.default_rng(0).normal(
        0, 1.0, (len(x), 64)
    )
    y = y % classes
    model = LogisticRegression(C=0.05, max_iter=300).fit(x[:600], y[:600])
    logits = model.decision_function(x[600:])
    if classes == 2:
        logits = np.stack([np.zeros(len(logits)), logits], axis=1)
    return torch.tensor(logits), torch.tensor(y[600:])


def tally_in_parts(task: Classification, logits: Tensor, y: Tensor) -> list[Tally]:
    """As three clients of different sizes count them, one with padding."""
    tallies = []
    for start, end in [(0, 300), (300, 310), (310, len(y))]:
        mask = torch.ones(end - start)
        tallies.append(task.tally(logits[start:end], y[start:end], mask))
    padded = task.tally(logits[:50], y[:50], torch.zeros(50))
    return [*tallies, padded]


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_measures_are_scikit_learns(classes: int) -> None:
    logits, y = predict_digits(classes)
    task = Classification(classes)
    found = task.measures(tally_in_parts(task, logits, y))
    chosen = logits.argmax(-1)
    shares = logits.softmax(-1).numpy()
    labels = torch.nn.functional.one_hot(y, classes).numpy()
    assert 0.3 < found["accuracy"] < 0.95  # neither noise nor perfect
    assert found["macro_f1"] == pytest.approx(f1_score(y, chosen, average="macro"))
    balanced = balanced_accuracy_score(y, chosen)
    assert found["balanced_accuracy"] == pytest.approx(balanced)
    assert found["loss"] == pytest.approx(log_loss(y, shares), rel=1e-6)
    auroc = roc_auc_score(labels, shares, average="macro")
    auprc = average_precision_score(labels, shares, average="macro")
    assert found["auroc"] == pytest.approx(auroc, abs=RANKING_TOLERANCE)
    assert found["auprc"] == pytest.approx(auprc, abs=RANKING_TOLERANCE)


def test_calibration_error_by_hand() -> None:
    logits, y = predict_digits(10)
    task = Classification(10)
    found = task.measures(tally_in_parts(task, logits, y))["ece"]
    top, chosen = logits.softmax(-1).max(-1)
    expected = 0.0
    for low in range(15):
        inside = (top > low / 15) & (top <= (low + 1) / 15)
        if inside.any():
            accuracy = (chosen == y)[inside].double().mean()
            gap = (accuracy - top[inside].mean()).abs()
            expected += float(gap) * float(inside.double().mean())
    assert found == pytest.approx(expected, abs=1e-6)


def test_macro_f1_leaves_out_classes_that_nobody_has_or_predicts() -> None:
    task = Classification(4)
    logits = torch.eye(4)[[0, 0, 1, 1, 2]] * 5
    y = torch.tensor([0, 1, 1, 1, 0])
    found = task.measures([task.tally(logits, y, torch.ones(5))])
    chosen = logits.argmax(-1)
    assert found["macro_f1"] == pytest.approx(f1_score(y, chosen, average="macro"))
    with pytest.warns(UserWarning, match="y_pred contains classes"):
        balanced = balanced_accuracy_score(y, chosen)
    assert found["balanced_accuracy"] == pytest.approx(balanced)


def test_one_class_alone_has_no_ranking() -> None:
    task = Classification(2)
    tally = task.tally(
        torch.randn(6, 2), torch.zeros(6, dtype=torch.long), torch.ones(6)
    )
    assert "auroc" not in task.measures([tally])
    assert "accuracy" in task.measures([tally])


def test_many_classes_have_a_small_tally() -> None:
    """No confusion matrix: 200 classes would be 40,000 numbers of every client."""
    task = Classification(200)
    tally = task.empty_tally(torch.device("cpu"))
    assert sum(part.numel() for part in tally) < 1000
    logits = torch.randn(400, 200, generator=torch.Generator().manual_seed(0))
    y = torch.arange(400) % 200
    found = task.measures([task.tally(logits, y, torch.ones(400))])
    chosen = logits.argmax(-1)
    assert found["macro_f1"] == pytest.approx(f1_score(y, chosen, average="macro"))
    assert "auroc" not in found
    assert "auprc" not in found


def test_certain_answers_are_counted() -> None:
    """Probabilities of exactly 0 and 1 are in the outermost bins."""
    logits = torch.tensor([[200.0, -200.0], [-200.0, 200.0]])
    counts = score_sums.count_scores(
        logits.log_softmax(-1), torch.tensor([0, 1]), torch.ones(2)
    )
    assert counts.sum() == 4
    assert counts[1, :, -1].tolist() == [1, 1]
    assert counts[0, :, 0].tolist() == [1, 1]
