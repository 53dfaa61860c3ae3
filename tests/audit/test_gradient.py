"""Gradient leakage: on an easy network the image comes back, and labels are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedtailor.audit.gradient import (
    Search,
    Task,
    agreement_of_labels,
    attack,
    draw_noise,
    infer_labels,
    judge,
    labels_from_shares,
)
from fedtailor.audit.images import psnr, to_unit
from fedtailor.audit.record import (
    Recording,
    cut_training_data,
    record,
    training_images,
)
from fedtailor.audit.views import View, list_views
from fedtailor.core.rng import Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import Setup, prepare

OPTIONS: dict[str, Any] = {
    "method": "fedavg",
    "data": "digits",
    "clients": 4,
    "limit": 200,
    "rounds": 1,
    "executor": "sequential",
    "dtype": "float64",
}
TASK = Task((1, 8, 8), 1, 10, -1.0, 1.0)


def sigmoid_network() -> nn.Module:
    """Small, smooth and untrained: the network on which the attack must work."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10)
        )


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(make_experiment(OPTIONS), model=sigmoid_network(), last="3")


def record_one(setup: Setup, k: int) -> tuple[Recording, View]:
    """The real first round of client k with one example, and what its server sees."""
    recording = record(cut_training_data(setup, k, 1), k, 1, lambda _: None)
    (view,) = list_views(recording, recording.last_trained())
    return recording, view


# ---------------------------------------------------------------- the positive control
@pytest.mark.parametrize("kind", ["dlg", "idlg"])
def test_an_image_visibly_comes_back_from_a_real_upload(
    setup: Setup, kind: Any
) -> None:
    recording, view = record_one(setup, 1)
    truth = training_images(recording)
    task = TASK
    with torch_settings(torch.float64):
        search = Search(iterations=300, restarts=2)
        found = judge(kind, view, task, attack(kind, view, task, search), truth)
        noise = draw_noise(task, Rng.seed(0))
    unit = [to_unit(x, -1.0, 1.0) for x in (noise, torch.zeros_like(noise), truth[0])]
    start = psnr(unit[0], unit[2])
    grey = psnr(unit[1], unit[2])
    assert found.psnr > 30 > 10 + max(start, grey)
    assert found.ssim is not None and found.ssim > 0.95
    assert found.labels_right == 1.0


def test_inverting_gradients_brings_it_back_too(setup: Setup) -> None:
    recording, view = record_one(setup, 2)
    with torch_settings(torch.float64):
        search = Search(iterations=150, restarts=1, smoothness=1e-5)
        attempt = attack("inverting", view, TASK, search)
        found = judge("inverting", view, TASK, attempt, training_images(recording))
    assert found.psnr > 20
    assert found.labels_right == 1.0


def test_the_attack_proves_something_the_wrong_upload_gives_no_image(
    setup: Setup,
) -> None:
    """From another client's upload, the victim's image does not come back."""
    recording, _ = record_one(setup, 1)
    _, other = record_one(setup, 3)
    with torch_settings(torch.float64):
        attempt = attack("idlg", other, TASK, Search(iterations=100, restarts=1))
        found = judge("idlg", other, TASK, attempt, training_images(recording))
    assert found.psnr < 15


# ---------------------------------------------------------------- labels
def test_labels_are_told_from_every_clients_upload(setup: Setup) -> None:
    """iDLG's rule, on the real upload of each client with one example."""
    for k in range(4):
        recording, view = record_one(setup, k)
        with torch_settings(torch.float64):
            labels = infer_labels(view, TASK, Rng.seed(5, k))
        assert labels.tolist() == training_images(recording)[1].tolist()


def test_labels_of_several_examples_are_mostly_told(setup: Setup) -> None:
    recording = record(cut_training_data(setup, 0, 8), 0, 1, lambda _: None)
    (view,) = list_views(recording, recording.last_trained())
    with torch_settings(torch.float64):
        labels = infer_labels(view, replace(TASK, n=8), Rng.seed(1))
    _, truth = training_images(recording)
    assert agreement_of_labels(labels, truth, 10) >= 0.75


def test_shares_become_as_many_labels() -> None:
    shares = torch.tensor([0.5, 0.3, 0.2])
    assert labels_from_shares(shares, 4).tolist() == [0, 0, 1, 2]
    assert labels_from_shares(shares, 10).bincount().tolist() == [5, 3, 2]


# ---------------------------------------------------------------- the simulated upload
def test_the_truth_simulates_to_the_upload_itself(setup: Setup) -> None:
    """Else the attacker searches for something that is not there."""
    recording, view = record_one(setup, 1)
    x, y = training_images(recording)
    with torch_settings(torch.float64):
        found = view.simulate(x, y)
    for name, value in view.target.items():
        assert torch.allclose(found[name], value, atol=1e-12)
    assert view.about == "nothing is private: the training is simulated exactly"
