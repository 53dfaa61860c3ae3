"""Client-level privacy: bounded changes, noise of the promised size, spending."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.core.tree import subtract
from fedtailor.filters import RoundPlan
from fedtailor.filters.by_option.changes import measure_norm, named_tensors
from fedtailor.filters.by_option.privacy import (
    ClientPrivacy,
    Ledger,
    PrivacyTerms,
    SamplePrivacy,
)
from fedtailor.filters.tap import Tap
from fedtailor.maths.accounting import Step, spend
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedcp import FedCP
from fedtailor.methods.fedem import FedEM
from fedtailor.methods.fedfomo import FedFomo
from fedtailor.methods.fedper import FedPer
from fedtailor.methods.fedproto import FedProto
from fedtailor.methods.pacfl import PACFL
from fedtailor.testing.small_world import SmallRun, run_small
from helpers import gap

DOUBLE: dict[str, Any] = {"dtype": torch.float64}
TERMS = PrivacyTerms(
    clip=0.3,
    noise=2.0,
    delta=1e-5,
    limit=None,
    accountant="rdp",
    seed=0,
    method="X",
)
NO_NOISE = TERMS._replace(noise=1e-12)


def one_round(terms: PrivacyTerms, **more: Any) -> tuple[SmallRun, Tap]:
    """A round of FedAvg, and what was sent."""
    tap = Tap()
    filters = [ClientPrivacy(terms), tap]
    run = run_small(FedAvg(), rounds=1, filters=filters, **DOUBLE, **more)
    return run, tap


# ---------------------------------------------------------------- sensitivity
def test_changes_are_clipped_over_all_fields_together():
    tap = Tap()
    terms = NO_NOISE._replace(clip=0.1)
    run_small(FedCP(), rounds=1, filters=[ClientPrivacy(terms), tap], **DOUBLE)
    traffic = tap.traffic[-1]
    lengths = []
    for k, up in traffic.up.items():
        down = named_tensors(traffic.down[k])
        change = {path: x - down[path] for path, x in named_tensors(up).items()}
        assert len({path.split("/")[0] for path in change}) == 3
        lengths.append(float(measure_norm(change)))
    assert max(lengths) == pytest.approx(0.1, abs=1e-9)


def test_the_mean_counts_all_clients_alike():
    run, tap = one_round(NO_NOISE)
    traffic = tap.traffic[0]
    changes = [subtract(up.w, traffic.down[k].w) for k, up in traffic.up.items()]
    start = traffic.down[0].w
    for name, value in run.server.w.items():
        mean = torch.stack([change[name] for change in changes]).mean(0)
        assert torch.allclose(value, start[name] + mean, atol=1e-9)


def test_one_client_moves_the_sum_by_no_more_than_the_clip():
    """Without a client the result differs by C / n at most: its reply counts as no change."""
    whole, _ = one_round(NO_NOISE)
    for k in range(6):

        class Lost(Tap):
            def client_sends(self, up, down, memory, rng):
                raise RuntimeError("gone")

            def for_client(self, client, n, k=k):
                return self if client == k else Tap()

        filters = [ClientPrivacy(NO_NOISE), Lost()]
        run = run_small(FedAvg(), rounds=1, filters=filters, **DOUBLE)
        distance = measure_norm(subtract(whole.server.w, run.server.w))
        assert 0 < float(distance) <= 0.3 / 6 + 1e-9


def test_numbers_of_examples_have_no_part_in_the_result():
    class Liar(Tap):
        def server_receives(self, call, ups):
            ups.n = 1000 * torch.rand(len(ups), dtype=torch.float64)
            return ups

    honest, _ = one_round(TERMS)
    filters = [ClientPrivacy(TERMS), Liar()]
    run = run_small(FedAvg(), rounds=1, filters=filters, **DOUBLE)
    assert run.hash == honest.hash


# ---------------------------------------------------------------- noise
def noise_of(terms: PrivacyTerms) -> torch.Tensor:
    """What noise did to the server's model in a round."""
    noisy, _ = one_round(terms)
    exact, _ = one_round(terms._replace(noise=1e-12))
    gaps = subtract(noisy.server.w, exact.server.w)
    return torch.cat([x.flatten() for x in gaps.values()])


@pytest.mark.parametrize("noisy_clients", [0, 6])
def test_the_noise_has_the_promised_variance(noisy_clients):
    """The mean of six clients has noise of deviation 2.0 x 0.3 / 6, whoever adds it."""
    noise = noise_of(TERMS._replace(noisy_clients=noisy_clients))
    assert len(noise) > 1200
    wanted = 2.0 * 0.3 / 6
    error = 4 / (2 * len(noise)) ** 0.5
    assert float(noise.std()) == pytest.approx(wanted, rel=error)
    assert abs(float(noise.mean())) < 4 * wanted / len(noise) ** 0.5


def test_each_clients_part_of_the_noise():
    terms = TERMS._replace(noisy_clients=6)
    _, noisy = one_round(terms)
    _, exact = one_round(terms._replace(noise=1e-12))
    for k in range(6):
        gaps = subtract(noisy.traffic[0].up[k].w, exact.traffic[0].up[k].w)
        part = torch.cat([x.flatten() for x in gaps.values()])
        wanted = 2.0 * 0.3 / 6**0.5
        error = 4 / (2 * len(part)) ** 0.5
        assert float(part.std()) == pytest.approx(wanted, rel=error)


