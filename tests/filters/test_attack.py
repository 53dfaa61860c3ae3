"""Simulated attackers: who they are, what they send, what they train on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.core.tree import Params, subtract
from fedtailor.filters.by_option.attack import (
    TARGET,
    Attack,
    AttackSpec,
    choose_attackers,
    parse_attack,
    poison_data,
)
from fedtailor.filters.by_option.changes import measure_norm
from fedtailor.filters.tap import Tap
from fedtailor.methods.fedavg import FedAvg
from fedtailor.testing.small_world import digits, run_small
from helpers import gap, overhear, words

DOUBLE: dict[str, Any] = {"dtype": torch.float64}
LIARS = frozenset([2, 5])


def test_who_attacks_follows_from_the_seed():
    assert choose_attackers(0, 20, 0.2) == choose_attackers(0, 20, 0.2)
    assert len(choose_attackers(0, 20, 0.2)) == 4
    assert len({choose_attackers(seed, 20, 0.2) for seed in range(9)}) > 5
    assert choose_attackers(0, 20, 0.0) == frozenset()


def changes_of_first_round(filters: list[Any]) -> dict[int, Params]:
    """What each client added to the model."""
    tap = Tap()
    run_small(FedAvg(), rounds=1, filters=[*filters, tap], **DOUBLE)
    traffic = tap.traffic[0]
    return {k: subtract(up.w, traffic.down[k].w) for k, up in traffic.up.items()}


@pytest.mark.parametrize(("kind", "factor"), [("sign_flip", -1), ("scale", 10)])
def test_uploads_are_turned_or_scaled(kind, factor):
    plain = changes_of_first_round([])
    attacked = changes_of_first_round([Attack(AttackSpec(kind, 10.0), LIARS)])
    for k, change in plain.items():
        wanted = {n: (factor if k in LIARS else 1) * x for n, x in change.items()}
        assert gap(attacked[k], wanted) < 1e-12
    assert float(measure_norm(plain[2])) > 0.01


def test_noise_is_as_long_as_said():
    plain = changes_of_first_round([])
    attacked = changes_of_first_round([Attack(AttackSpec("noise", 7.0), LIARS)])
    for k in LIARS:
        ratio = measure_norm(attacked[k]) / measure_norm(plain[k])
        assert float(ratio) == pytest.approx(7.0, rel=1e-9)
    assert gap(attacked[0], plain[0]) == 0


def test_flipped_labels_are_those_of_attackers_training_data():
    before = digits()
    after = poison_data(before, AttackSpec("label_flip"), LIARS, 0)
    changed = (before.y != after.y).nonzero().flatten().tolist()
    mine = {i for k in LIARS for i in before.train[k].tolist()}
    assert set(changed) == mine  # 9 - y is never y
    for i in changed:
        assert after.y[i] == 9 - before.y[i]


def test_a_backdoor_is_a_patch_on_half_of_the_training_images():
    before = digits()
    after = poison_data(before, AttackSpec("backdoor"), LIARS, 0)
    stamped = (before.x != after.x).flatten(1).any(1).nonzero().flatten().tolist()
    for k in LIARS:
        mine = set(before.train[k].tolist())
        # an image whose corner is bright already looks the same
        relabelled = {i for i in mine if after.y[i] == TARGET}
        assert len(mine & set(stamped)) >= len(mine) // 2 - 1
        assert set(stamped) & mine <= relabelled
    everyone = {i for k in LIARS for i in before.train[k].tolist()}
    assert set(stamped) <= everyone
    assert bool((after.x[stamped][..., -3:, -3:] == before.x.max()).all())
    assert torch.equal(after.x[stamped][..., :5, :], before.x[stamped][..., :5, :])


def test_a_backdoor_needs_images():
    with pytest.raises(UserError, match="patch on an image"):
        poison_data(words()["federation"], AttackSpec("backdoor"), LIARS, 0)


def test_honest_clients_send_what_they_always_sent():
    plain, _ = overhear(FedAvg(), rounds=2)
    quiet = run_small(
        FedAvg(), rounds=2, filters=[Attack(AttackSpec("noise"), frozenset())]
    )
    assert quiet.hash == plain.hash


@pytest.mark.parametrize("text", ["sign_flp", "sign_flip:3", "scale:x"])
def test_bad_attacks_are_refused(text):
    with pytest.raises(UserError):
        parse_attack(text)
