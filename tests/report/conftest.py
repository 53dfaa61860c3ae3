"""Runs that the tests of the report share, and a real browser to look at their page with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.report.html_report import write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
METHODS = ("local", "fedavg", "fedper")
OPTIONS: dict[str, Any] = {
    "clients": 4,
    "limit": 300,
    "rounds": 3,
    "lr": 0.1,
    "save": "none",
    "executor": "sequential",
}


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods with two seeds each, in one folder."""
    folder = tmp_path_factory.mktemp("comparison")
    for method in METHODS:
        for seed in (0, 1):
            out = folder / f"{method}-s{seed}"
            fedtailor.run(method, "digits", seed=seed, out=out, **OPTIONS)
    return folder


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run with views, a client that joins later, and lost replies."""
    folder = tmp_path_factory.mktemp("single") / "run"
    own = {**OPTIONS, "clients": 5, "views": "after", "drop": 0.4}
    fedtailor.run("fedcp", "digits", out=folder, late_clients="1@3", **own)
    return folder


@pytest.fixture(scope="session")
def page_of_comparison(comparison: Path) -> Path:
    return write_report([comparison], comparison / "report.html")


@pytest.fixture(scope="session")
def page_of_run(single: Path) -> Path:
    return write_report([single], single.parent / "report.html")


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Where pictures of the page are kept: $FEDTAILOR_SCREENSHOTS, or a git-ignored folder."""
    named = os.environ.get("FEDTAILOR_SCREENSHOTS")
    folder = Path(named) if named else Path(__file__).parents[2] / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real headless Chromium; without one the tests that need it are skipped by name."""
    playwright = pytest.importorskip("playwright.sync_api")
    found = [path for path in map(shutil.which, BROWSERS) if path]
    if not found:
        pytest.skip("no browser on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found[0], args=list(FLAGS))
        yield opened
        opened.close()
