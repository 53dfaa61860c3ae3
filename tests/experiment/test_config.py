"""Options: their tags, their names, and what they accept."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from typing import Any

import pytest

import fedtailor
from fedtailor.experiment.config import (
    RENAMED,
    Experiment,
    Tags,
    make_experiment,
    options_in,
    options_that_decide,
    parse_late_clients,
    parse_participation,
    read_config,
    simulation_options,
    tags_of,
)
from fedtailor.training.optim import OPTIMISERS

# Another value than the default, of every option.
CHANGES: dict[str, Any] = {
    "method": "ditto",
    "set": {"lam": 0.5},
    "name": "Ditto, pulled less",
    "protocol": "pfllib",
    "data": "mnist",
    "data_dir": "elsewhere",
    "missing": "median",
    "partition": "iid",
    "clients": 7,
    "split": "official",
    "validation": 0.2,
    "limit": 100,
    "stratify": False,
    "model": "mlp",
    "norm": "group",
    "rounds": 3,
    "seed": 1,
    "participation": "0.1..0.5",
    "drop": 0.1,
    "late_clients": "2@3",
    "new_clients": 2,
    "newcomer_epochs": 3,
    "max_silent_rounds": 2,
    "lr": 0.3,
    "lr_decay": 0.9,
    "epochs": 2,
    "batch": 5,
    "optimiser": "other",
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 0.1,
    "batching": "drop",
    "bn": "local",
    "filters": "tap",
    "aggregate": "median",
    "encrypt": "all",
    "he": "ckks",
    "he_key": "0123456789abcdef",
    "sum_range": 4.0,
    "sum_clients": 50,
    "sum_weight": 100,
    "change_limit": 5.0,
    "secure_sum": True,
    "secure_threshold": 0.7,
    "secure_neighbours": 8,
    "attack": "sign_flip",
    "attackers": 0.3,
    "sampling": "poisson",
    "dp": "client",
    "dp_clip": 2.0,
    "dp_noise": 1.5,
    "dp_epsilon": 8.0,
    "dp_delta": 1e-6,
    "dp_where": "clients",
    "dp_accountant": "rdp",
    "dp_passes": 2,
    "executor": "vmap",
    "workers": 2,
    "ray_address": "local",
    "state": "disk",
    "device": "cuda",
    "dtype": "float64",
    "evaluate_every": 2,
    "evaluate_clients": "cohort",
    "views": "after",
    "target": 0.9,
    "save": "none",
    "checkpoint_every": 2,
}


@pytest.fixture(autouse=True)
def other_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second optimiser, so that the option has a second value."""
    monkeypatch.setitem(OPTIMISERS, "other", OPTIMISERS["sgd"])


def test_every_option_is_tagged() -> None:
    assert CHANGES.keys() == Experiment.model_fields.keys()
    for name, field in Experiment.model_fields.items():
        assert isinstance(field.json_schema_extra, dict), f"declare {name} by option()"
        assert field.json_schema_extra.keys() == set(Tags._fields)
        assert field.description


def test_the_tags_give_the_lists_that_were_kept_by_hand() -> None:
    partition = "protocol data data_dir missing partition clients split validation"
    partition += " limit stratify"
    assert options_in("data") == {*partition.split(), "batch", "seed"}
    free = "rounds workers executor state checkpoint_every save data_dir views device ray_address"
    free += " protocol name"
    free += " newcomer_epochs target he_key"
    assert options_that_decide() == Experiment.model_fields.keys() - set(free.split())
    simulated = "data data_dir missing partition clients limit late_clients new_clients"
    simulated += " executor workers state device save newcomer_epochs"
    simulated += " attack attackers"
    assert simulation_options() == set(simulated.split())


def test_every_option_belongs_to_one_part() -> None:
    parts = [tags_of(name).part for name in Experiment.model_fields]
    blocks = [part for i, part in enumerate(parts) if i == 0 or part != parts[i - 1]]
    assert len(blocks) == len(set(blocks)), "options of a part stand together"


@pytest.mark.parametrize("name", sorted(CHANGES.keys() - {"protocol"}))
def test_the_identity_depends_on_what_decides(name: str) -> None:
    needed = {"momentum": 0.5} if name == "nesterov" else {}
    usual = make_experiment(needed)
    changed = make_experiment({**needed, name: CHANGES[name]})
    assert changed != usual
    assert (changed.identity != usual.identity) == (name in options_that_decide())


def test_the_identity_is_a_digest_of_names_and_values() -> None:
    chosen = make_experiment(CHANGES)
    values = {name: CHANGES[name] for name in options_that_decide()}
    text = json.dumps(values, sort_keys=True)
    assert chosen.identity == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("values", [{}, CHANGES], ids=["usual", "changed"])
def test_what_is_written_is_read_again(values: dict[str, Any], tmp_path: Any) -> None:
    chosen = make_experiment(values)
    assert make_experiment(tomllib.loads(chosen.to_toml())) == chosen
    (tmp_path / "a.toml").write_text(chosen.to_toml())
    assert make_experiment(read_config(tmp_path / "a.toml")) == chosen


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_refused_with_the_new_one(old: str, new: str) -> None:
    assert old not in Experiment.model_fields and new in Experiment.model_fields
    text = re.escape(f"option '{old}' is now '{new}'")
    with pytest.raises(fedtailor.UserError, match=f"^{text}$"):
        fedtailor.run("fedavg", **{old: "1"})
    with pytest.raises(fedtailor.UserError, match=f"^a.toml: {text}$"):
        make_experiment({"rounds": 1, old: 1}, "a.toml")


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"rouds": 3}, "no option 'rouds'; did you mean rounds?"),
        (
            {"rounds": 0},
            "rounds=0 will not do: input should be greater than or equal to 1",
        ),
        ({"executor": "gpu"}, "executor='gpu' will not do: input should be 'auto', "),
        ({"participation": "much"}, "'much' is no share; write 0.2, or 0.1..1"),
        ({"participation": "0"}, "'0' is not within 0 < share <= 1"),
        ({"optimiser": "sdg"}, "no optimiser 'sdg'; did you mean sgd?"),
        ({"nesterov": True}, "nesterov=True will not do: it needs momentum"),
        ({"protocol": "cd3"}, "no protocol 'cd3'; did you mean cd2?"),
        ({"filters": "tab"}, "no filter 'tab'; did you mean tap?"),
        ({"late_clients": "5"}, "'5' does not read like 5@10"),
        ({"late_clients": "5@0"}, "'5@0' does not read like 5@10"),
        (
            {"evaluate_clients": "0"},
            "'0' is neither all, nor cohort, nor a number of clients",
        ),
        (
            {"views": "after,inside"},
            "no view 'inside'; there are after, global, new, external",
        ),
        ({"ray_address": "somewhere"}, "neither auto, nor local, nor HOST:PORT"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_first_wrong_option_is_named(
    values: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(fedtailor.UserError) as error:
        make_experiment({"method": "ditto", **values}, "a.toml")
    text = str(error.value)
    assert text.startswith("a.toml: ") and complaint in text and "\n" not in text


def test_parsed_values() -> None:
    assert parse_participation("0.2") == (0.2, 0.2)
    assert parse_participation("0.1..1") == (0.1, 1.0)
    assert parse_late_clients(None) == (0, 1)
    assert parse_late_clients("5@10") == (5, 10)
