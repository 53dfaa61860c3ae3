"""Encrypted sums at sites: the same as simulated, and the server never has the key."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from fake_sites import FIRST_NODE, FakeSites, RecordingObserver

from fedtailor.core.errors import UserError
from fedtailor.core.torch_settings import torch_settings
from fedtailor.deploy.keys import make_he_keys
from fedtailor.maths.homomorphic import open_context, parse_key

pytest.importorskip("tenseal")


def make_sites(folder: Path, method: str = "pfedc", **options: Any) -> FakeSites:
    """Sites that share a key, which the server knows by its name."""
    secret, public = make_he_keys(folder / "keys", "bfv")
    key = parse_key(public.read_text(), str(public))
    sites = FakeSites(folder, method, he_key=key.id, **{"encrypt": "heads", **options})
    for service in sites.transport.services.values():
        service.he_key = secret
    return sites


def secret_bytes(folder: Path) -> list[bytes]:
    """What must be nowhere but at the sites: pieces of the secret key."""
    text = (folder / "keys" / "he.key").read_text()
    context = parse_key(text, "he.key").context
    assert open_context(context).has_secret_key()
    public = parse_key((folder / "keys" / "he.pub").read_text(), "he.pub").context
    tail = context[-256:]
    assert tail not in public
    encoded = base64.b64encode(context)
    assert encoded.decode() in text
    return [tail, context[:4096], encoded[-400:], encoded[:400]]


def test_privacy_pfedc_at_sites_is_the_same_as_simulated(tmp_path):
    """And nothing of the secret key is in the server's folder or in any message."""
    sites = make_sites(tmp_path)
    deployed = sites.deploy()
    simulated = sites.simulate()
    for same in ("hash", "accuracy", "views", "measures"):
        assert deployed[same] == simulated[same]
    clear = "bytes_in_clear"
    assert deployed["encryption"][clear] == simulated["encryption"][clear]
    places = [p.read_bytes() for p in (tmp_path / "deployed").rglob("*") if p.is_file()]
    messages = [
        m for _, sent, answer in sites.transport.traffic for m in (sent, answer)
    ]
    assert len(places) > 3
    assert len(messages) > 10
    for secret in secret_bytes(tmp_path):
        assert not any(secret in data for data in [*places, *messages])


def test_a_server_that_breaks_goes_on_to_the_same_end(tmp_path):
    whole = make_sites(tmp_path / "whole", "fedper", encrypt="all")
    broken = make_sites(tmp_path / "broken", "fedper", encrypt="all")

    class Break(RecordingObserver):
        def round(self, record):
            super().round(record)
            if record.t == 2:
                raise RuntimeError("power cut")

    with torch_settings(), pytest.raises(RuntimeError):
        broken.deploy(Break())
    result = broken.deploy(resume=True)
    assert result["hash"] == whole.deploy()["hash"]
    assert result["rounds"] == 3


def test_a_site_without_the_key_is_left_out_by_name(tmp_path):
    sites = make_sites(tmp_path, "fedavg", encrypt="all", rounds=1)
    sites.transport.services[FIRST_NODE].he_key = None
    observer = RecordingObserver()
    sites.deploy(observer)
    lines = [line for line in observer.lines if "client 0 is left out" in line]
    assert lines
    assert "this site has no key: start it with --he-key FILE" in lines[0]


def test_a_site_with_another_key_is_left_out_by_name(tmp_path):
    sites = make_sites(tmp_path, "fedavg", encrypt="all", rounds=1)
    other, _ = make_he_keys(tmp_path / "other", "bfv")
    sites.transport.services[FIRST_NODE].he_key = other
    observer = RecordingObserver()
    sites.deploy(observer)
    assert any("the run's key is" in line for line in observer.lines)


def test_a_key_that_others_can_read_is_refused(tmp_path):
    sites = make_sites(tmp_path, "fedavg", encrypt="all", rounds=1)
    key = tmp_path / "keys" / "he.key"
    key.chmod(0o644)
    observer = RecordingObserver()
    sites.deploy(observer)
    assert any("mode 644): chmod 600" in line for line in observer.lines)


def test_no_key_serves_two_runs(tmp_path):
    sites = make_sites(tmp_path, "fedavg", encrypt="all", rounds=1)
    sites.deploy(out="first")
    observer = RecordingObserver()
    sites.deploy(observer, out="second")
    assert any("every run has a key of its own" in line for line in observer.lines)
    used = json.loads((tmp_path / "state-0" / "he-keys.json").read_text())
    assert len(used) == 1


def test_damaged_bytes_from_a_site_leave_it_out(tmp_path):
    """A byte of a ciphertext changes on its way."""
    sites = make_sites(tmp_path, "fedavg", encrypt="all", rounds=1)

    def damage(node: int, message: bytes) -> bytes | None:
        answer = sites.transport.services[node].answer_message(message)
        if node != FIRST_NODE or len(answer) < 100_000:
            return answer
        return answer[:-5000] + bytes([answer[-5000] ^ 1]) + answer[-4999:]

    sites.transport.fault = damage
    observer = RecordingObserver()
    sites.deploy(observer)
    lost = [line for line in observer.lines if "client 0 is left out" in line]
    assert "damaged ciphertexts" in lost[0]


def test_a_method_that_needs_more_than_sums_is_refused_before_anything_is_sent(
    tmp_path,
):
    sites = make_sites(tmp_path, "fedamp", encrypt="all")
    with pytest.raises(UserError, match="encrypt=all: fedamp looks at every client"):
        sites.deploy()
    assert len(sites.transport.traffic) == 3  # hellos


def test_a_run_without_a_named_key_does_not_begin(tmp_path):
    sites = FakeSites(tmp_path, "fedavg", encrypt="all")
    with pytest.raises(UserError, match="--he-public"):
        sites.deploy()
