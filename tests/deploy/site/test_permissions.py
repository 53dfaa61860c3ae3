"""What a run may ask of a site before it trains: what a method declares, and what a site allows."""

import inspect

import pytest
from fake_sites import FakeSites

from fedtailor.core.errors import UserError
from fedtailor.deploy.messages import read_message, write_request
from fedtailor.deploy.site.permissions import (
    describe_client_function,
    find_denial,
    list_setup_calls,
    needs_permission,
)
from fedtailor.executors.visit import Reply, Visit
from fedtailor.filters import SETUP_CALLS
from fedtailor.method import Cohort
from fedtailor.method_types import client_functions
from fedtailor.methods import fedem, find, names
from fedtailor.testing.small_world import digits, run_small

# hyper-parameters with which setup asks for more
VARIANTS = {"feddyn": {"by_size": True}}


def record_setup_calls(method, monkeypatch) -> set[str]:
    """The client functions that a method's setup really calls in a small run."""
    cls = type(method)
    setup = cls.setup
    run = Cohort.run
    in_setup = []
    called = set()

    def recording_setup(self, server, cohort):
        in_setup.append(True)
        try:
            return setup(self, server, cohort)
        finally:
            in_setup.pop()

    def recording_run(self, function, down):
        if in_setup:
            called.add(function.__name__)
        return run(self, function, down)

    with monkeypatch.context() as patch:
        patch.setattr(cls, "setup", recording_setup)
        patch.setattr(Cohort, "run", recording_run)
        run_small(method, rounds=1, federation=digits((6, 5, 4)))
    return called


@pytest.mark.parametrize("name", names())
def test_a_method_declares_what_its_setup_calls(name, monkeypatch):
    cls = find(name)
    called = record_setup_calls(cls(), monkeypatch)
    if name in VARIANTS:
        called |= record_setup_calls(cls(**VARIANTS[name]), monkeypatch)
    assert set(cls.setup_calls) == called - {"local", "receive"}


@pytest.mark.parametrize("name", names())
def test_client_functions_are_found(name):
    cls = find(name)
    functions = client_functions(cls)
    assert "local" in functions
    assert not {"personal", "after", "predict", "conditions"} & set(functions)
    for function in list_setup_calls(cls):
        assert "(sends " in describe_client_function(cls, function)


def test_a_declared_name_must_be_a_client_function():
    class Wrong(fedem.FedEM):
        setup_calls = ("cuont",)

    with pytest.raises(
        UserError, match=r"Wrong\.setup_calls: 'cuont' is no client function"
    ):
        list_setup_calls(Wrong)


def test_a_declared_function_needs_permission_whatever_its_number_says():
    for call in (1, SETUP_CALLS, SETUP_CALLS + 1):
        assert needs_permission(fedem.FedEM, "count", call)
        assert not needs_permission(fedem.FedEM, "local", call)
    assert find_denial(fedem.FedEM, "count", None) == ""
    assert find_denial(fedem.FedEM, "count", {"count", "span"}) == ""
    assert (
        find_denial(fedem.FedEM, "count", {"span"}) == "not allowed here (--allow span)"
    )
    assert find_denial(fedem.FedEM, "count", set()) == "not allowed here (--allow none)"


def test_a_function_of_a_round_needs_none_unless_setup_calls_it():
    fedma = find("fedma")
    assert not needs_permission(fedma, "retrain", 2)
    assert needs_permission(fedma, "retrain", SETUP_CALLS + 1)
    assert "setup_calls does not declare" in find_denial(fedma, "retrain", None)


@pytest.mark.parametrize("allow", [None, {"count"}])
def test_a_call_of_setup_that_is_not_declared_stops_the_run(allow, tmp_path):
    path = tmp_path / "silent.py"
    text = inspect.getsource(fedem)
    declaration = '    setup_calls = ("count",)\n'
    assert declaration in text
    path.write_text(text.replace(declaration, ""))
    sites = FakeSites(tmp_path, str(path), rounds=1)
    for node, k in ((100, 0), (101, 1), (102, 2)):
        sites.transport.services[node] = sites.make_service(
            k, allow=allow, method_files=[path]
        )
    with pytest.raises(
        UserError,
        match=r"does not allow .* 'count' .* called in setup, which FedEM.setup_calls does not",
    ):
        sites.deploy(source=path.read_text())


def test_a_server_cannot_pass_a_call_of_setup_off_as_one_of_a_round(tmp_path):
    """Sites that allow it answer; then one is asked again as if it were in a round."""
    sites = FakeSites(tmp_path, "fedem", rounds=1, evaluate_every=2)
    sites.deploy()
    requests = [read_message(message) for _, message, _ in sites.transport.traffic]
    header = next(
        r.header for r in requests if r.header.get("visits") and r.header["client"] == 0
    )
    strict = sites.make_service(0, allow=set())
    data = write_request(header, [Visit("count", 1, 1, fedem.Empty())])
    answer = read_message(strict.answer_message(data))
    reply = Reply.decode(type(None), answer.flat_tree(0))
    assert answer.header["replies"] == 1 and reply.denied
    assert "'count'" in reply.error and "--allow none" in reply.error
    assert reply.n == 0 and reply.up is None
