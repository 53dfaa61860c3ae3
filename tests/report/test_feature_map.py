"""Maps of features and pictures of Grad-CAM as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedtailor
from fedtailor.experiment.feature_table import FeatureTable
from fedtailor.experiment.grad_cam import Maps
from fedtailor.report.feature_map import draw_features, place_features
from fedtailor.report.grad_cam_picture import as_picture, draw_grad_cam

KINDS = ("png", "svg", "pdf")


def make_table(classes: int, clients: int, each: int = 6) -> FeatureTable:
    """Examples around a point of their class, dealt to clients."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    features = generator.normal(size=(len(labels), 4)) + 20 * labels[:, None]
    owners = np.arange(len(labels)) % clients
    return FeatureTable(features.astype(np.float32), labels, owners, (), True)


def test_classes_that_are_apart_are_apart_in_the_map() -> None:
    table = make_table(3, 2)
    places = place_features(table, seed=0, perplexity=30)
    assert np.array_equal(places, place_features(table, seed=0, perplexity=30))
    centres = np.stack([places[table.labels == c].mean(0) for c in range(3)])
    nearest = ((places[:, None] - centres) ** 2).sum(-1).argmin(1)
    assert np.array_equal(nearest, table.labels)
    with pytest.raises(fedtailor.UserError, match="too few for a map"):
        place_features(make_table(1, 1, each=3), 0, 30)


def test_a_map_and_a_panel_for_every_client(tmp_path: Path) -> None:
    table = make_table(12, 3)  # more classes than colours
    places = np.random.default_rng(1).normal(size=(len(table), 2))
    files = draw_features(tmp_path / "map", table, places, "a title")
    names = [path.name for path in files]
    assert names == [
        f"{stem}.{kind}" for stem in ("map", "map_clients") for kind in KINDS
    ]
    assert "a title" in (tmp_path / "map.svg").read_text()
    alone = make_table(2, 1)
    files = draw_features(tmp_path / "one", alone, places[: len(alone)], "a title")
    assert len(files) == len(KINDS)


def test_a_picture_of_grad_cam(tmp_path: Path) -> None:
    images = torch.rand(2, 3, 6, 6)
    heat = torch.rand(2, 6, 6)
    heat[1] = 0
    found = Maps(torch.tensor([1, 2]), {"whole model": heat}, "base.conv2")
    files = draw_grad_cam(tmp_path / "cam", images, ["a", "b"], found, "title")
    assert [path.suffix for path in files] == [".png", ".svg", ".pdf"]
    assert "nothing speaks" in (tmp_path / "cam.svg").read_text()
    assert as_picture(images[0]).shape == (6, 6, 3)
    assert as_picture(images[0][:1]).shape == (6, 6)
