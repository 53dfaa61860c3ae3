"""Private state on a site's disk: versions, and the way back to one."""

import json

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.deploy.site.state import Versions, tidy
from fedtailor.engine.exchange import LATER


def state(value: float) -> dict:
    return {"keep/w": torch.full((3,), value)}


def value(versions: Versions) -> float | None:
    flat = versions.get(0)
    return None if flat is None else float(flat["keep/w"][0])


@pytest.fixture
def versions(tmp_path):
    v = Versions(tmp_path, "r", "a")
    v.go_on(1, 0)
    return v


def fill(versions: Versions, *tags: tuple[int, int]) -> None:
    for t, call in tags:
        versions.begin(t, call)
        versions.put(0, state(t + call / 10000))


def test_a_visit_starts_from_the_newest_version_before_it(versions):
    fill(versions, (1, 1), (1, 2), (2, 1))
    versions.begin(3, 1)
    assert value(versions) == pytest.approx(2.0001)
    versions.begin(1, 2)
    assert value(versions) == pytest.approx(1.0001)
    assert versions.tags() == [(1, 1)], (
        "what was written in the visit that is made again, and after it, is void"
    )


def test_a_visit_made_twice_gives_the_same(versions):
    fill(versions, (1, 1))
    for _ in range(2):
        versions.begin(2, 1)
        versions.put(0, {"keep/w": versions.get(0)["keep/w"] * 2})
        versions.observe()
        assert value(versions) == pytest.approx(2 * 1.0001)


def test_an_evaluation_sees_the_state_after_its_round(versions):
    fill(versions, (1, 1), (1, LATER + 1), (2, 1))
    versions.observe(1)
    assert value(versions) == pytest.approx(1.0001), (
        "what setup did for the next round came after it"
    )
    versions.observe()
    assert value(versions) == pytest.approx(2.0001)


def test_a_server_that_goes_on_from_a_checkpoint_takes_its_sites_back(versions, tmp_path):
    fill(versions, (1, 1), (2, 1), (2, LATER + 1), (3, 1))
    again = Versions(tmp_path, "r", "a")
    again.go_on(2, 2)
    assert again.tags() == [(1, 1), (2, 1)]
    again.go_on(2, 0)  # the same start: nothing more is void
    assert again.tags() == [(1, 1), (2, 1)]
    with pytest.raises(UserError, match="start 1 of the run"):
        again.go_on(1, 0)


def test_what_no_checkpoint_can_ask_for_is_deleted(versions):
    fill(versions, (1, 1), (2, 1), (4, 1), (5, 1))
    versions.forget(3)
    assert versions.tags() == [(2, 1), (4, 1), (5, 1)]


def test_state_is_bound_to_run_and_site(versions, tmp_path):
    with pytest.raises(UserError, match="belongs to run r of site 'a'"):
        Versions(tmp_path, "other", "a")
    with pytest.raises(UserError, match="belongs to run r"):
        Versions(tmp_path, "r", "b")
    assert json.loads((tmp_path / "about.json").read_text())["attempt"] == 1


def test_half_a_file_is_no_version(versions, tmp_path):
    fill(versions, (1, 1))
    (tmp_path / "keep" / ".00000002-00000001.safetensors.4711").write_bytes(b"half")
    assert versions.tags() == [(1, 1)]
    tidy(tmp_path)
    assert len(list((tmp_path / "keep").iterdir())) == 1


def test_a_damaged_file_is_told(versions, tmp_path):
    fill(versions, (1, 1))
    (tmp_path / "keep/00000001-00000001.safetensors").write_bytes(b"x" * 40)
    versions.observe()
    with pytest.raises(UserError, match="is damaged"):
        versions.get(0)


def test_the_digest_tells_states_apart(versions):
    assert versions.digest() == ""
    fill(versions, (1, 1))
    first = versions.digest()
    fill(versions, (2, 1))
    assert len(first) == 64 and versions.digest() != first


def test_only_the_owner_can_read_it(versions):
    assert versions.folder.stat().st_mode & 0o077 == 0
