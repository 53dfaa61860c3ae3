"""Deployed runs on sites in this process: equal to simulated ones, through lost letters, crashes and absences."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_sites import Lost, Street, Told, Village

from fedtailor.core.errors import UserError
from fedtailor.deploy import messages as letters
from fedtailor.deploy.server import sites
from fedtailor.deploy.server.serve import serve
from fedtailor.deploy.site.data import load
from fedtailor.deploy.site.service import Resident
from fedtailor.method_types import call_types
from fedtailor.methods import fedprox
from fedtailor.storage.files import dump_flat

SLOW = pytest.mark.slow
METHODS = [
    "fedavg",
    "ditto",
    "fedrep",
    "fedcp",
    "cd2pfed",
    "fed3p2p",
    pytest.param("gpfl", marks=SLOW),
    "pfedc",
]
EQUAL = (
    "hash",
    "accuracy",
    "accuracy_mean_of_clients",
    "views",
    "fairness",
    "notes",
    "bytes",
    "rounds",
)


def visits(letter: bytes) -> list[tuple[str, int]]:
    return [(v["name"], v["t"]) for v in letters.read(letter).about.get("visits", [])]


def calls(letter: bytes, t: int) -> bool:
    return ("local", t) in visits(letter)


@pytest.mark.parametrize("method", METHODS)
def test_a_deployed_run_equals_the_simulated_one(method, tmp_path):
    village = Village(tmp_path, method)
    simulated, deployed = village.simulate(), village.deploy()
    for same in EQUAL:
        assert deployed[same] == simulated[same], same
    journals = [
        [json.loads(line) for line in (tmp_path / name / "rounds.jsonl").read_text().splitlines()]
        for name in ("simulated", "deployed")
    ]
    for a, b in zip(*journals, strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"bn": "local", "model": "resnet32", "rounds": 2}, marks=SLOW),
        {"participation": "0.5"},
        {"evaluate_clients": "2", "evaluate_every": 2},
        {"views": "after"},
    ],
)
def test_options_mean_the_same(options, tmp_path):
    village = Village(tmp_path, "ditto", **options)
    simulated, deployed = village.simulate(), village.deploy()
    assert [deployed[k] for k in EQUAL] == [simulated[k] for k in EQUAL]


@pytest.mark.parametrize(
    "method",
    ["ditto", "fedcp", *(pytest.param(m, marks=SLOW) for m in ("fedrep", "gpfl", "pfedc"))],
)
def test_private_state_is_in_no_message(method, tmp_path):
    """Every tensor of every version of every Keep is looked for in all bytes that went out."""
    village = Village(tmp_path, method, rounds=3)
    kept: dict[str, torch.Tensor] = {}
    for resident in village.street.residents.values():
        engage = resident._engage

        def spy(about, engage=engage, name=resident.name):
            at = engage(about)
            put = at.state.put

            def remember(k, flat):
                kept.update(
                    {
                        f"{name}/{at.state._now}/{path}": v
                        for path, v in flat.items()
                        if hasattr(v, "shape")
                    }
                )
                put(k, flat)

            at.state.put = remember
            return at

        resident._engage = spy
    village.deploy()
    sent = b"".join(answer for _, _, answer in village.street.traffic)
    received = b"".join(letter for _, letter, _ in village.street.traffic)
    also = village.setup.world.method.also_sent
    private = {
        path: v
        for path, v in kept.items()
        if v.numel() > 8
        and v.count_nonzero() > 8
        and not any(f"/keep/{field}" in path for field in also)
    }
    assert private
    secret = 0
    for path, value in private.items():
        data = value.detach().contiguous().numpy().tobytes()
        if (
            data not in received
        ):  # a private state that begins as a copy of what was sent down is no secret yet
            assert data not in sent, path
            secret += 1
    assert secret >= len(private) / 3


def test_lost_letters_are_sent_again(tmp_path):
    village, lost = Village(tmp_path, "ditto"), []

    def accident(node, letter):
        if calls(letter, 2) and lost.count(node) < 3:
            lost.append(node)
            if lost.count(node) == 2:
                village.street.residents[node].handle(letter)  # done, but the answer gets lost
            return Lost("the line broke")
        return None

    village.street.accident = accident
    assert village.deploy()["hash"] == village.simulate()["hash"]
    assert len(lost) == 9


def test_a_node_that_forgot_its_letter_gets_it_again(tmp_path):
    """Killed with the letter in its hands: it answers the question whether it is there, and nothing else."""
    village, silent = Village(tmp_path, "ditto"), []

    def accident(node, letter):
        if calls(letter, 2) and node not in silent and node == 101:
            silent.append(node)
            village.street.residents[node] = village.resident(
                1
            )  # started anew: all it has is on its disk
            return b"silence"
        return None

    village.street.accident = accident
    assert village.deploy()["hash"] == village.simulate()["hash"]
    assert silent == [101]


@pytest.mark.parametrize(
    ("method", "t"),
    [
        ("ditto", 1),
        ("ditto", 3),
        ("fed3p2p", 2),
        *(pytest.param("fed3p2p", t, marks=SLOW) for t in (1, 3)),
    ],
)
def test_a_server_that_was_killed_goes_on_to_the_same_end(method, t, tmp_path):
    village, told = Village(tmp_path, method), Told()

    def accident(node, letter):
        if calls(letter, t) and node == 102 and not told.lines.count("killed"):
            told.say("killed")
            village.street.residents[node].handle(
                letter
            )  # one site has done its part, another has not
            raise KeyboardInterrupt
        return None

    village.street.accident = accident
    with pytest.raises(KeyboardInterrupt):
        village.deploy(told)
    village.street.residents = {
        200 + k: village.resident(k) for k in range(3)
    }  # with other numbers, as after a restart
    resumed, simulated = village.deploy(resume=True), village.simulate()
    assert [resumed[k] for k in ("hash", "accuracy", "views", "bytes")] == [
        simulated[k] for k in ("hash", "accuracy", "views", "bytes")
    ]


def test_a_checkpoint_every_few_rounds_is_enough(tmp_path):
    village, killed = Village(tmp_path, "ditto", rounds=5, checkpoint_every=2), []

    def accident(node, letter):
        if calls(letter, 4) and not killed:
            killed.append(1)
            raise KeyboardInterrupt
        return None

    village.street.accident = accident
    with pytest.raises(KeyboardInterrupt):
        village.deploy()
    assert village.deploy(resume=True)["hash"] == village.simulate()["hash"]


def test_a_site_that_is_away_for_rounds_rejoins(tmp_path):
    village, told = Village(tmp_path, "ditto", rounds=6), Told()

    def accident(node, letter):
        if calls(letter, 2):
            village.street.away = {101}
        if calls(letter, 4):
            village.street.away = set()
        return Lost("gone") if node in village.street.away else None

    village.street.accident = accident
    village.deploy(told, absence=0.05)
    records = [
        json.loads(line) for line in (tmp_path / "deployed/rounds.jsonl").read_text().splitlines()
    ]
    assert [sorted(r["clients"]) for r in records] == [
        [0, 1, 2],
        [0, 1, 2],
        [0, 2],
        [0, 2],
        [0, 1, 2],
        [0, 1, 2],
    ]
    assert list(records[1]["lost"]) == ["1"] and "away" in records[1]["lost"]["1"]
    assert "site 'site-1' is back" in told.lines
    tags = sorted(p.stem for p in (tmp_path / "state-1").rglob("keep/*.safetensors"))
    assert tags[-1].startswith("00000006"), "it went on with its own state"


def test_replies_after_the_deadline_are_left_out(tmp_path):
    village = Village(tmp_path, "fedavg", rounds=2)
    village.street.accident = lambda node, letter: (
        b"silence" if node == 100 and visits(letter) != [] else None
    )
    village.deploy(deadline=0.3)
    records = [
        json.loads(line) for line in (tmp_path / "deployed/rounds.jsonl").read_text().splitlines()
    ]
    assert records[0]["lost"]["0"] == "site 'site-0' did not reply within 0.3 s"


def test_a_run_without_replies_gives_up(tmp_path):
    village = Village(tmp_path, "fedavg", rounds=9, max_silent_rounds=2)
    village.street.accident = lambda node, letter: b"garbage" if visits(letter) else None
    with pytest.raises(
        UserError,
        match=r"no usable reply in 2 rounds .* answer cannot be read: the message is damaged",
    ):
        village.deploy()


def test_a_run_whose_sites_are_all_away_waits_and_gives_up(tmp_path):
    village = Village(tmp_path, "fedavg", rounds=9, max_silent_rounds=2)

    def accident(node, letter):
        if calls(letter, 2):
            village.street.away = {100, 101, 102}
        return Lost("gone") if village.street.away else None

    village.street.accident = accident
    with pytest.raises(UserError, match=r"no usable reply in 2 rounds in a row, .* away"):
        village.deploy(absence=0.1)
    assert len((tmp_path / "deployed/rounds.jsonl").read_text().splitlines()) >= 1
    village.street.away, village.street.accident = set(), lambda node, letter: None
    assert village.deploy(resume=True)["rounds"] == 9


def test_a_greeting_that_got_lost_is_sent_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sites, "PATIENCE", 0.1)
    village, lost = Village(tmp_path, "fedavg", rounds=1), []

    def accident(node, letter):
        if "hello" in letters.read(letter).about and node == 101 and not lost:
            lost.append(node)
            return b"silence"
        return None

    village.street.accident = accident
    assert village.deploy()["rounds"] == 1 and lost


def other(value):
    return dump_flat({"about": {"format": 1, "same": {}, "order": [], **value}})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "cannot be read"),
        (b"\x00" * 100, "cannot be read"),
        (other({}), "cannot be read"),
        (other({"replies": []}), "0 answers to 1 questions"),
        (other({"replies": [{"n": 10**9, "error": ""}]}), "cannot be read|claims"),
        (other({"replies": [{"n": 1, "error": "out of memory"}]}), "out of memory"),
        (other({"replies": 7}), "cannot be read"),
        (other({"same": {"0/it": "9/it"}}), "damaged"),
    ],
)
def test_a_tampered_answer_is_left_out(answer, why, tmp_path):
    village = Village(tmp_path, "fedavg", rounds=1, evaluate_every=2)
    village.street.accident = lambda node, letter: (
        answer if node == 101 and calls(letter, 1) else None
    )
    village.deploy()
    (record,) = [
        json.loads(line) for line in (tmp_path / "deployed/rounds.jsonl").read_text().splitlines()
    ]
    assert list(record["lost"]) == ["1"]
    assert re.search(why, record["lost"]["1"]), record["lost"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda w: {**w, next(iter(w)): torch.full_like(next(iter(w.values())), torch.nan)}, "NaN"),
        (lambda w: {k: v[..., :1] for k, v in w.items()}, "is of shape"),
        (lambda w: {k: v + 1e6 for k, v in w.items()}, "times further"),
        (lambda w: {k: v.double() for k, v in w.items()}, "float64"),
        (lambda w: {}, "missing"),
    ],
)
def test_a_poisoned_upload_is_left_out(change, why, tmp_path):
    village = Village(tmp_path, "fedavg", rounds=1, evaluate_every=2)
    bad = village.street.residents[101]

    def accident(node, letter):
        if node != 101 or not calls(letter, 1):
            return None
        answer = letters.read(bad.handle(letter))
        w = answer.tree(0, call_types(village.setup.world.method, "local")[1])
        return letters.write({**answer.about, "order": []}, [w._replace(w=change(w.w))])

    village.street.accident = accident
    village.deploy()
    (record,) = [
        json.loads(line) for line in (tmp_path / "deployed/rounds.jsonl").read_text().splitlines()
    ]
    assert why in record["lost"].get("1", ""), record["lost"]


def test_a_refused_question_stops_the_run_by_name(tmp_path):
    village = Village(tmp_path, "fed3p2p")
    village.street.residents[101] = village.resident(1, allow=set())
    with pytest.raises(
        UserError, match=r"site 'site-1' does not allow .* 'count' .*labels.*--allow none"
    ):
        village.deploy()
    assert any("asked for 'count'" in line and "not allowed" in line for line in village.logs)
    assert any("asked for 'count'" in line and "answered" in line for line in village.logs)


def test_an_allowed_question_is_answered(tmp_path):
    village = Village(tmp_path, "fed3p2p", rounds=2)
    village.street.residents[101] = village.resident(1, allow={"count"})
    assert village.deploy()["hash"] == village.simulate()["hash"]


def test_another_method_version_is_named(tmp_path, monkeypatch):
    village = Village(tmp_path, "ditto")
    odd = village.street.residents[101]
    find = odd._find
    odd._find = lambda about: find({**about, "method": "0123456789abcdef"})
    with pytest.raises(
        UserError, match=r"site 'site-1' refuses: .* another version of method ditto"
    ):
        village.deploy()


def test_a_method_file_must_be_at_the_site(tmp_path):
    text = Path(fedprox.__file__).read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(text)
    village = Village(tmp_path, str(tmp_path / "mine.py"), rounds=2)
    with pytest.raises(UserError, match=r"no method file mine.py: start it with --method"):
        village.deploy(out="refused", source=text)
    village.street.residents = {
        k + 1000: village.resident(k, files=[tmp_path / "mine.py"]) for k in range(3)
    }
    assert village.deploy(source=text)["hash"] == village.simulate()["hash"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"x": torch.zeros(90, 1, 9, 9, dtype=torch.uint8)},
            r"shape \(1, 9, 9\), the run's \(1, 8, 8\)",
        ),
        ({"classes": 11}, "it has 11 classes, the run 10"),
        ({"kind": "table"}, "table data"),
    ],
)
def test_a_site_whose_data_differ_is_named(change, why, tmp_path):
    village = Village(tmp_path, "fedavg")
    odd = village.street.residents[102]
    odd.source = replace(odd.source, **change)
    with pytest.raises(UserError, match=f"site 'site-2' does not fit the run: .*{why}"):
        village.deploy()


def test_a_site_that_comes_later_gets_the_next_number_and_one_that_does_not_fit_gets_none(tmp_path):
    village, told = Village(tmp_path, "ditto", rounds=5), Told()
    late, odd = village.street.residents.pop(102), village.resident(0)
    odd.name, odd.source = "odd", replace(odd.source, classes=12)

    def accident(node, letter):
        if calls(letter, 2):
            village.street.residents |= {102: late, 300: odd}
        return None

    village.street.accident = accident
    village.deploy(told, sites=2)
    records = [
        json.loads(line) for line in (tmp_path / "deployed/rounds.jsonl").read_text().splitlines()
    ]
    assert [len(r["clients"]) for r in records][-1] == 3 and len(records[0]["clients"]) == 2
    assert "site 'site-2' joins as client 2" in told.lines
    assert any("'odd' cannot join: it has 12 classes" in line for line in told.lines)
    assert [s["name"] for s in json.loads((tmp_path / "deployed/sites.json").read_text())] == [
        "site-0",
        "site-1",
        "site-2",
    ]


def test_two_sites_of_one_name_are_refused(tmp_path):
    village = Village(tmp_path, "fedavg")
    village.street.residents[102].name = "site-0"
    with pytest.raises(UserError, match="two nodes call themselves 'site-0'"):
        village.deploy()


def test_too_few_sites_are_told(tmp_path):
    village = Village(tmp_path, "fedavg")
    with pytest.raises(
        UserError, match=r"only 3 of 4 sites came within 0.3 s \(site-0, site-1, site-2\)"
    ):
        village.deploy(sites=4, wait=0.3)


def test_a_run_is_not_overwritten(tmp_path):
    village = Village(tmp_path, "fedavg", rounds=1)
    village.deploy()
    with pytest.raises(UserError, match="holds a run already"):
        village.deploy()


def test_text_sites_get_the_runs_vocabulary_with_the_greeting(tmp_path):
    """One forgets everything but its disk in mid-run; words outside the vocabulary do not matter."""
    rng = np.random.default_rng(0)
    for k in (0, 1):
        texts = [
            (label, f"{label} {rng.choice(['the', 'a', 'odd'])} word{rng.integers(9)}")
            for label in ["good", "bad"] * 20
        ]
        rows = [
            f"{label},{' '.join([text] * 50)}" for label, text in texts
        ]  # padding counts in fastText's mean
        (tmp_path / f"{k}.csv").write_text("label,text\n" + "\n".join(rows) + "\n")

    def site(k: int) -> Resident:
        return Resident(f"site-{k}", load(str(tmp_path / f"{k}.csv")), tmp_path / f"state-{k}")

    street, order = (
        Street({k: site(k) for k in (0, 1)}),
        {
            "experiment": {"method": "fedavg", "rounds": 9, "lr": 1.0},
            "out": str(tmp_path / "run"),
            "sites": 2,
        },
    )
    with pytest.raises(UserError, match="brings no vocabulary: federate with --vocabulary"):
        serve(street, order, Told())

    def accident(node, letter):
        if calls(letter, 2):
            street.residents[node] = site(node)
        return None

    street.accident = accident
    street.residents = {k: site(k) for k in (0, 1)}
    result = serve(street, {**order, "vocabulary": ["good", "bad", "the"]}, Told())
    assert result["model"] == "fasttext" and result["rounds"] == 9
    assert all(
        not json.loads(line)["lost"]
        for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()
    )
    assert result["accuracy"]["last"] > 0.9
