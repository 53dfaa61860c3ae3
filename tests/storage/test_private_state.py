"""Both stores keep private states by client."""

import pytest
import torch

from fedtailor.storage.private_state import FileStore, MemoryStore


@pytest.fixture(params=["memory", "files"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else FileStore(tmp_path / "state")


def test_states_are_kept_by_client_and_listed_in_order(store):
    assert store.clients() == []
    assert store.get(10) is None
    store.put(10, {"keep/w": torch.ones(2)})
    store.put(9, {"keep/n": 1})
    store.put(9, {"keep/n": 2})
    assert store.clients() == [9, 10]
    assert store.get(9) == {"keep/n": 2}
    assert torch.equal(store.get(10)["keep/w"], torch.ones(2))


def test_another_process_sees_the_same_files(tmp_path):
    FileStore(tmp_path).put(3, {"keep/n": 7})
    assert FileStore(tmp_path).get(3) == {"keep/n": 7}
