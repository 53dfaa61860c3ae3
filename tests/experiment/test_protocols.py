"""The papers' protocols: what they set, what wins over them, and what is kept of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.cli.main import main
from fedtailor.experiment.config import Experiment, make_experiment, read_config
from fedtailor.experiment.protocols import PROTOCOLS

DOCS = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_sets_options_that_exist_for_every_data_set(name: str) -> None:
    protocol = PROTOCOLS[name]
    for data in ("digits", *protocol.by_data):
        chosen = make_experiment({"protocol": name, "data": data})
        for option, value in protocol.options_for(data).items():
            assert getattr(chosen, option) == value
        assert chosen.protocol == name
        assert chosen.validation == 0


def test_cd2_trains_as_its_paper_says() -> None:
    chosen = make_experiment(
        {"protocol": "cd2", "data": "cifar100", "method": "fedper"}
    )
    assert (chosen.momentum, chosen.nesterov, chosen.weight_decay) == (0.9, True, 5e-4)
    assert (chosen.epochs, chosen.batch, chosen.model) == (4, 128, "resnet34:cifar")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"epochs": 3}, {"epochs": 3, "batch": 32}),
        ({"model": None}, {"model": "lenet_mgda"}),  # as fedtailor.run gives it
        ({"data": "emnist:digits"}, {"batch": 32}),
        ({"protocol": "cd2", "momentum": 0}, {"momentum": 0.0, "nesterov": False}),
        ({"protocol": None}, {"validation": 0.1}),
    ],
)
def test_given_options_win(values: dict[str, Any], expected: dict[str, Any]) -> None:
    given = {"protocol": "pfedc", "data": "mnist", **values}
    chosen = make_experiment(given)
    assert {name: getattr(chosen, name) for name in expected} == expected


def test_a_run_keeps_the_name_and_all_values(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options: dict[str, Any] = {"rounds": 1, "clients": 3, "limit": 200, "batch": 8}
    fedtailor.run("fedavg", "digits", out=out, protocol="pfllib", **options)
    kept = read_config(out / "config.toml")
    assert kept["protocol"] == "pfllib"
    assert (kept["validation"], kept["batching"], kept["bn"]) == (0, "drop", "local")
    assert kept["batch"] == 8
    assert make_experiment(kept) == Experiment(**kept)
    by_hand = {
        name: value
        for name, value in PROTOCOLS["pfllib"].options.items()
        if name != "batch"
    }
    # the same run, each option given by hand, may go on with it
    fedtailor.run("fedavg", "digits", out=out, resume=True, **(options | by_hand))


def test_the_command_line_explains_and_tells(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedtailor", *words])
        with pytest.raises(SystemExit):
            main()
        printed = capsys.readouterr()
        return " ".join((printed.out + printed.err).split())

    assert "--protocol" in call("run", "--help")
    assert call("run", "--protocol", "pflib") == (
        "fedtailor: no protocol 'pflib'; did you mean pfllib?"
    )
    told = call(
        *("run", "--protocol", "pfllib", "--epochs", "2", "--rounds", "1"),
        *("--clients", "3", "--limit", "200"),
    )
    assert "protocol pfllib: split=merged:0.75, validation=0.0" in told
    assert "epochs=2 (not 1)" in told


def test_the_documents_table_says_what_protocols_set() -> None:
    rows = {}
    for line in DOCS.read_text().splitlines():
        found = re.fullmatch(r"\| `(\w+)`(?:, `([\w`, ]+)`)? \| (`.*`) \| .* \|", line)
        if found and found[1] in PROTOCOLS:
            datas = re.findall(r"\w+", found[2] or "")
            for data in datas or [""]:
                rows[found[1], data] = re.findall(r"`([^`]+)`", found[3])
    expected = {}
    for name, protocol in PROTOCOLS.items():
        expected[name, ""] = write_flags(protocol.options)
        for data, options in protocol.by_data.items():
            expected[name, data] = write_flags(options)
    assert rows == expected


def write_flags(options: Any) -> list[str]:
    flags = []
    for name, value in options.items():
        word = name.replace("_", "-")
        if value is True:
            flags.append(f"--{word}")
        elif value is False:
            flags.append(f"--no-{word}")
        else:
            flags.append(
                f"--{word} {value:g}"
                if isinstance(value, float)
                else f"--{word} {value}"
            )
    return flags


if __name__ == "__main__":  # the lines of the table
    for name, protocol in PROTOCOLS.items():
        cells = " ".join(f"`{flag}`" for flag in write_flags(protocol.options))
        print(f"| `{name}` | {cells} | {protocol.source} |")
        groups: dict[str, list[str]] = {}
        for data, options in protocol.by_data.items():
            cells = " ".join(f"`{flag}`" for flag in write_flags(options))
            groups.setdefault(cells, []).append(data)
        for cells, datas in groups.items():
            print(f"| `{name}`, `{'`, `'.join(datas)}` | {cells} | the same |")
