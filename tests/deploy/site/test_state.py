"""Private state on a site's disk: its versions, and the way back to one."""

import json

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.deploy.site.state import VersionedState, delete_leftovers
from fedtailor.filters import SETUP_CALLS


def make_flat(value: float) -> dict:
    return {"keep/w": torch.full((3,), value)}


def read_value(state: VersionedState) -> float | None:
    flat = state.get(0)
    return None if flat is None else float(flat["keep/w"][0])


@pytest.fixture
def state(tmp_path):
    made = VersionedState(tmp_path, "r", "a")
    made.begin_attempt(1, 0)
    return made


def fill(state: VersionedState, *tags: tuple[int, int]) -> None:
    for t, call in tags:
        state.begin_visit(t, call)
        state.put(0, make_flat(t + call / 10000))


def test_a_visit_starts_from_the_newest_version_before_it(state):
    fill(state, (1, 1), (1, 2), (2, 1))
    state.begin_visit(3, 1)
    assert read_value(state) == pytest.approx(2.0001)
    state.begin_visit(1, 2)
    assert read_value(state) == pytest.approx(1.0001)
    assert state.tags() == [(1, 1)], (
        "what was written in the visit that is made again, and after it, is void"
    )


def test_a_visit_made_twice_gives_the_same(state):
    fill(state, (1, 1))
    for _ in range(2):
        state.begin_visit(2, 1)
        state.put(0, {"keep/w": state.get(0)["keep/w"] * 2})
        state.begin_evaluation()
        assert read_value(state) == pytest.approx(2 * 1.0001)


def test_an_evaluation_sees_the_state_after_its_round(state):
    fill(state, (1, 1), (1, SETUP_CALLS + 1), (2, 1))
    state.begin_evaluation(1)
    assert read_value(state) == pytest.approx(1.0001), (
        "what setup did for the next round came after it"
    )
    state.begin_evaluation()
    assert read_value(state) == pytest.approx(2.0001)


def test_a_server_that_goes_on_from_a_checkpoint_takes_its_sites_back(state, tmp_path):
    fill(state, (1, 1), (2, 1), (2, SETUP_CALLS + 1), (3, 1))
    again = VersionedState(tmp_path, "r", "a")
    again.begin_attempt(2, 2)
    assert again.tags() == [(1, 1), (2, 1)]
    again.begin_attempt(2, 0)  # the same start: nothing more is void
    assert again.tags() == [(1, 1), (2, 1)]
    with pytest.raises(UserError, match="start 1 of the run"):
        again.begin_attempt(1, 0)


def test_what_no_checkpoint_can_ask_for_is_deleted(state):
    fill(state, (1, 1), (2, 1), (4, 1), (5, 1))
    state.delete_covered(3)
    assert state.tags() == [(2, 1), (4, 1), (5, 1)]


def test_state_is_bound_to_run_and_site(state, tmp_path):
    with pytest.raises(UserError, match="belongs to run r of site 'a'"):
        VersionedState(tmp_path, "other", "a")
    with pytest.raises(UserError, match="belongs to run r"):
        VersionedState(tmp_path, "r", "b")
    assert json.loads((tmp_path / "about.json").read_text())["attempt"] == 1


def test_half_a_file_is_no_version(state, tmp_path):
    fill(state, (1, 1))
    (tmp_path / "keep" / ".00000002-00000001.safetensors.4711").write_bytes(b"half")
    assert state.tags() == [(1, 1)]
    delete_leftovers(tmp_path)
    assert len(list((tmp_path / "keep").iterdir())) == 1


def test_a_damaged_file_is_told(state, tmp_path):
    fill(state, (1, 1))
    (tmp_path / "keep/00000001-00000001.safetensors").write_bytes(b"x" * 40)
    state.begin_evaluation()
    with pytest.raises(UserError, match="is damaged"):
        state.get(0)


def test_the_digest_tells_states_apart(state):
    assert state.digest_newest() == ""
    fill(state, (1, 1))
    first = state.digest_newest()
    fill(state, (2, 1))
    assert len(first) == 64 and state.digest_newest() != first


def test_only_the_owner_can_read_it(state):
    assert state.folder.stat().st_mode & 0o077 == 0
