"""A run's progress through a log."""

from fake_sites import RecordingObserver

from fedtailor.deploy.progress_log import LogReader, LogWriter
from fedtailor.engine.observer import RoundRecord
from fedtailor.evaluation.summary import Evaluation, Fairness, Measure
from fedtailor.experiment.config import make_experiment


def test_events_pass_a_log_that_comes_in_chunks(capsys):
    writer = LogWriter()
    writer.message("hello\nworld")
    print("INFO: something of Flower's")
    writer.write_event("result", {"hash": "x"})
    log = capsys.readouterr().out
    observer = RecordingObserver()
    reader = LogReader(observer)
    for i in range(0, len(log), 7):
        reader.read_chunk(log[i : i + 7])
    assert observer.lines == ["hello\nworld"]
    assert reader.outcome == ("result", {"hash": "x"})
    assert reader.other_lines == ["INFO: something of Flower's"]


def test_a_round_and_the_options_come_back_as_they_were(capsys):
    config = make_experiment({"method": "ditto", "rounds": 7})
    scores = Evaluation(
        Measure({"accuracy": 0.5}, 0.5, 8), Measure({}, None, 0), Fairness(0, 0, 0, 1)
    )
    record = RoundRecord(
        3,
        [0, 2],
        {2: "lost"},
        2,
        1,
        10,
        20,
        1,
        0.5,
        0.4,
        {"loss": 2.0},
        evaluation=scores,
    )
    writer = LogWriter()
    writer.begin(config, 3)
    writer.round(record)
    writer.end({"hash": "x"})
    observer = RecordingObserver()
    LogReader(observer).read_chunk(capsys.readouterr().out)
    assert observer.events == [("begin", config, 3), ("round", record), ("end", None)]
