"""Secure sums around real rounds: exact, hidden, and what cannot be had is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.core.sealed import Sealed, find_sealed
from fedtailor.core.tree import Tree, leaves, subtract
from fedtailor.core.wire import encode
from fedtailor.engine.exchange import Exchange
from fedtailor.filters import Call, Filter
from fedtailor.filters.by_option.encryption import Encryption
from fedtailor.filters.by_option.privacy import ClientPrivacy, PrivacyTerms
from fedtailor.filters.by_option.secure_sum import (
    KEYS,
    REVEAL,
    SHARES,
    SecureSum,
    SecureTerms,
)
from fedtailor.filters.by_option.sums import SumTerms
from fedtailor.filters.tap import Tap
from fedtailor.maths.fixed_point import FixedPoint
from fedtailor.methods.cfl import CFL
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedfomo import FedFomo
from fedtailor.methods.fedper import FedPer
from fedtailor.methods.gpfl import GPFL
from fedtailor.methods.local import Local
from fedtailor.methods.perfedavg import PerFedAvg
from fedtailor.testing.small_world import SmallRun, run_small
from helpers import equal, gap

SUMS = SumTerms(
    option="secure_sum",
    method="X",
    scope="all",
    summed=(),
    head_fields=(),
    is_equal=False,
    mean=FixedPoint(6, 8.0, 200),
    sum=FixedPoint(6, 8.0),
)
TERMS = SecureTerms(SUMS, seed=0, threshold=0.6)


def run_masked(method: Any, terms: SecureTerms = TERMS, **options: Any) -> SmallRun:
    return run_small(method, filters=[SecureSum(terms)], **options)


def run_plain(method: Any, **options: Any) -> SmallRun:
    """The same fixed-point sums in clear."""
    filters = [Encryption(SUMS, "plain", "plain")]
    return run_small(method, filters=filters, **options)


def open_server(run: SmallRun) -> Tree:
    """The server's state after a run whose sums are opened by clients only."""
    return run.runner.filters.filters[0].open_tree(run.server)


# ---------------------------------------------------------------- the same numbers
@pytest.mark.parametrize("method", [FedAvg(), FedPer(), Ditto(), GPFL()])
def test_masked_is_plain_fixed_point_bit_for_bit(method: Any) -> None:
    masked = run_masked(method, rounds=2)
    plain = run_plain(method, rounds=2)
    assert equal(masked.server, open_server(plain))
    assert equal(masked.keep(2), plain.keep(2))


def test_encrypted_is_masked_bit_for_bit() -> None:
    pytest.importorskip("tenseal")
    masked = run_masked(FedPer(), rounds=2)
    filters = [Encryption(SUMS, "bfv")]
    encrypted = run_small(FedPer(), rounds=2, filters=filters)
    assert equal(masked.server, open_server(encrypted))
    assert equal(masked.keep(0), encrypted.keep(0))


def test_near_the_float_run() -> None:
    masked = run_masked(FedAvg(), rounds=3)
    assert gap(masked.server, run_small(FedAvg(), rounds=3).server) < 1e-5


@pytest.mark.parametrize("executor", ["processes", "vmap"])
def test_same_in_every_executor(executor: str) -> None:
    reference = run_masked(FedPer(), rounds=2)
    run = run_masked(FedPer(), rounds=2, executor=executor)
    if executor == "processes":
        assert run.hash == reference.hash
    assert gap(run.server, reference.server) < 1e-5


def test_few_neighbours_give_the_same() -> None:
    few = TERMS._replace(neighbours=4)
    assert run_masked(FedAvg(), few).hash == run_masked(FedAvg()).hash


def test_a_run_that_goes_on_ends_alike() -> None:
    whole = run_masked(FedPer(), rounds=3)
    half = run_masked(FedPer(), rounds=3, until=2)
    assert run_masked(FedPer(), rounds=3, since=half.save()).hash == whole.hash


# ---------------------------------------------------------------- drop-outs
def lose(monkeypatch: pytest.MonkeyPatch, phase: int, clients: set[int]) -> None:
    """Let replies of these clients get lost in one phase of every call (0: their uploads)."""

    def lose_reply(self: Exchange, k: int, call: Call, now: int = 0) -> str:
        return "its reply got lost (--drop)" if now == phase and k in clients else ""

    monkeypatch.setattr(Exchange, "_lose_reply", lose_reply)


