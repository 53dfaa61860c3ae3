"""What ``fedtailor methods`` and ``fedtailor show`` say is what the methods do."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedtailor.describe import describe, traffic
from fedtailor.methods import find, names
from fedtailor.report import listing


def printed(draw, *words) -> str:
    console = Console(width=1000, record=True, file=io.StringIO())
    draw(console, *words)
    return console.export_text()


def test_the_table_has_all_methods_with_paper_traffic_and_defaults() -> None:
    lines = printed(listing.methods).splitlines()
    rows = {cells[1].strip(): cells for line in lines if len(cells := line.split("│")) > 7 and cells[1].strip()}
    assert set(rows) == set(names()) and len(rows) == 28
    for name, cells in rows.items():
        about = describe(find(name))
        assert about.year and about.paper[:20] in cells[3]
        assert all(cells[i].strip() for i in (2, 4, 5, 6)), name
    text = "\n".join(lines)
    missing = [(n, h.name) for n in names() for h in describe(find(n)).hyper if f"{h.name}={h.default}" not in text]
    assert not missing


def test_traffic_is_relative_to_fedavg_on_the_same_network() -> None:
    up, down = traffic(find("mocha"))
    assert up == 1 and 1 < down < 1.02, "both send a linear model, MOCHA also a row of relations"
    assert traffic(find("fedavg")) == (1, 1) and traffic(find("local")) == (0, 0)
    assert traffic(find("fedem"))[1] == pytest.approx(3, abs=0.01), "three models"
    assert traffic(find("fedbn"))[0] < 1, "the normalisation stays at home"
    assert traffic(find("fedper"))[0] < 1


@pytest.mark.parametrize("name", names())
def test_private_means_that_it_never_goes_up(name: str) -> None:
    about = describe(find(name))
    assert not {p.name for p in about.keep} & set(find(name).also_sent)
    assert {p.name for p in about.lent} == set(find(name).also_sent)


def test_all_that_goes_up_is_told() -> None:
    """PACFL sends directions of its data before the first round, FedClust a trained layer, FedMA class counts."""
    for name, what in (("pacfl", "directions of every class"), ("fedclust", "final layer"), ("fedma", "class")):
        ups = " ".join(p.comment for call in describe(find(name)).calls for p in call.up)
        assert what in ups, (name, ups)
    assert "goes up, in span" in printed(listing.show, "pacfl")
    shown = printed(listing.show, "fedamp")
    assert "stays, and goes up" in shown and "never leaves" in shown
