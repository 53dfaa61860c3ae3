"""Secure sums at sites: as simulated, with secrets that are in no message and no file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_sites import FIRST_NODE, FakeSites, RecordingObserver

from fedtailor.core.sealed import Sealed
from fedtailor.core.torch_settings import torch_settings
from fedtailor.deploy.messages import read_message
from fedtailor.maths.secure_sum import primitives
from fedtailor.maths.secure_sum.member import Member


def test_deployed_is_simulated_bit_for_bit(tmp_path: Path) -> None:
    sites = FakeSites(tmp_path, "fedper", secure_sum=True)
    deployed = sites.deploy()
    assert deployed["hash"] == sites.simulate()["hash"]
    assert deployed["secure_sum"]["bytes"]["up"] > 0
    assert any("answered a filter" in line for line in sites.logs)


def test_no_message_holds_a_plain_upload_and_nothing_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All bytes that sites sent, and all files of server and sites."""
    drawn: list[bytes] = []
    begin = Member.__init__

    def watch(self: Member, k: int, secrets: Any) -> None:
        drawn.extend(secrets)
        begin(self, k, secrets)

    monkeypatch.setattr(Member, "__init__", watch)
    sites = FakeSites(tmp_path, "fedavg", secure_sum=True)
    sites.deploy()
    at_sites = len(drawn)
    assert at_sites >= 3 * 3 * 3
    keys = [primitives.derive(secret, "private key") for secret in drawn]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    everything = b"".join(
        [answer for _, _, answer in sites.transport.traffic] + written
    )
    # the server gets seeds of masks back, as shares only
    assert not [x for x in (*drawn, *keys) if x in everything]
    sealed = 0
    for _, _, answer in sites.transport.traffic:
        for path, value in read_message(answer).flat.items():
            # an upload of FedAvg, and no score, has the names of the network's layers
            if "/up/w/" in path:
                assert isinstance(value, Sealed), path
                sealed += 1
    assert sealed > 3 * 3


def test_a_site_that_goes_away_between_phases_is_left_out(tmp_path: Path) -> None:
    """Site 2 shares, and then its uploads never come: the others' sum is exact."""
    options = {"secure_sum": True, "rounds": 1, "secure_threshold": 0.6}
    sites = FakeSites(tmp_path, "fedavg", **options)

    def fail(node: int, message: bytes) -> bytes | None:
        visits = read_message(message).header.get("visits", [])
        trains = any(visit.get("function") == "local" for visit in visits)
        return b"nonsense" if trains and node == FIRST_NODE + 2 else None

    sites.transport.fault = fail
    observer = RecordingObserver()
    deployed = sites.deploy(observer)
    assert [line for line in observer.lines if "client 2 is left out" in line]
    assert deployed["rounds"] == 1
    plain = FakeSites(tmp_path / "plain", "fedavg", rounds=1, encrypt="all", he="plain")
    plain.transport.fault = fail
    without = plain.deploy(RecordingObserver())
    assert deployed["accuracy"] == without["accuracy"]


def test_a_server_that_breaks_goes_on_with_new_keys(tmp_path: Path) -> None:
    sites = FakeSites(tmp_path, "fedper", secure_sum=True, checkpoint_every=1)

    class Break(RecordingObserver):
        def round(self, record: Any) -> None:
            super().round(record)
            if record.t == 2:
                raise RuntimeError("power cut")

    with torch_settings(), pytest.raises(RuntimeError):
        sites.deploy(Break())
    result = sites.deploy(resume=True)
    assert result["hash"] == sites.simulate()["hash"]
