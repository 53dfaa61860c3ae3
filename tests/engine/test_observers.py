"""Observers see a run's begin, every round in order, messages, and its end."""

from __future__ import annotations

import signal
from typing import Any

import pytest

import fedtailor
from fedtailor.engine.observer import Observer, RoundRecord
from fedtailor.engine.start import run_experiment
from fedtailor.engine.stopping import Stopped
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.sequential import Sequential
from fedtailor.experiment.config import Experiment, make_experiment
from fedtailor.experiment.prepare import prepare
from fedtailor.experiment.run_folder import RunFolder, read_journal
from fedtailor.storage.private_state import MemoryStore

OPTIONS = {
    "method": "fedavg",
    "data": "digits",
    "clients": 4,
    "rounds": 4,
    "limit": 200,
    "executor": "sequential",
}


class Recorder(Observer):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.records: list[RoundRecord] = []
        self.messages: list[str] = []
        self.clients_done = 0
        self.begun: tuple[Experiment, int] | None = None
        self.ended: list[dict[str, Any] | None] = []

    def begin(self, config: Experiment, first_round: int) -> None:
        self.events.append("begin")
        self.begun = (config, first_round)

    def client_done(self) -> None:
        self.clients_done += 1

    def round(self, record: RoundRecord) -> None:
        self.events.append(f"round {record.t}")
        self.records.append(record)

    def message(self, text: str) -> None:
        self.messages.append(text)

    def end(self, result: dict[str, Any] | None) -> None:
        self.events.append("end")
        self.ended.append(result)


class LateEvaluation(Sequential):
    """Evaluations travel with the next round's visits."""

    late_evaluation = True


def run(
    observers: list[Observer], folder: RunFolder, resume: bool = False, **options: Any
):
    setup = prepare(make_experiment({**OPTIONS, **options}))
    return run_experiment(setup, folder, observers, resume=resume)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


# ---------------------------------------------------------------- a run that ends well
def test_begin_rounds_in_order_end_with_the_result(folder):
    seen = Recorder()
    result = run([seen], folder)
    assert seen.events == ["begin", "round 1", "round 2", "round 3", "round 4", "end"]
    assert seen.ended == [result]
    config, first_round = seen.begun
    assert config.rounds == 4
    assert first_round == 1
    assert seen.clients_done == 4 * 4  # evaluations do not count


def test_records_hold_what_the_journal_holds(folder):
    seen = Recorder()
    result = run([seen], folder, drop=0.3)
    lines = read_journal(folder.path / "rounds.jsonl")
    assert [RoundRecord.from_json(line) for line in lines] == seen.records
    assert seen.records[-1].evaluation.test.accuracy == result["accuracy"]["last"]
    assert sum(record.bytes_up for record in seen.records) == result["bytes"]["up"]
    assert any(record.lost for record in seen.records)


def test_a_late_evaluation_is_told_in_its_own_round(folder):
    """Every record comes once, in order, with its own scores."""
    at_once = Recorder()
    run([at_once], RunFolder(None))
    late = Recorder()
    setup = prepare(make_experiment(OPTIONS))
    executor = LateEvaluation(ClientRunner(setup.world, MemoryStore()))
    run_experiment(setup, folder, [late], executor=executor)
    assert late.events == at_once.events
    for ours, theirs in zip(late.records, at_once.records, strict=True):
        assert ours.evaluation == theirs.evaluation
        assert ours.clients == theirs.clients


def test_rounds_that_are_not_evaluated_are_told_too(folder):
    seen = Recorder()
    run([seen], folder, rounds=5, evaluate_every=2)
    assert [record.t for record in seen.records] == [1, 2, 3, 4, 5]
    assert [record.t for record in seen.records if record.evaluation] == [2, 4, 5]


def test_all_observers_are_told_the_same(folder):
    one = Recorder()
    two = Recorder()
    run([one, two], folder)
    assert one.events == two.events
    assert one.records == two.records
    assert one.messages == two.messages


# ---------------------------------------------------------------- messages
def test_messages_tell_of_lost_clients_and_the_executor(folder):
    seen = Recorder()
    with pytest.raises(fedtailor.UserError):
        run([seen], folder, lr=1e30, max_silent_rounds=2, executor="auto")
    assert any(text.startswith("executor: ") for text in seen.messages)
    assert any("is left out: " in text for text in seen.messages)
    assert any("round 1 is skipped" in text for text in seen.messages)


def test_replies_that_are_dropped_on_purpose_are_no_message(folder):
    seen = Recorder()
    run([seen], folder, drop=0.3)
    warnings = [text for text in seen.messages if text.startswith("warning")]
    # two rounds teach little, which is told
    assert not [text for text in warnings if "is no better than" not in text]


# ---------------------------------------------------------------- a run that does not end well
def test_a_run_that_fails_ends_with_none(folder):
    seen = Recorder()
    with pytest.raises(
        fedtailor.UserError, match="no usable reply in 2 rounds in a row"
    ):
        run([seen], folder, drop=1.0, max_silent_rounds=2)
    assert seen.ended == [None]
    assert seen.events[0] == "begin"
    assert seen.events[-1] == "end"


class Stopper(Recorder):
    """Asks the run to stop after two rounds, as Ctrl-C does."""

    def round(self, record: RoundRecord) -> None:
        super().round(record)
        if record.t == 2:
            signal.raise_signal(signal.SIGINT)


def test_a_run_that_is_stopped_ends_with_none_and_goes_on_where_it_stopped(folder):
    before = signal.getsignal(signal.SIGINT)
    stopper = Stopper()
    with pytest.raises(Stopped, match="stopped after round 2; go on with --resume"):
        run([stopper], folder)
    assert stopper.ended == [None]
    assert stopper.events == ["begin", "round 1", "round 2", "end"]
    assert "stopping: the round is finished and saved first" in stopper.messages[-1]
    assert signal.getsignal(signal.SIGINT) is before
    seen = Recorder()
    result = run([seen], folder, resume=True)
    assert seen.begun[1] == 3
    assert seen.events == ["begin", "round 3", "round 4", "end"]
    assert seen.ended == [result]
    assert result["hash"] == run([], RunFolder(None))["hash"]


class Impatient(Recorder):
    """Asks twice."""

    def round(self, record: RoundRecord) -> None:
        super().round(record)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_a_second_signal_stops_at_once(folder):
    seen = Impatient()
    with pytest.raises(KeyboardInterrupt):
        run([seen], folder)
    assert seen.events == ["begin", "round 1", "end"]
    assert seen.ended == [None]


def test_an_observer_needs_none_of_the_hooks(folder):
    assert run([Observer()], folder)["rounds"] == 4
