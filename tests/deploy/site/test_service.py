"""What a site answers, and what it does not."""

import contextlib
import socket
import threading

import pytest
from fake_sites import Village

from fedtailor.deploy import messages as letters
from fedtailor.deploy.code_digests import asked_in_setup, explain
from fedtailor.deploy.flower import courier as superexec
from fedtailor.deploy.flower.node_processes import _answer
from fedtailor.executors.visit import Visit
from fedtailor.method_types import client_functions
from fedtailor.methods import find, names


@pytest.fixture
def village(tmp_path):
    made = Village(tmp_path, "ditto", rounds=1, evaluate_every=2)
    made.deploy()
    return made


def ask(village, name, t=1, call=1, **about):
    """The last letter once more, with another question."""
    letter = next(
        data
        for node, data, _ in village.street.traffic
        if node == 100 and "visits" in letters.read(data).about
    )
    opened = letters.read(letter)
    head = {k: v for k, v in opened.about.items() if k not in ("visits", "order", "same", "format")}
    down = village.setup.world.method.send(village.setup.world.method.init(lambda i: {}, 3), 0)
    answer = village.street.residents[100].handle(
        letters.request({**head, **about}, [Visit(name, t, call, down)])
    )
    return letters.read(answer)


@pytest.mark.parametrize(
    "name", ["@personal", "@pool", "@client", "personal", "after", "join", "send", "_x", "net"]
)
def test_a_site_does_not_give_what_must_not_leave(village, name):
    answer = ask(village, name)
    assert (
        "sites do not answer" in answer.about["refused"]
        or "no client function" in answer.about["refused"]
    )
    assert answer.flat == {}


def test_a_letter_of_another_version_is_refused(village):
    assert (
        "another version of method ditto" in ask(village, "local", method="0" * 16).about["refused"]
    )
    assert (
        "another version of fedtailor's engine"
        in ask(village, "local", engine="0" * 16).about["refused"]
    )


def test_a_letter_of_an_earlier_start_is_refused(village):
    ask(village, "@digest", attempt=3)
    assert "start 1 of the run" in ask(village, "@digest", attempt=1).about["refused"]


def test_a_run_cannot_name_a_folder(village):
    assert "is no name of a run" in ask(village, "@digest", run="../../etc").about["refused"]


@pytest.mark.parametrize(
    "data", [b"", b"garbage", b"\xff" * 1000, letters.write({"visits": [{"name": 3}]})]
)
def test_garbage_gets_an_answer_in_one_line(village, data):
    answer = letters.read(village.street.residents[100].handle(data))
    assert answer.about["refused"] and "\n" not in answer.about["refused"]


@pytest.mark.parametrize("method", names())
def test_client_functions_are_found(method):
    cls = find(method)
    assert "local" in client_functions(cls)
    assert not {"personal", "after", "predict", "conditions"} & set(client_functions(cls))
    for name in asked_in_setup(cls):
        assert "(sends " in explain(cls, name)


def test_what_setup_asks_for_is_found():
    found = {
        name: asked_in_setup(find(name))
        for name in ("ditto", "fed3p2p", "pacfl", "fedclust", "fedrep", "cfl")
    }
    assert found == {
        "ditto": [],
        "fed3p2p": ["count"],
        "pacfl": ["span"],
        "fedclust": ["warm_up"],
        "fedrep": ["begin"],
        "cfl": [],
    }


def test_a_tensor_that_two_visits_share_is_sent_once(village):
    w = village.setup.world.method.send(village.setup.world.method.init(_new(village), 3), 0)
    one, two = (
        letters.request({}, [Visit("local", 1, 1, w)]),
        letters.request({}, [Visit("@score", 0, 0, w)] * 2),
    )
    assert len(two) < 1.3 * len(one)
    opened = letters.read(two)
    assert all(
        a.equal(b)
        for a, b in zip(
            opened.tree(0, type(w)).w.values(), opened.tree(1, type(w)).w.values(), strict=True
        )
    )


def _new(village):
    from fedtailor.executors.client_runner import ClientRunner
    from fedtailor.storage.private_state import MemoryStore

    return ClientRunner(village.setup.world, MemoryStore()).new


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_letters_pass_the_socket_whole(size, tmp_path, monkeypatch):
    path, letter = (
        str(tmp_path / "s"),
        bytes(i % 251 for i in range(1000)) * (size // 1000) + b"x" * (size % 1000),
    )
    monkeypatch.setenv("FEDTAILOR_SOCKET", path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve():
            line, _ = listener.accept()
            with line:
                _answer(line, lambda data: data[::-1])

        thread = threading.Thread(target=serve)
        thread.start()
        assert superexec.ask(letter) == letter[::-1]
        thread.join()


def test_a_resident_that_dies_is_noticed(tmp_path, monkeypatch):
    path = str(tmp_path / "s")
    monkeypatch.setenv("FEDTAILOR_SOCKET", path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with contextlib.suppress(BrokenPipeError), pytest.raises(ConnectionError):
            superexec.ask(b"hello")
        thread.join()
