"""Short pauses for sites in this process, which answer at once."""

import pytest

from fedtailor.deploy.server import executor


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(executor, "POLL", 0.002)
    monkeypatch.setattr(executor, "LOOK", 0.01)
    monkeypatch.setattr(executor, "AGAIN", 0.01)
    monkeypatch.setattr(executor, "SILENT", 0.1)