def test_noise_differs_from_round_to_round_and_from_field_to_field():
    run = run_small(FedCP(), rounds=1, filters=[ClientPrivacy(TERMS)], **DOUBLE)
    plain = run_small(FedCP(), rounds=1, filters=[ClientPrivacy(NO_NOISE)], **DOUBLE)
    base = subtract(run.server.base, plain.server.base)
    shared = subtract(run.server.shared, plain.server.shared)
    first = next(iter(base.values())).flatten()[:4]
    second = next(iter(shared.values())).flatten()[:4]
    assert not torch.allclose(first, second)
    one = ClientPrivacy(TERMS)
    one.before_round(RoundPlan(1, 6, 1.0, False))
    two = ClientPrivacy(TERMS)
    two.before_round(RoundPlan(2, 6, 1.0, False))
    assert one.server_noise() != two.server_noise()


@pytest.mark.parametrize(
    ("executor", "noisy_clients"),
    [
        ("processes", 6),
        ("vmap", 6),
        pytest.param("processes", 0, marks=pytest.mark.slow),
        ("vmap", 0),
    ],
)
def test_same_in_every_executor(executor, noisy_clients):
    terms = TERMS._replace(noisy_clients=noisy_clients)
    options: dict[str, Any] = {"rounds": 2, **DOUBLE}
    reference = run_small(FedPer(), filters=[ClientPrivacy(terms)], **options)
    filters = [ClientPrivacy(terms)]
    run = run_small(FedPer(), filters=filters, executor=executor, **options)
    if executor == "processes":
        assert run.hash == reference.hash
    assert gap(run.server, reference.server) < 1e-9


def test_private_parts_are_not_noised():
    """Ditto's personal model of the first round does not depend on noise or clipping."""
    run = run_small(Ditto(), rounds=1, filters=[ClientPrivacy(TERMS)])
    plain = run_small(Ditto(), rounds=1)
    assert gap(run.keep(0), plain.keep(0)) == 0
    assert gap(run.server, plain.server) > 1e-3


# ---------------------------------------------------------------- methods
@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (FedFomo(), "uploads"),
        (FedProto(), "uploads"),
        (FedEM(), "numbers of examples"),
        (PACFL(), "before they train"),
    ],
)
def test_what_noise_does_not_cover_is_refused_by_name(method, reason):
    with pytest.raises(UserError, match=f"X .*{reason}"):
        run_small(method, filters=[ClientPrivacy(TERMS)])


# ---------------------------------------------------------------- spending
def test_rounds_add_up_and_only_poisson_sampling_amplifies():
    fixed = ClientPrivacy(TERMS)
    poisson = ClientPrivacy(TERMS)
    for t in (1, 2, 3):
        fixed.before_round(RoundPlan(t, 20, 0.1, False))
        poisson.before_round(RoundPlan(t, 20, 0.1, True))
    assert fixed.after_round(3).privacy["epsilon"] == spend([Step(2, 1.0, 3)], 1e-5)
    assert poisson.after_round(3).privacy["epsilon"] == spend([Step(2, 0.1, 3)], 1e-5)
    assert poisson.denominator() == 2.0


def test_a_sample_spends_every_pass():
    privacy = SamplePrivacy(TERMS._replace(passes=4))
    privacy.before_round(RoundPlan(1, 20, 0.1, True))
    assert privacy.after_round(1).privacy["epsilon"] == spend([Step(2, 1.0, 4)], 1e-5)


def test_noise_of_lost_clients_is_missing_and_counted():
    privacy = ClientPrivacy(TERMS._replace(noisy_clients=6))
    run_small(FedAvg(), rounds=1, filters=[privacy], share=0.5)
    wanted = spend([Step(2.0 * 0.5**0.5, 1.0)], 1e-5)
    assert privacy.ledger.epsilon() == pytest.approx(wanted)


def test_a_round_with_too_little_noise_is_not_merged():
    terms = TERMS._replace(noisy_clients=6, limit=spend([Step(2.0, 1.0)], 1e-5))
    filters = [ClientPrivacy(terms)]
    run = run_small(FedAvg(), rounds=1, filters=filters, share=0.5)
    assert gap(run.server.w, run.runner.new()) == 0


def test_a_deployed_run_counts_every_attempt_and_hides_its_noise():
    privacy = ClientPrivacy(TERMS)
    plan = RoundPlan(1, 6, 1.0, False, is_remote=True)
    privacy.before_round(plan)
    first = privacy.server_noise()
    saved = privacy.save()
    again = ClientPrivacy(TERMS)
    again.restore(saved)
    again.before_round(plan)
    assert again.server_noise() != first
    assert again.after_round(1).privacy["epsilon"] == spend([Step(2, 1.0, 2)], 1e-5)
    other = ClientPrivacy(TERMS)
    other.before_round(plan)
    assert other.secret != privacy.secret


def test_a_ledger_never_becomes_shorter():
    ledger = Ledger(1e-5, "rdp")
    ledger.charge(1, Step(2, 1.0), is_new=True)
    ledger.charge(1, Step(2, 1.0), is_new=True)
    ledger.take_in({"1": [[2, 1.0, 1]], "2": [[3, 1.0, 1]]})
    assert [len(steps) for steps in ledger.rounds.values()] == [2, 1]
