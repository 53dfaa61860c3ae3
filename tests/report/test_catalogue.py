"""What ``fedtailor methods`` and ``fedtailor show`` say is what the methods do."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from fedtailor.methods import find, names
from fedtailor.report import catalogue
from fedtailor.testing.method_card import describe_method, measure_traffic


def printed(draw, *words) -> str:
    console = Console(width=1000, record=True, file=io.StringIO())
    draw(console, *words)
    return console.export_text()


def test_methods_are_a_table_of_one_line_each() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    catalogue.print_methods(console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) < 40
    told = {row[0]: row for row in [line.split() for line in lines] if row}
    assert set(names()) <= told.keys()
    for name in names():
        up, down = told[name][-2:]
        assert float(up) >= 0 and float(down) >= 0
        assert describe_method(find(name)).year in told[name]
    wide = printed(catalogue.print_methods)
    for name in names():
        purpose = describe_method(find(name)).title.partition(": ")[2]
        assert purpose in wide, name


@pytest.mark.parametrize("name", names())
def test_show_tells_paper_border_traffic_and_defaults(name: str) -> None:
    about = describe_method(find(name))
    text = printed(catalogue.print_method, name)
    flat = " ".join(text.split())
    assert about.year and " ".join(about.paper.split()) in flat
    assert "bytes per round on the trial network" in flat
    assert all(str(h.default) in flat and h.doc in flat for h in about.hyper)
    assert all(p.doc in flat for p in about.keep)


def test_traffic_is_relative_to_fedavg_on_the_same_network() -> None:
    up, down = measure_traffic(find("mocha"))
    assert up == 1 and 1 < down < 1.02, (
        "both send a linear model, MOCHA also a row of relations"
    )
    assert measure_traffic(find("fedavg")) == (1, 1) and measure_traffic(
        find("local")
    ) == (0, 0)
    assert measure_traffic(find("fedem"))[1] == pytest.approx(3, abs=0.01), (
        "three models"
    )
    assert measure_traffic(find("fedbn"))[0] < 1, "the normalisation stays at home"
    assert measure_traffic(find("fedper"))[0] < 1


@pytest.mark.parametrize("name", names())
def test_private_means_that_it_never_goes_up(name: str) -> None:
    about = describe_method(find(name))
    assert not {p.name for p in about.keep} & set(find(name).also_sent)
    assert {p.name for p in about.also_sent} == set(find(name).also_sent)


def test_all_that_goes_up_is_told() -> None:
    """PACFL sends directions of its data before the first round, FedClust a trained layer,
    FedMA class counts.
    """
    for name, what in (
        ("pacfl", "directions of every class"),
        ("fedclust", "final layer"),
        ("fedma", "class"),
    ):
        ups = " ".join(
            p.doc for call in describe_method(find(name)).calls for p in call.up
        )
        assert what in ups, (name, ups)
    assert "goes up, in span" in printed(catalogue.print_method, "pacfl")
    shown = printed(catalogue.print_method, "fedamp")
    assert "stays, and goes up" in shown and "never leaves" in shown


def test_types_are_written_as_people_write_them() -> None:
    kinds = {
        (name, h.name): h.kind
        for name in names()
        for h in describe_method(find(name)).hyper
    }
    assert kinds["fedcp", "lam"] == "float or None" and kinds["fedcp", "depth"] == "int"
    assert kinds["fedcp", "gate"] == "softmax | gumbel | gumbel_always"
    assert kinds["fed3p2p", "num_type_b"] == "int or silhouette or None"
    pieces = {p.name: p.kind for p in describe_method(find("pfedc")).server}
    assert pieces == {
        "base": "Params",
        "first": "Params",
        "sums": "tuple[RoundSums, ...]",
        "senders": "tuple[tuple[int, ...], ...]",
        "owned": "dict[int, Owned]",
    }
    odd = ("Optional", "Annotated", "Union", "typing", "Literal", "<class")
    assert not [k for k, kind in kinds.items() if any(word in kind for word in odd)]


def test_prose_is_as_wide_as_the_screen_and_lists_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console = Console(width=60, record=True, file=io.StringIO())
    catalogue.print_method(console, "ditto")
    prose = (
        console.export_text().split("Hyper-parameters")[0].split("\n\n")[2].splitlines()
    )
    assert len(prose) > 5 and all(len(line) > 40 for line in prose[:-1])
    about = replace(
        describe_method(find("fedavg")),
        text="Short.\n\n- one\n- two\n\n    x = 1\n    y = 2",
    )
    monkeypatch.setattr(catalogue, "describe_method", lambda cls: about)
    assert "- one\n- two\n\n    x = 1\n    y = 2\n" in printed(
        catalogue.print_method, "fedavg"
    )
