"""A checkpoint is complete or not there, and refused by name if it is damaged or another run's."""

import json
import os

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.storage.checkpoint import Checkpoints
from fedtailor.storage.private_state import FileStore, MemoryStore

ABOUT = {"identity": "me"}


def filled(store, n=3):
    for k in range(n):
        store.put(k, {"keep/w": torch.full((4,), float(k)), "keep/n": k})
    return store


@pytest.mark.parametrize(
    "make", [lambda p: MemoryStore(), lambda p: FileStore(p / "state")]
)
def test_there_and_back(tmp_path, make):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, {"server/w": torch.arange(3.0)}, filled(make(tmp_path)), ABOUT)
    fresh = MemoryStore()
    saved = checkpoints.load(fresh, "me")
    assert saved.t == 7 and torch.equal(saved.server["server/w"], torch.arange(3.0))
    assert fresh.clients() == [0, 1, 2] and fresh.get(2)["keep/n"] == 2
    assert fresh.get(2)["keep/w"].tolist() == [2.0] * 4


def test_only_the_newest_is_kept_and_what_did_not_change_is_linked(tmp_path):
    checkpoints, store = Checkpoints(tmp_path), filled(MemoryStore())
    checkpoints.save(1, {"a": 1}, store, ABOUT)
    before = os.stat(tmp_path / "checkpoint/round-000001/keep/0.safetensors").st_ino
    store.put(1, {"keep/w": torch.zeros(4)})
    checkpoints.save(2, {"a": 2}, store, ABOUT)
    assert [p.name for p in (tmp_path / "checkpoint").iterdir()] == ["round-000002"]
    assert (
        os.stat(tmp_path / "checkpoint/round-000002/keep/0.safetensors").st_ino
        == before
    )
    assert checkpoints.load(MemoryStore(), "me").server == {"a": 2}


def test_an_unfinished_one_is_ignored(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": 1}, filled(MemoryStore()), ABOUT)
    half = tmp_path / "checkpoint/round-000002/keep"
    half.mkdir(parents=True)
    (half / "0.safetensors").write_bytes(b"half")
    assert checkpoints.load(MemoryStore(), "me").t == 1


def damage_state(folder):
    (folder / "state.json").write_text("{")


def damage_keep(folder):
    path = folder / "keep/1.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def lose_server(folder):
    (folder / "server.safetensors").unlink()


def other_format(folder):
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | {"format": 99}))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (damage_state, "state.json is damaged"),
        (damage_keep, "1.safetensors has another checksum"),
        (lose_server, "server.safetensors is missing"),
        (other_format, "another version"),
    ],
)
def test_damage_is_refused_by_name_and_nothing_is_half_loaded(tmp_path, how, words):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, {"a": torch.ones(2)}, filled(MemoryStore()), ABOUT)
    how(tmp_path / "checkpoint/round-000003")
    store = MemoryStore()
    with pytest.raises(UserError, match=words):
        checkpoints.load(store, "me")
    assert store.clients() == []


def test_another_runs_checkpoint_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, {"a": 1}, filled(MemoryStore()), ABOUT)
    with pytest.raises(UserError, match="another configuration"):
        checkpoints.load(MemoryStore(), "somebody else")
