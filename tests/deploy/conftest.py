"""Quick looks at sites next door."""

import pytest

from fedtailor.deploy.server import executor as flower


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Sites in this process answer at once."""
    monkeypatch.setattr(flower, "POLL", 0.002)
    monkeypatch.setattr(flower, "LOOK", 0.01)
    monkeypatch.setattr(flower, "AGAIN", 0.01)
    monkeypatch.setattr(flower, "SILENT", 0.1)
