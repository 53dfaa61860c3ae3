"""pFedMA: FedMA's network to the last bit, trained at home before it predicts."""

from __future__ import annotations

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.methods import make
from fedtailor.methods.fedma import FedMA, Keep
from fedtailor.methods.pfedma import PFedMA
from fedtailor.testing.small_world import digits, run_small
from helpers import equal


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_fine_tuning_changes_nothing_but_the_personal_models(norm: str) -> None:
    plain, tuned = (
        run_small(m, norm=norm, share=0.5, drop=0.2, rounds=4)
        for m in (FedMA(), PFedMA())
    )
    assert plain.hash == tuned.hash
    assert equal(PFedMA().shared(tuned.server), plain.server.w)


def test_it_is_a_preset_of_fedma() -> None:
    assert FedMA().finetune == 0 and PFedMA().finetune == 5
    for options in ({}, {"estimate": "map"}):
        preset = run_small(PFedMA(finetune=2, **options), rounds=2)
        tuned = run_small(FedMA(finetune=2, **options), rounds=2)
        assert preset.hash == tuned.hash and preset.accuracy() == tuned.accuracy()
    with pytest.raises(UserError, match="finetune=0"):
        make(PFedMA, {"finetune": 0})


def test_personal_models_are_trained_whole_with_their_wider_layers() -> None:
    played = run_small(PFedMA(), rounds=2, norm="none")
    made, runner = played.runner.method, played.runner
    down = made.send(played.server, 0)
    with torch_settings():
        personal = made.personal(
            runner.client(0, 2, Purpose.EVALUATE, 2), down, Keep({})
        )
        c = runner.client(0, 2, Purpose.EVALUATE, 2)
        assert equal(personal, c.train(c.loss, down.w, epochs=5))
    assert len(personal["base.fc1.weight"]) > 16
    assert not any(torch.equal(personal[k], down.w[k]) for k in down.w)


def test_evaluation_agrees_under_vmap() -> None:
    one, many = (
        run_small(PFedMA(), rounds=2, dtype=torch.float64, executor=e)
        for e in ("sequential", "vmap")
    )
    many.executor.notices()
    for k, score in one.scores().items():
        assert float(many.scores()[k].test.loss) == pytest.approx(
            float(score.test.loss), abs=1e-9
        )
    assert many.executor.notices() == []


def test_fine_tuned_models_suit_their_clients_better() -> None:
    federation = digits(sizes=(40,) * 6)
    plain, tuned = (
        run_small(m, rounds=3, federation=federation).accuracy()
        for m in (FedMA(), PFedMA())
    )
    assert tuned > max(0.5, plain + 0.1)
