"""Fixtures for the tests of data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from data_helpers import FileServer, serve_files


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A web server on this machine."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve_files() as running:
        yield running
