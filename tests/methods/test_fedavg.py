"""FedAvg: one model for all, fine-tuned at home where that is wished."""

from __future__ import annotations

import torch

from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.methods.fedavg import Down, FedAvg
from fedtailor.testing.small_world import digits, run_small
from helpers import equal, gap, overhear


def test_the_server_takes_the_mean_weighted_by_data() -> None:
    played, heard = overhear(FedAvg(), rounds=1, dtype=torch.float64)
    sizes = [30, 17, 24, 9, 1, 40]
    uploads = heard[0].up
    mean = {
        k: sum(n * uploads[i].w[k] for i, n in enumerate(sizes)) / sum(sizes)
        for k in played.server.w
    }
    assert gap(played.server.w, mean) < 1e-12


def test_fine_tuning_changes_nothing_but_the_personal_model() -> None:
    plain, tuned = (
        run_small(FedAvg(), norm="batch"),
        run_small(FedAvg(finetune=2), norm="batch"),
    )
    assert plain.hash == tuned.hash
    with torch_settings():
        down = Down(plain.server.w)
        c = tuned.runner.client(0, 3, Purpose.EVALUATE, 3)
        personal = FedAvg(finetune=2).personal(c, down, None)
        same = tuned.runner.client(0, 3, Purpose.EVALUATE, 3)
        assert equal(personal, same.train(same.loss, down.w, epochs=2))
        assert FedAvg().personal(c, down, None) is down.w


def test_evaluation_draws_from_a_stream_of_its_own() -> None:
    played = run_small(FedAvg(finetune=1))
    with torch_settings():
        down, calls = (
            Down(played.server.w),
            [(Purpose.EVALUATE, 4), (Purpose.CALL, 4, 1)],
        )
        evaluated, trained = (
            FedAvg(finetune=1).personal(played.runner.client(0, 4, *p), down, None)
            for p in calls
        )
    assert not equal(evaluated, trained)


def test_fine_tuned_models_suit_their_clients_better() -> None:
    federation = digits(sizes=(40,) * 5)
    plain, tuned = (
        run_small(FedAvg(finetune=e), rounds=10, federation=federation).accuracy()
        for e in (0, 5)
    )
    assert tuned > plain + 0.1