@pytest.mark.parametrize("phase", [KEYS, SHARES, 0, REVEAL])
def test_the_sum_of_the_rest_is_exact_in_every_phase(
    phase: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of six vanish; those lost in the last phase had sent their numbers."""
    gone = {1, 4}
    lose(monkeypatch, phase, gone)
    masked = run_masked(FedAvg(), rounds=1)
    assert masked.exchange.traffic.lost.keys() == gone
    lose(monkeypatch, 0, set() if phase == REVEAL else gone)
    plain = run_plain(FedAvg(), rounds=1)
    assert equal(masked.server, open_server(plain))


@pytest.mark.parametrize(
    ("phase", "what"),
    [
        (KEYS, "sent keys"),
        (SHARES, "sent shares"),
        (0, "sent numbers"),
        (REVEAL, "answ"),
    ],
)
def test_below_the_threshold_the_round_is_skipped(
    phase: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(monkeypatch, phase, {0, 2, 5})
    secure = SecureSum(TERMS)
    skipped = []
    call = Exchange.call

    def watch(self: Exchange, *arguments: Any) -> Any:
        try:
            return call(self, *arguments)
        except Exception as error:
            skipped.append(str(error))
            raise

    monkeypatch.setattr(Exchange, "call", watch)
    run = run_small(FedAvg(), rounds=1, filters=[secure])
    assert equal(run.server.w, run.runner.new())
    assert len(skipped) == 1
    assert skipped[0].startswith(f"secure_sum: 3 clients {what}")
    assert skipped[0].endswith("and a secure sum needs 4")


def test_replies_really_get_lost_between_the_phases() -> None:
    """With --drop: in some rounds by keys, in some by shares, uploads, answers."""
    lost: Counter[int] = Counter()
    original = Exchange._lose_reply

    def count(self: Exchange, k: int, call: Call, phase: int = 0) -> str:
        why = original(self, k, call, phase)
        lost[phase] += bool(why)
        return why

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Exchange, "_lose_reply", count)
        run = run_masked(FedAvg(), rounds=8, drop=0.12)
    assert all(lost[phase] for phase in (KEYS, SHARES, 0, REVEAL))
    assert gap(run.server.w, run.runner.new()) > 1e-3
    assert run.hash == run_masked(FedAvg(), rounds=8, drop=0.12).hash


# ---------------------------------------------------------------- what the server sees
def test_a_tap_at_the_server_finds_no_plain_upload() -> None:
    """All that comes in, in any form: no tensor, and no window of bytes, of any upload."""
    plain = Tap()
    run_small(FedAvg(), rounds=1, filters=[plain])
    tap = Tap()
    masked = run_small(FedAvg(), rounds=1, filters=[SecureSum(TERMS), tap])
    assert gap(masked.server, run_small(FedAvg(), rounds=1).server) < 1e-5
    for k, up in tap.traffic[0].up.items():
        flat = encode(up)
        assert all(isinstance(leaf, Sealed) for leaf in flat.values())
        block = find_sealed(up)[0].block
        seen = np.frombuffer(block.parts[0], np.uint8)
        counts = np.bincount(seen, minlength=256)
        wanted = len(seen) / 256
        assert float(((counts - wanted) ** 2 / wanted).sum()) < 400
        for wrong in plain.traffic[0].up[k].w.values():
            integers = SUMS.mean.quantise(wrong, 1).flatten()
            assert integers[:2].numpy().tobytes() not in block.parts[0]
            assert wrong.flatten()[:2].numpy().tobytes() not in block.parts[0]


def test_uploads_of_different_clients_and_rounds_have_nothing_in_common() -> None:
    tap = Tap()
    run_small(FedAvg(), rounds=2, filters=[SecureSum(TERMS), tap])
    rows = []
    for traffic in tap.traffic:
        for up in traffic.up.values():
            rows.append(np.frombuffer(find_sealed(up)[0].block.parts[0], np.uint8))
    correlation = np.corrcoef(np.array(rows, float))
    assert np.abs(correlation - np.eye(len(rows))).max() < 0.1


def test_a_site_draws_secrets_that_do_not_follow_from_the_seed() -> None:
    """Outside simulations: other masks every time, the same sum."""

    class AtSites(SecureSum):
        def begin_simulation(self, folder: Any, resume: bool) -> None:
            pass

        def for_network(self, template: Any) -> SecureSum:
            return SecureSum(self.terms)

    taps = [Tap(), Tap()]
    runs = []
    for tap in taps:
        filters = [AtSites(TERMS), tap]
        runs.append(run_small(FedAvg(), rounds=1, filters=filters))

    # the server's and the clients' parts are different objects here, as at sites
    first, second = (tap.traffic[0].up[0] for tap in taps)
    one = find_sealed(first)[0].block.parts
    two = find_sealed(second)[0].block.parts
    assert one != two
    assert runs[0].hash == runs[1].hash == run_masked(FedAvg(), rounds=1).hash


def test_a_site_that_was_started_anew_has_no_keys_any_more() -> None:
    secure = SecureSum(TERMS)
    run = run_masked(FedAvg(), rounds=1)
    rng = run.runner.rng(1)
    part = secure.for_client(0, 10)
    with pytest.raises(Exception, match="it has no keys for this sum"):
        part.answer({"step": "shares"}, Call("filter", 1, 1, True), rng)


# ---------------------------------------------------------------- damage
class Damage(Filter):
    """Changes what one client sends, on its way."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def find_faults(self, call: Call, ups: Mapping[int, Tree]) -> dict[int, str]:
        if leaves(ups[3]):
            self.change(find_sealed(ups[3])[0].block)
        return {}


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("parts", (b"short",), "another length"),
        ("key", "round 9, call 1", "masked for another sum"),
        ("clients", 2, "numbers, not"),
        ("checksum", "0", "damaged"),
    ],
)
def test_a_damaged_upload_is_refused_by_name_and_the_rest_is_exact(
    field: str, value: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(block: Any) -> None:
        object.__setattr__(block, field, value)

    filters = [SecureSum(TERMS), Damage(change)]
    filters.reverse()  # the damage comes first
    run = run_small(FedAvg(), rounds=1, filters=filters)
    assert reason in run.exchange.traffic.lost[3]
    lose(monkeypatch, 0, {3})
    plain = run_plain(FedAvg(), rounds=1)
    assert equal(run.server, open_server(plain))


def test_a_client_with_numbers_out_of_range_is_left_out() -> None:
    narrow = replace(SUMS.mean, limit=1e-3)
    terms = TERMS._replace(sums=SUMS._replace(mean=narrow))
    run = run_masked(FedAvg(), terms, rounds=1)
    assert all("--sum-range" in why for why in run.exchange.traffic.lost.values())
    assert len(run.exchange.traffic.lost) == 6


def test_a_limit_of_changes_is_kept_by_the_client() -> None:
    run = run_masked(FedAvg(), TERMS._replace(change_limit=1e-4), rounds=1)
    assert "--change-limit" in run.exchange.traffic.lost[0]


# ---------------------------------------------------------------- methods
@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (FedFomo(), "looks at every client's"),
        (CFL(), "looks at every client's"),
        (PerFedAvg(), "weighs clients otherwise"),
    ],
)
def test_what_is_no_sum_is_refused_by_name(method: Any, reason: str) -> None:
    heard: list[str] = []
    try:
        run = run_masked(method, rounds=2)
        heard += run.exchange.traffic.lost.values()
    except UserError as error:
        heard.append(str(error))
    assert any(reason in text for text in heard), heard


