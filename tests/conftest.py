"""What all tests share: one thread, and the real data sets where they are at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import pytest
import torch

from fedtailor.data import is_available
from fedtailor.data.catalogue import find_entry

torch.set_num_threads(1)
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
OFFICIAL = ("mnist", "fashion_mnist")  # their official files are there as they are


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use real data, and let workers run what test modules define.

    Worker processes cannot import test modules, so their methods and filters are sent whole.
    """
    for module in {getattr(item, "module", None) for item in items}:
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def real_data(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Path]]:
    """``real_data(name)`` gives a data folder that holds the real data set.

    The test is skipped where there is none.
    """
    ready: dict[str, Path] = {}

    def provide(name: str) -> Path:
        entry = find_entry(name)
        given = os.environ.get("FEDTAILOR_DATA")
        if given and is_available(entry, Path(given)):
            return Path(given)
        if entry.name not in ready:
            ready[entry.name] = _unpack(entry.name, tmp_path_factory)
        return ready[entry.name]

    yield provide
    for folder in ready.values():  # half a gigabyte together
        shutil.rmtree(folder)


def _unpack(name: str, factory: pytest.TempPathFactory) -> Path:
    script = SHARED / "unpack.py"
    if not script.exists():
        pytest.skip(f"no real {name}: FEDTAILOR_DATA does not name a folder with it")
    folder = factory.mktemp(f"real_{name}")
    if name in OFFICIAL:
        (folder / name).mkdir()
        for file in sorted((SHARED / name).glob("*.gz")):
            (folder / name / file.name).symlink_to(file)
        return folder
    done = subprocess.run(
        [sys.executable, str(script), str(folder), name],
        capture_output=True,
        text=True,
        check=False,
    )
    if "no data set" in done.stderr:
        pytest.skip(f"no real {name}: {done.stderr.strip()}")
    done.check_returncode()
    return folder
