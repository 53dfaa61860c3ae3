"""A run's progress through a log."""

from fake_sites import RecordingWatcher

from fedtailor.deploy.progress_log import LogReader, LogWriter


def test_events_pass_a_log_that_comes_in_chunks(capsys):
    writer = LogWriter()
    writer.say("hello\nworld")
    print("INFO: something of Flower's")
    writer.write_event("result", {"hash": "x"})
    log = capsys.readouterr().out
    watcher = RecordingWatcher()
    reader = LogReader(watcher)
    for i in range(0, len(log), 7):
        reader.read_chunk(log[i : i + 7])
    assert watcher.lines == ["hello\nworld"]
    assert reader.outcome == ("result", {"hash": "x"})
    assert reader.other_lines == ["INFO: something of Flower's"]