def test_where_nothing_leaves_there_is_nothing_to_mask() -> None:
    assert run_masked(Local(), rounds=2).hash == run_small(Local(), rounds=2).hash


# ---------------------------------------------------------------- noise of the clients
PRIVACY = PrivacyTerms(
    clip=0.3,
    noise=2.0,
    delta=1e-5,
    limit=None,
    accountant="rdp",
    seed=0,
    method="X",
    noisy_clients=6,
)


def run_private(terms: PrivacyTerms, secure: bool) -> SmallRun:
    sums = SUMS._replace(mean=FixedPoint(6, 8.0), is_equal=True)
    # a filter's randomness is that of its place
    first = (
        SecureSum(TERMS._replace(sums=sums, is_private=True)) if secure else Filter()
    )
    privacy = ClientPrivacy(terms._replace(is_summed=secure))
    return run_small(FedAvg(), rounds=2, filters=[first, privacy])


def test_noise_of_clients_under_masks_is_the_noise_without_them() -> None:
    """The same clipped and noisy changes, up to rounding; the noise has its variance."""
    pytest.importorskip("opacus")
    secure = run_private(PRIVACY, secure=True)
    assert gap(secure.server, run_private(PRIVACY, secure=False).server) < 1e-5
    exact = run_private(PRIVACY._replace(noise=1e-9), secure=True)
    gaps = subtract(secure.server.w, exact.server.w)
    noise = torch.cat([x.flatten() for x in gaps.values()])
    # two rounds, and the second trains from a noisy model
    assert float(noise.std()) == pytest.approx(2.0 * 0.3 / 6 * 2**0.5, rel=0.15)


# ---------------------------------------------------------------- costs
def test_bytes_and_seconds_are_counted() -> None:
    run = run_masked(FedAvg(), rounds=2)
    (secure,) = run.exchange.filters.filters
    report = secure.report(2)
    numbers = 1 + sum(x.numel() for x in run.server.w.values())
    assert report["bytes"]["up"] == 2 * 6 * 5 * numbers
    assert report["bytes_in_clear"]["up"] == 2 * 6 * 4 * (numbers - 1)
    keys = 6 * 64
    shares = 6 * (6 * (16 * 2 + 28) + 32)
    revealed = 6 * 6 * 16
    assert report["bytes_of_keys_and_shares"]["up"] >= 2 * (keys + shares + revealed)
    assert all(seconds > 0 for seconds in report["seconds"].values())
    again = SecureSum(TERMS)
    again.restore(secure.save())
    assert again.report(2) == report
    assert secure.report(1)["bytes"]["up"] == 6 * 5 * numbers
