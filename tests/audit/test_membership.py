"""Membership inference: measures against scikit-learn, attacks on models that remember."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from fedtailor.audit.membership import (
    confidence,
    infer_members,
    likelihood_ratio,
    list_pool,
    losses,
    measure_auc,
    measure_tpr,
    read_logits,
    read_models,
)
from fedtailor.audit.record import Recording, record
from fedtailor.core.torch_settings import torch_settings
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import Setup, prepare

OPTIONS: dict[str, Any] = {
    "method": "fedper",
    "data": "digits",
    "clients": 4,
    "limit": 240,
    "rounds": 4,
    "epochs": 6,
    "lr": 0.2,
    "split": "merged:0.5",
    "executor": "sequential",
}


@pytest.fixture(scope="module")
def setup() -> Setup:
    """Few examples whose labels mean nothing, so that models must remember them."""
    made = prepare(make_experiment(OPTIONS))
    federation = made.world.federation
    generator = torch.Generator().manual_seed(0)
    y = federation.y[torch.randperm(len(federation.y), generator=generator)]
    world = replace(made.world, federation=replace(federation, y=y))
    return replace(made, world=world)


@pytest.fixture(scope="module")
def recording(setup: Setup) -> Recording:
    return record(setup, 1, 4, lambda _: None)


# ---------------------------------------------------------------- measures
def test_auc_is_scikit_learns() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        is_member = torch.rand(60, generator=generator) < 0.4
        score = torch.randn(60, generator=generator) + is_member.float()
        rounded = (score * 3).round()  # with ties
        for values in (score, rounded):
            wanted = roc_auc_score(is_member.numpy(), values.numpy())
            assert measure_auc(is_member, values) == pytest.approx(wanted)
    assert math.isnan(measure_auc(torch.ones(3, dtype=torch.bool), torch.ones(3)))


def test_tpr_at_a_false_positive_rate_is_scikit_learns() -> None:
    generator = torch.Generator().manual_seed(2)
    is_member = torch.arange(700) < 300
    score = torch.randn(700, generator=generator) + 2 * is_member.float()
    fpr, tpr, _ = roc_curve(is_member.numpy(), score.numpy(), drop_intermediate=False)
    wanted = tpr[np.flatnonzero(fpr <= 0.01)[-1]]
    assert measure_tpr(is_member, score) == pytest.approx(wanted)


def test_losses_and_confidences() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 2])
    p = logits.softmax(1)[torch.arange(2), labels]
    assert torch.allclose(losses(logits, labels), -p.log())
    assert torch.allclose(confidence(logits, labels), (p / (1 - p)).log())


def test_the_likelihood_ratio_prefers_what_members_look_like() -> None:
    generator = torch.Generator().manual_seed(3)
    is_in = [torch.rand(40, generator=generator) < 0.5 for _ in range(12)]
    shadows = []
    for inside in is_in:
        noise = torch.randn(40, generator=generator, dtype=torch.float64)
        shadows.append(noise + 3 * inside.double())
    members = torch.arange(40) < 20
    target = 3 * members.double()
    ratio = likelihood_ratio(target, shadows, is_in)
    assert measure_auc(members, ratio) > 0.95


# ---------------------------------------------------------------- attacks on a real run
def test_examples_that_a_model_remembers_are_told_apart(
    setup: Setup, recording: Recording
) -> None:
    scores = infer_members(setup, recording, 3, lambda _: None)
    found = {(score.model, score.attack): score for score in scores}
    personal = found["personal", "loss threshold"]
    assert personal.auc > 0.7
    assert 0 <= personal.tpr <= 1
    train, val, test = (len(part) for part in recording.runner.indices(1))
    assert personal.members == train
    assert personal.others == val + test
    assert found["personal", "LiRA"].auc > 0.6


def test_the_loss_threshold_is_scikit_learns_auc_of_losses(
    setup: Setup, recording: Recording
) -> None:
    """Computed a second time, from the model's own logits."""
    pool, is_member = list_pool(setup, 1)
    with torch_settings(setup.world.dtype):
        logits, labels = read_logits(
            recording, read_models(recording)["personal"], pool
        )
    p = logits.softmax(1).numpy()[np.arange(len(pool)), labels.numpy()]
    wanted = roc_auc_score(is_member.numpy(), p)
    (score,) = [
        s
        for s in infer_members(setup, recording, 0, lambda _: None)
        if s.model == "personal"
    ]
    assert score.auc == pytest.approx(wanted, abs=1e-6)


@pytest.mark.slow
def test_arts_attack_finds_as_much(setup: Setup, recording: Recording) -> None:
    """adversarial-robustness-toolbox's black-box attack, trained on half of the pool."""
    attacks = pytest.importorskip("art.attacks.inference.membership_inference")
    from art.estimators.classification import PyTorchClassifier

    pool, is_member = list_pool(setup, 1)
    personal = read_models(recording)["personal"]
    client = recording.runner.client(1, 4)
    examples = recording.runner.examples(pool, len(pool))

    class Personal(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return recording.method.predict(client, personal, x)

    classifier = PyTorchClassifier(
        Personal(), torch.nn.CrossEntropyLoss(), (1, 8, 8), 10, device_type="cpu"
    )
    x = examples.x.contiguous().numpy()
    y = examples.y.numpy()
    inside = np.flatnonzero(is_member.numpy())
    outside = np.flatnonzero(~is_member.numpy())
    attack = attacks.MembershipInferenceBlackBox(
        classifier, input_type="loss", attack_model_type="gb"
    )
    attack.fit(x[inside[::2]], y[inside[::2]], x[outside[::2]], y[outside[::2]])
    rest = np.concatenate([inside[1::2], outside[1::2]])
    guessed = attack.infer(x[rest], y[rest], probabilities=True)
    theirs = roc_auc_score(is_member.numpy()[rest], guessed.reshape(-1))
    mine = infer_members(setup, recording, 0, lambda _: None)[0].auc
    assert theirs > 0.6
    assert abs(theirs - mine) < 0.2
