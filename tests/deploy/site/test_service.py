"""What a site answers, and what it does not."""

import pytest
from fake_sites import FakeSites

from fedtailor.deploy.messages import (
    Message,
    read_message,
    write_message,
    write_request,
)
from fedtailor.executors.visit import Look, Visit

# what a message says of itself, not of its run
LAYOUT = (
    "visits",
    "order",
    "same",
    "format",
)


@pytest.fixture
def sites(tmp_path):
    made = FakeSites(tmp_path, "ditto", rounds=1, evaluate_every=2)
    made.deploy()
    return made


def find_request(sites: FakeSites) -> Message:
    """The first request for visits that site 0 got."""
    for node, data, _ in sites.transport.traffic:
        message = read_message(data)
        if node == 100 and "visits" in message.header:
            return message
    raise AssertionError("site 0 was never visited")


def ask(
    sites: FakeSites, name: str | Look, t: int = 1, call: int = 1, **changes
) -> Message:
    """The answer of site 0 to another visit of the same run."""
    request = find_request(sites)
    header = {key: value for key, value in request.header.items() if key not in LAYOUT}
    method = sites.setup.world.method
    down = method.send(method.init(lambda i: {}, 3), 0)
    data = write_request({**header, **changes}, [Visit(name, t, call, down)])
    return read_message(sites.transport.services[100].answer_message(data))


@pytest.mark.parametrize(
    "name",
    [
        Look.PERSONAL,
        Look.POOL,
        Look.CANDIDATE,
        "personal",
        "after_training",
        "send",
        "_x",
        "net",
    ],
)
def test_a_site_does_not_give_what_must_not_leave(sites, name):
    answer = ask(sites, name)
    refused = answer.header["refused"]
    assert "sites do not answer" in refused or "no client function" in refused
    assert answer.flat == {}


@pytest.mark.parametrize(
    ("digest", "what"), [("method", "method ditto"), ("engine", "fedtailor's engine")]
)
def test_a_run_with_other_code_is_refused(sites, digest, what):
    answer = ask(sites, "local", **{digest: "0" * 16})
    assert f"another version of {what}" in answer.header["refused"]


def test_a_message_of_an_earlier_start_is_refused(sites):
    ask(sites, Look.DIGEST, attempt=3)
    assert "start 1 of the run" in ask(sites, Look.DIGEST, attempt=1).header["refused"]


def test_a_run_cannot_name_a_folder(sites):
    assert (
        "is no name of a run"
        in ask(sites, Look.DIGEST, run="../../etc").header["refused"]
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"\xff" * 1000,
        write_message({"visits": [{"name": 3}]}),
        write_message({"hello": 7}),
        write_message({"hello": {"run": "r"}}),
    ],
)
def test_garbage_gets_an_answer_in_one_line(sites, data):
    answer = read_message(sites.transport.services[100].answer_message(data))
    assert answer.header["refused"] and "\n" not in answer.header["refused"]
