"""Deployed runs on sites in this process: equal to simulated ones, and what faults do to them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_sites import NO_ANSWER, FakeSites, FakeTransport, RecordingObserver

from fedtailor.core.errors import UserError
from fedtailor.deploy.config import DeployConfig
from fedtailor.deploy.messages import read_message, write_message
from fedtailor.deploy.server import sites as sites_module
from fedtailor.deploy.server.serve import serve
from fedtailor.deploy.server.transport import Lost
from fedtailor.deploy.site.data import load_source
from fedtailor.deploy.site.service import SiteService
from fedtailor.executors.visit import Reply
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


def list_visits(message: bytes) -> list[tuple[str, int]]:
    """Name and round of every visit that a message asks for."""
    visits = read_message(message).header.get("visits", [])
    return [(visit.get("function") or visit["look"], visit["t"]) for visit in visits]


def trains(message: bytes, t: int) -> bool:
    """Whether a message asks for the training of round t."""
    training = {"local", "train_whole_model", "train_filter_and_head"}
    return any(name in training and at == t for name, at in list_visits(message))


def read_journal(folder: Path) -> list[dict]:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


# -------------------------------------------------------------------- equal to a simulated run
@pytest.mark.parametrize("method", METHODS)
def test_a_deployed_run_equals_the_simulated_one(method, tmp_path):
    sites = FakeSites(tmp_path, method)
    simulated = sites.simulate()
    deployed = sites.deploy()
    for same in EQUAL:
        assert deployed[same] == simulated[same], same
    journals = (
        read_journal(tmp_path / "simulated"),
        read_journal(tmp_path / "deployed"),
    )
    for a, b in zip(*journals, strict=True):
        times = {"seconds": 0, "training_seconds": 0}
        assert {**a, **times} == {**b, **times}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"bn": "local", "model": "resnet32", "rounds": 2}, marks=SLOW),
        {"participation": "0.5"},
        {"evaluate_clients": "2", "evaluate_every": 2},
        {"views": "after,global", "target": 0.5},
    ],
)
def test_options_mean_the_same(options, tmp_path):
    sites = FakeSites(tmp_path, "ditto", **options)
    simulated = sites.simulate()
    deployed = sites.deploy()
    assert [deployed[k] for k in EQUAL] == [simulated[k] for k in EQUAL]


def record_private_states(service: SiteService, kept: dict[str, torch.Tensor]) -> None:
    """Have every tensor of every private state that a site writes put into ``kept``."""
    open_run = service._open_run

    def spy(header):
        run = open_run(header)
        put = run.state.put

        def remember(k, flat):
            for path, value in flat.items():
                if isinstance(value, torch.Tensor):
                    kept[f"{service.name}/{run.state._current}/{path}"] = value
            put(k, flat)

        run.state.put = remember
        return run

    service._open_run = spy


@pytest.mark.parametrize(
    "method",
    [
        "ditto",
        "fedcp",
        *(pytest.param(m, marks=SLOW) for m in ("fedrep", "gpfl", "pfedc")),
    ],
)
def test_private_state_is_in_no_message(method, tmp_path):
    """Every tensor of every version of every Keep is looked for in all bytes that went out."""
    sites = FakeSites(tmp_path, method, rounds=3)
    kept: dict[str, torch.Tensor] = {}
    for service in sites.transport.services.values():
        record_private_states(service, kept)
    sites.deploy()
    sent = b"".join(answer for _, _, answer in sites.transport.traffic)
    received = b"".join(message for _, message, _ in sites.transport.traffic)
    also_sent = sites.setup.world.method.also_sent
    private = {
        path: value
        for path, value in kept.items()
        if value.numel() > 8
        and value.count_nonzero() > 8
        and not any(f"/keep/{field}" in path for field in also_sent)
    }
    assert private
    secrets = 0
    for path, value in private.items():
        data = value.detach().contiguous().numpy().tobytes()
        if data in received:
            continue  # a private state that begins as a copy of what was sent is no secret yet
        assert data not in sent, path
        secrets += 1
    assert secrets >= len(private) / 3


# -------------------------------------------------------------------- faults
def test_lost_messages_are_sent_again(tmp_path):
    sites = FakeSites(tmp_path, "ditto")
    lost = []

    def fault(node, message):
        if not trains(message, 2) or lost.count(node) == 3:
            return None
        lost.append(node)
        if lost.count(node) == 2:
            # done, but the answer is lost
            sites.transport.services[node].answer_message(message)
        return Lost("the line broke")

    sites.transport.fault = fault
    assert sites.deploy()["hash"] == sites.simulate()["hash"]
    assert len(lost) == 9


def test_a_node_that_forgot_its_message_gets_it_again(tmp_path):
    """A node killed in the middle of a visit says that it is there, and knows of no visit."""
    sites = FakeSites(tmp_path, "ditto")
    silent = []

    def fault(node, message):
        if not trains(message, 2) or node != 101 or silent:
            return None
        silent.append(node)
        # all it has is on its disk
        sites.transport.services[node] = sites.make_service(1)
        return NO_ANSWER

    sites.transport.fault = fault
    assert sites.deploy()["hash"] == sites.simulate()["hash"]
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
    sites = FakeSites(tmp_path, method)
    killed = []

    def fault(node, message):
        if not trains(message, t) or node != 102 or killed:
            return None
        killed.append(node)
        # others have not had theirs
        sites.transport.services[node].answer_message(message)
        raise KeyboardInterrupt

    sites.transport.fault = fault
    with pytest.raises(KeyboardInterrupt):
        sites.deploy()
    # Nodes have other ids after a restart.
    sites.transport.services = {200 + k: sites.make_service(k) for k in range(3)}
    resumed = sites.deploy(resume=True)
    simulated = sites.simulate()
    for same in ("hash", "accuracy", "views", "bytes"):
        assert resumed[same] == simulated[same], same


def test_a_checkpoint_every_few_rounds_is_enough(tmp_path):
    sites = FakeSites(tmp_path, "ditto", rounds=5, checkpoint_every=2)
    killed = []

    def fault(node, message):
        if trains(message, 4) and not killed:
            killed.append(node)
            raise KeyboardInterrupt

    sites.transport.fault = fault
    with pytest.raises(KeyboardInterrupt):
        sites.deploy()
    assert sites.deploy(resume=True)["hash"] == sites.simulate()["hash"]


def test_a_site_that_is_away_for_rounds_rejoins(tmp_path):
    sites = FakeSites(tmp_path, "ditto", rounds=6)
    observer = RecordingObserver()

    def fault(node, message):
        if trains(message, 2):
            sites.transport.away = {101}
        if trains(message, 4):
            sites.transport.away = set()
        return Lost("gone") if node in sites.transport.away else None

    sites.transport.fault = fault
    sites.deploy(observer, absence=0.05)
    records = read_journal(tmp_path / "deployed")
    everyone = [0, 1, 2]
    took_part = [sorted(record["clients"]) for record in records]
    assert took_part == [everyone, everyone, [0, 2], [0, 2], everyone, everyone]
    assert list(records[1]["lost"]) == ["1"] and "away" in records[1]["lost"]["1"]
    assert "site 'site-1' is back" in observer.lines
    tags = sorted(
        path.stem for path in (tmp_path / "state-1").rglob("keep/*.safetensors")
    )
    assert tags[-1].startswith("00000006"), "it went on with its own state"


def test_replies_after_the_deadline_are_left_out(tmp_path):
    sites = FakeSites(tmp_path, "fedavg", rounds=2)
    sites.transport.fault = lambda node, message: (
        NO_ANSWER if node == 100 and list_visits(message) else None
    )
    sites.deploy(deadline=0.3)
    first = read_journal(tmp_path / "deployed")[0]
    assert first["lost"]["0"] == "site 'site-0' did not reply within 0.3 s"


def test_a_run_without_replies_gives_up(tmp_path):
    sites = FakeSites(tmp_path, "fedavg", rounds=9, max_silent_rounds=2)
    sites.transport.fault = lambda node, message: (
        b"garbage" if list_visits(message) else None
    )
    with pytest.raises(
        UserError,
        match=r"no usable reply in 2 rounds .* answer cannot be read: the message is damaged",
    ):
        sites.deploy()


def test_a_run_whose_sites_are_all_away_waits_and_gives_up(tmp_path):
    sites = FakeSites(tmp_path, "fedavg", rounds=9, max_silent_rounds=2)

    def fault(node, message):
        if trains(message, 2):
            sites.transport.away = {100, 101, 102}
        return Lost("gone") if sites.transport.away else None

    sites.transport.fault = fault
    with pytest.raises(
        UserError, match=r"no usable reply in 2 rounds in a row, .* away"
    ):
        sites.deploy(absence=0.1)
    assert len(read_journal(tmp_path / "deployed")) >= 1
    sites.transport.away = set()
    sites.transport.fault = lambda node, message: None
    assert sites.deploy(resume=True)["rounds"] == 9


def test_a_hello_that_got_lost_is_sent_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sites_module, "HELLO_TIMEOUT", 0.1)
    sites = FakeSites(tmp_path, "fedavg", rounds=1)
    lost = []

    def fault(node, message):
        if "hello" in read_message(message).header and node == 101 and not lost:
            lost.append(node)
            return NO_ANSWER
        return None

    sites.transport.fault = fault
    assert sites.deploy()["rounds"] == 1 and lost


# -------------------------------------------------------------------- answers nobody may believe
def forge_answer(header: dict) -> bytes:
    return dump_flat({"about": {"format": 3, "same": {}, "order": [], **header}})


def forge_reply(reply: Reply) -> bytes:
    return write_message({"replies": 1}, [reply.encode()])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "cannot be read"),
        (b"\x00" * 100, "cannot be read"),
        (forge_answer({}), "cannot be read"),
        (forge_answer({"replies": 0}), "0 answers to 1 questions"),
        (forge_reply(Reply(10**9, {})), "cannot be read|claims"),
        (forge_reply(Reply(1, None, "out of memory")), "out of memory"),
        (forge_answer({"replies": 1}), "cannot be read"),
        (forge_answer({"replies": [7]}), "cannot be read"),
        (forge_answer({"same": {"0/it": "9/it"}}), "damaged"),
    ],
)
def test_a_tampered_answer_is_left_out(answer, why, tmp_path):
    sites = FakeSites(tmp_path, "fedavg", rounds=1, evaluate_every=2)
    sites.transport.fault = lambda node, message: (
        answer if node == 101 and trains(message, 1) else None
    )
    sites.deploy()
    (record,) = read_journal(tmp_path / "deployed")
    assert list(record["lost"]) == ["1"]
    assert re.search(why, record["lost"]["1"]), record["lost"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda w: {
                **w,
                next(iter(w)): torch.full_like(next(iter(w.values())), torch.nan),
            },
            "NaN",
        ),
        (lambda w: {k: v[..., :1] for k, v in w.items()}, "is of shape"),
        (lambda w: {k: v + 1e6 for k, v in w.items()}, "times further"),
        (lambda w: {k: v.double() for k, v in w.items()}, "float64"),
        (lambda w: {}, "missing"),
    ],
)
def test_a_poisoned_upload_is_left_out(change, why, tmp_path):
    sites = FakeSites(tmp_path, "fedavg", rounds=1, evaluate_every=2)
    _, upload_type = call_types(sites.setup.world.method, "local")

    def fault(node, message):
        if node != 101 or not trains(message, 1):
            return None
        answer = read_message(sites.transport.services[101].answer_message(message))
        reply = Reply.decode(upload_type, answer.flat_tree(0))
        return forge_reply(reply._replace(up=upload_type(change(reply.up.w))))

    sites.transport.fault = fault
    sites.deploy()
    (record,) = read_journal(tmp_path / "deployed")
    assert why in record["lost"].get("1", ""), record["lost"]


# -------------------------------------------------------------------- what sites refuse
def test_a_refused_question_stops_the_run_by_name(tmp_path):
    sites = FakeSites(tmp_path, "fed3p2p")
    sites.transport.services[101] = sites.make_service(1, allow=set())
    with pytest.raises(
        UserError,
        match=r"site 'site-1' does not allow .* 'count' .*labels.*--allow none",
    ):
        sites.deploy()
    asked = [line for line in sites.logs if "asked for 'count'" in line]
    assert any("not allowed" in line for line in asked)
    assert any("answered" in line for line in asked)


def test_an_allowed_question_is_answered(tmp_path):
    sites = FakeSites(tmp_path, "fed3p2p", rounds=2)
    sites.transport.services[101] = sites.make_service(1, allow={"count"})
    assert sites.deploy()["hash"] == sites.simulate()["hash"]


def test_another_method_version_is_named(tmp_path):
    sites = FakeSites(tmp_path, "ditto")
    odd = sites.transport.services[101]
    find_method = odd._find_method
    odd._find_method = lambda run: find_method(replace(run, method="0123456789abcdef"))
    with pytest.raises(
        UserError, match=r"site 'site-1' refuses: .* another version of method ditto"
    ):
        sites.deploy()


def test_a_method_file_must_be_at_the_site(tmp_path):
    path = tmp_path / "mine.py"
    text = Path(fedprox.__file__).read_text(encoding="utf-8")
    path.write_text(text)
    sites = FakeSites(tmp_path, str(path), rounds=2)
    with pytest.raises(
        UserError, match=r"no method file mine.py: start it with --method"
    ):
        sites.deploy(out="refused", source=text)
    sites.transport.services = {
        1000 + k: sites.make_service(k, method_files=[path]) for k in range(3)
    }
    assert sites.deploy(source=text)["hash"] == sites.simulate()["hash"]


# -------------------------------------------------------------------- which sites take part
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
    sites = FakeSites(tmp_path, "fedavg")
    odd = sites.transport.services[102]
    odd.source = replace(odd.source, **change)
    with pytest.raises(UserError, match=f"site 'site-2' does not fit the run: .*{why}"):
        sites.deploy()


def test_a_site_that_comes_later_gets_the_next_number_and_one_that_does_not_fit_gets_none(
    tmp_path,
):
    sites = FakeSites(tmp_path, "ditto", rounds=5)
    observer = RecordingObserver()
    late = sites.transport.services.pop(102)
    odd = sites.make_service(0)
    odd.name = "odd"
    odd.source = replace(odd.source, classes=12)

    def fault(node, message):
        if trains(message, 2):
            sites.transport.services |= {102: late, 300: odd}

    sites.transport.fault = fault
    sites.deploy(observer, sites=2)
    records = read_journal(tmp_path / "deployed")
    assert len(records[0]["clients"]) == 2 and len(records[-1]["clients"]) == 3
    assert "site 'site-2' joins as client 2" in observer.lines
    assert any(
        "'odd' cannot join: it has 12 classes" in line for line in observer.lines
    )
    listed = json.loads((tmp_path / "deployed/sites.json").read_text())
    assert [site["name"] for site in listed] == ["site-0", "site-1", "site-2"]


def test_two_sites_of_one_name_are_refused(tmp_path):
    sites = FakeSites(tmp_path, "fedavg")
    sites.transport.services[102].name = "site-0"
    with pytest.raises(UserError, match="two nodes call themselves 'site-0'"):
        sites.deploy()


def test_too_few_sites_are_told(tmp_path):
    sites = FakeSites(tmp_path, "fedavg")
    with pytest.raises(
        UserError,
        match=r"only 3 of 4 sites came within 0.3 s \(site-0, site-1, site-2\)",
    ):
        sites.deploy(sites=4, wait=0.3)


def test_a_run_is_not_overwritten(tmp_path):
    sites = FakeSites(tmp_path, "fedavg", rounds=1)
    sites.deploy()
    with pytest.raises(UserError, match="holds a run already"):
        sites.deploy()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"late_clients": "1@2"}, "late_clients=1@2 is for simulations"),
        ({"new_clients": 1}, "new_clients=1 is for simulations"),
        ({"views": "after,external"}, "views=external needs all data in one place"),
    ],
)
def test_what_only_a_simulation_can_do_is_refused(options, why, tmp_path):
    config = DeployConfig({"method": "fedavg", **options}, str(tmp_path / "run"))
    with pytest.raises(UserError, match=why):
        serve(FakeTransport({}), config, RecordingObserver())


def write_texts(path: Path, rng: np.random.Generator) -> None:
    rows = []
    for label in ["good", "bad"] * 20:
        text = f"{label} {rng.choice(['the', 'a', 'odd'])} word{rng.integers(9)}"
        # padding counts in fastText's mean
        rows.append(f"{label},{' '.join([text] * 50)}")
    path.write_text("label,text\n" + "\n".join(rows) + "\n")


def test_text_sites_get_the_runs_vocabulary_with_the_hello(tmp_path):
    """One is started anew in mid-run; words outside the vocabulary do not matter."""
    rng = np.random.default_rng(0)
    for k in (0, 1):
        write_texts(tmp_path / f"{k}.csv", rng)

    def make_service(k: int) -> SiteService:
        source = load_source(str(tmp_path / f"{k}.csv"))
        return SiteService(f"site-{k}", source, tmp_path / f"state-{k}")

    transport = FakeTransport({k: make_service(k) for k in (0, 1)})
    options = {"method": "fedavg", "rounds": 9, "lr": 1.0}
    config = DeployConfig(options, str(tmp_path / "run"))
    with pytest.raises(
        UserError, match="brings no vocabulary: federate with --vocabulary"
    ):
        serve(transport, config, RecordingObserver())

    def fault(node, message):
        if trains(message, 2):
            transport.services[node] = make_service(node)

    transport.fault = fault
    transport.services = {k: make_service(k) for k in (0, 1)}
    config = replace(config, vocabulary=["good", "bad", "the"])
    result = serve(transport, config, RecordingObserver())
    assert result["model"] == "fasttext" and result["rounds"] == 9
    assert not any(record["lost"] for record in read_journal(tmp_path / "run"))
    assert result["accuracy"]["last"] > 0.9
