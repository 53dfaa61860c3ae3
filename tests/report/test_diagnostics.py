"""What methods tell of their clients is gathered as it was recorded, and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.report import diagnostics


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("fedcp", {"PIR", "s"}),
        (
            "pfedc",
            {
                "acc_multiclass",  # and no acc_group: with a class a group it is the same
                "acc_task_all",
                "acc_task_present",
                "acc_task_balanced",
            },
        ),
        ("cd2pfed", {"private", "shared"}),
    ],
)
def test_notes_of_every_round_are_drawn(
    method: str, told: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, str] = {}
    for kind in ("_draw_numbers", "_draw_distributions"):

        def listen(
            *args: object, kind: str = kind, draw: object = getattr(diagnostics, kind)
        ) -> None:
            drawn[str(args[-1])] = kind
            draw(*args)  # type: ignore[operator]

        monkeypatch.setattr(diagnostics, kind, listen)
    fedtailor.run(
        method=method, data="digits", clients=4, rounds=3, out=tmp_path / "run"
    )
    assert set(drawn) == told and [
        k for k, kind in drawn.items() if kind == "_draw_distributions"
    ] == ["s"] * ("s" in told)
    assert all(
        (tmp_path / f"run/notes.{end}").stat().st_size > 10_000
        for end in ("png", "svg")
    )
    records = [
        json.loads(line)
        for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()
    ]
    for name, series in diagnostics.collect_series(records).items():
        assert series == {r["t"]: r["evaluation"]["notes"][name] for r in records}
        assert list(series) == [1, 2, 3] and all(
            by.keys() == {"0", "1", "2", "3"} for by in series.values()
        )


@pytest.mark.parametrize(("clients", "lines", "bands"), [(2, 2 + 1, 0), (100, 1, 1)])
def test_many_clients_are_a_band(
    clients: int,
    lines: int,
    bands: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(
        diagnostics,
        "save_figure",
        lambda figure, stem: figures.append(figure) or [stem],
    )
    by = {str(k): k / clients for k in range(clients)}
    assert diagnostics.draw_diagnostics(
        tmp_path, [{"t": t, "evaluation": {"notes": {"test/PIR": by}}} for t in (1, 2)]
    )
    (axes,) = figures[0].axes
    assert (len(axes.lines), len(axes.collections)) == (lines, bands)


def test_a_method_that_notes_nothing_has_no_picture(tmp_path: Path) -> None:
    fedtailor.run(
        method="fedavg", data="digits", clients=4, rounds=1, out=tmp_path / "run"
    )
    assert (
        not (tmp_path / "run/notes.png").exists()
        and (tmp_path / "run/curves.png").exists()
    )
