"""Counts, the table and the bubble chart of a federation."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation
from fedtailor.report.partition_chart import (
    count_samples,
    draw_partition,
    make_partition_rows,
)


def federate(
    held: list[list[int]], owners: tuple[str, ...] = (), labels: tuple[str, ...] = ()
) -> Federation:
    """Clients with so many samples of each class; the last tests, the one before validates, the
    others train.
    """
    y = torch.cat([torch.full((n,), c) for row in held for c, n in enumerate(row)])
    own = torch.arange(len(y)).split([sum(row) for row in held])
    return Federation(
        name="world",
        kind="table",
        x=torch.zeros(len(y), 1),
        y=y,
        classes=len(held[0]),
        train=[i[:-2] for i in own],
        val=[i[-2:-1] for i in own],
        test=[i[-1:] for i in own],
        owners=owners,
        labels=labels,
        settings={"partition": "by $hand"},
    )


def red_pixels(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return (picture[..., 0] > 150) & (picture[..., 1] < 140)


def test_counts_are_those_of_the_parts() -> None:
    held = [[5, 0, 3], [0, 7, 1], [2, 2, 2]]
    federation = federate(held)
    assert count_samples(federation, "all").tolist() == held
    assert count_samples(federation, "test").tolist() == [[0, 0, 1]] * 3
    assert count_samples(federation).tolist() == [[5, 0, 1], [0, 6, 0], [2, 2, 0]]
    assert torch.equal(
        sum(count_samples(federation, p) for p in ("train", "val", "test")),
        torch.tensor(held),
    )


def test_the_table_has_a_row_a_client() -> None:
    rows = make_partition_rows(
        federate(
            [[5, 0, 3], [1, 7, 2]],
            owners=("north", "south"),
            labels=("cat", "dog", "hen"),
        ),
        shown=2,
    )
    assert rows[0] == (0, "north", 6, 1, 1, 2, "cat: 5, hen: 3")
    assert rows[1] == (1, "south", 8, 1, 1, 3, "dog: 7, hen: 2 ...")
    assert make_partition_rows(federate([[9]]))[0].owner == ""


def test_the_area_of_a_bubble_is_its_samples(tmp_path: Path) -> None:
    """Three clients in far columns: their bubbles' pixels are as their samples, and empty cells
    stay white.
    """
    png, svg, _ = draw_partition(
        federate([[400, 0], [100, 0], [0, 200]]), tmp_path / "deep" / "p"
    )
    assert (png, svg) == (tmp_path / "deep" / "p.png", tmp_path / "deep" / "p.svg")
    red = red_pixels(png)
    # inches: the margin beside one-digit class numbers, and the plot
    left, width = (
        0.5 + 0.08,
        4.5,
    )
    total = red.shape[1] / 150
    assert total == pytest.approx(left + width + 1.4, abs=0.05)
    edges = [round((left + width * i / 3) * 150) for i in range(4)]
    middle = red.shape[0] // 2
    area = [
        [int(half[:, a:b].sum()) for a, b in itertools.pairwise(edges)]
        for half in (red[middle:], red[:middle])
    ]
    assert area[0][0] / area[0][1] == pytest.approx(4, rel=0.08)
    assert area[1][2] / area[0][1] == pytest.approx(2, rel=0.08)
    assert area[0][2] == area[1][0] == area[1][1] == 0


@pytest.mark.parametrize(
    ("clients", "classes"), [(1, 1), (20, 10), (100, 100), (500, 10), (3000, 4)]
)
def test_charts_of_every_size_can_be_seen(
    tmp_path: Path, clients: int, classes: int
) -> None:
    rng = np.random.default_rng(0)
    held = (rng.dirichlet(np.full(classes, 0.3), clients) * 60).astype(int) + np.eye(
        clients, classes, dtype=int
    ) * 3
    held[held.sum(1) < 3, 0] += 3
    png, svg, _ = draw_partition(federate(held.tolist()), tmp_path / "p")
    with Image.open(png) as picture:
        assert 600 <= picture.width <= 3600 and 400 <= picture.height <= 3000
    assert 0.002 < red_pixels(png).mean() < 0.4
    assert svg.stat().st_size < 4_000_000
    text = svg.read_text()
    assert text.rstrip().endswith("</svg>") and "by $hand" in text


def test_names_stand_at_the_axes_and_drawing_is_repeatable(tmp_path: Path) -> None:
    owners, labels = ("Ann & Bob", "C$im$"), ("<low>", "high")
    federation = federate([[5, 1], [2, 9]], owners, labels)
    before = dict(matplotlib.rcParams)
    first = [path.read_bytes() for path in draw_partition(federation, tmp_path / "a")]
    second = [path.read_bytes() for path in draw_partition(federation, tmp_path / "b")]
    assert first == second and dict(matplotlib.rcParams) == before
    words = re.findall(r">([^<>]+)</text>", first[1].decode())
    assert {
        "Ann &amp; Bob",
        "C$im$",
        "&lt;low&gt;",
        "high",
        "client",
        "class",
        "samples",
    } <= set(words)
    # another test's doing: no figure of ours is open there
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the chart"):
        draw_partition(federate([[4]]), tmp_path / "file" / "p")
