"""Robust merging and privacy at sites: the same as simulated, but for a secret noise."""

from __future__ import annotations

import json

import pytest
from fake_sites import FakeSites, RecordingObserver

from fedtailor.core.errors import UserError
from fedtailor.core.torch_settings import torch_settings
from fedtailor.maths.accounting import Step, spend

DP = {"dp": "client", "dp_noise": 4.0, "dp_clip": 0.01, "dp_accountant": "rdp"}


def test_a_robust_rule_gives_the_same_as_simulated(tmp_path):
    sites = FakeSites(tmp_path, "fedper", aggregate="krum")
    assert sites.deploy()["hash"] == sites.simulate()["hash"]


def test_noise_is_secret_and_spending_is_the_same(tmp_path):
    sites = FakeSites(tmp_path, "fedper", **DP)
    simulated = sites.simulate()
    observer = RecordingObserver()
    deployed = sites.deploy(observer)
    assert not [line for line in observer.lines if "left out" in line]
    assert deployed["hash"] != simulated["hash"]
    assert deployed["privacy"] == simulated["privacy"]
    ledger = json.loads((tmp_path / "deployed" / "ledger.json").read_text())
    secret = ledger["privacy"]["secret"]
    assert secret is not None
    sent = b"".join(message for _, message, _ in sites.transport.traffic)
    assert str(secret).encode() not in sent


def test_a_round_that_is_done_again_is_counted_again(tmp_path):
    """The server breaks after the clients trained; they may have seen what it sent."""
    sites = FakeSites(tmp_path, "fedavg", checkpoint_every=1, **DP)

    class Break(RecordingObserver):
        def round(self, record):
            super().round(record)
            if record.t == 2:
                raise RuntimeError("power cut")

    with torch_settings(), pytest.raises(RuntimeError):
        sites.deploy(Break())
    before = json.loads((tmp_path / "deployed" / "ledger.json").read_text())
    released = sum(map(len, before["privacy"]["rounds"].values()))
    result = sites.deploy(resume=True)
    after = json.loads((tmp_path / "deployed" / "ledger.json").read_text())
    counted = sum(map(len, after["privacy"]["rounds"].values()))
    assert counted > 3 and counted > released
    assert result["privacy"]["epsilon"] == pytest.approx(
        spend([Step(4.0, 1.0, counted)], 1e-5)
    )


@pytest.mark.parametrize(
    "options",
    [
        {**DP, "dp_where": "clients"},
        {"dp": "sample", "dp_noise": 1.0, "batching": "drop"},
    ],
)
def test_noise_that_the_server_could_compute_is_refused(tmp_path, options):
    sites = FakeSites(tmp_path, "fedavg", **options)
    with pytest.raises(UserError, match="follows from the run's seed"):
        sites.deploy()
