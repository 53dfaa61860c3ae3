"""Digests by which two sites know that they run the same code."""

import shutil
from pathlib import Path

import pytest

from fedtailor.deploy.code_digests import (
    PACKAGE,
    digest_engine,
    digest_method,
    list_engine_files,
    list_method_files,
)
from fedtailor.methods import fedcp, fedprox, find, names
from test_architecture import MODULES, list_own_imports, room_of

ROOTS = ["deploy.site.run"]  # what a site does for a run ...
# ... with any method
ROOTS += [module for module in MODULES if room_of(module) == "methods"]
# the rest of data/ reads a site's own data
SHARED_DATA = (
    "data/federation.py",
    "data/partition",
)


def list_reachable() -> list[str]:
    """Files, relative to the package, on which the numbers of a client depend."""
    todo = list(ROOTS)
    reached: set[str] = set()
    while todo:
        module = todo.pop()
        if module in MODULES and module not in reached:
            reached.add(module)
            todo += list_own_imports(MODULES[module])
    files = []
    for module in reached:
        path = MODULES[module].relative_to(PACKAGE).as_posix()
        if room_of(module) in ("methods", "engine"):
            continue  # a method has a digest of its own; the engine room is the server's
        if room_of(module) == "data" and not path.startswith(SHARED_DATA):
            continue
        files.append(path)
    return sorted(files)


@pytest.fixture(scope="module")
def copied_package(tmp_path_factory) -> Path:
    package = tmp_path_factory.mktemp("digest") / "fedtailor"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, package, ignore=ignored)
    return package


def digest_copy(package: Path) -> str:
    return digest_engine.__wrapped__(package)


def test_the_digest_changes_with_every_file_that_decides_a_clients_numbers(
    copied_package,
):
    unchanged = digest_copy(copied_package)
    assert unchanged == digest_engine(), "the place of the package does not matter"
    reachable = list_reachable()
    assert len(reachable) > 60
    unnoticed = []
    for name in reachable:
        path = copied_package / name
        before = path.read_bytes()
        path.write_bytes(before + b"\n# changed\n")
        if digest_copy(copied_package) == unchanged:
            unnoticed.append(name)
        path.write_bytes(before)
    assert not unnoticed
    assert digest_copy(copied_package) == unchanged


def test_a_new_file_in_a_room_of_the_engine_changes_the_digest(copied_package):
    unchanged = digest_copy(copied_package)
    path = copied_package / "maths" / "another.py"
    path.write_text("")
    assert digest_copy(copied_package) != unchanged
    path.unlink()


def test_what_a_site_reads_its_data_with_and_what_shows_results_do_not_count(
    copied_package,
):
    unchanged = digest_copy(copied_package)
    for name in (
        "data/readers/npz.py",
        "report/leaderboard.py",
        "deploy/server/sites.py",
    ):
        path = copied_package / name
        path.write_bytes(path.read_bytes() + b"\n# changed\n")
    assert digest_copy(copied_package) == unchanged


def test_every_file_of_the_engine_is_there():
    files = list_engine_files()
    assert len(set(files)) == len(files)
    assert all(path.is_file() for path in files)


def test_methods_have_digests_of_their_own(tmp_path):
    digests = {name: digest_method(find(name)) for name in names()}
    assert len(set(digests.values())) == len(digests)
    copy = tmp_path / "mine.py"
    copy.write_bytes(Path(fedprox.__file__).read_bytes())
    assert digest_method(find(str(copy))) == digests["fedprox"], (
        "the content counts, not the place"
    )


def test_the_method_that_a_method_derives_from_counts():
    class Mine(fedcp.FedCP):
        pass

    assert list_method_files(Mine) == [Path(__file__), Path(fedcp.__file__)]
    assert digest_method(Mine) != digest_method(fedcp.FedCP)
