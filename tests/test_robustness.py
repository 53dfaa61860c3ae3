"""The experiment behind the table of docs/privacy.md runs, resumes and writes."""

from __future__ import annotations

import json

from experiments import robustness


def test_the_document_holds_what_is_recorded():
    records = robustness.read_records()
    cases = [case.key for case in robustness.list_cases()]
    assert set(cases) == records.keys()
    text = robustness.DOCUMENT.read_text(encoding="utf-8")
    assert robustness.make_tables(records) in text


def test_recorded_runs_are_not_run_again(tmp_path, monkeypatch):
    first, second = list(robustness.list_cases())[:2]
    monkeypatch.setattr(robustness, "RECORDS", tmp_path / "records.json")
    monkeypatch.setattr(robustness, "DOCUMENT", tmp_path / "privacy.md")
    monkeypatch.setattr(robustness, "list_cases", lambda: iter([first, second]))
    monkeypatch.setitem(robustness.COMMON, "limit", 400)
    monkeypatch.setitem(robustness.DATA["digits"].options, "rounds", 2)
    known = {first.key: {"accuracy": 0.5, "backdoor": None}}
    (tmp_path / "records.json").write_text(json.dumps(known))
    (tmp_path / "privacy.md").write_text(
        f"before\n{robustness.BEGIN}\nold\n{robustness.END}\nafter\n"
    )
    robustness.main(["--out", str(tmp_path / "runs")])
    records = robustness.read_records()
    assert records[first.key] == known[first.key]
    assert 0 <= records[second.key]["accuracy"] <= 1
    text = (tmp_path / "privacy.md").read_text()
    assert text.startswith("before") and text.endswith("after\n")
    assert "old" not in text and "| mean | 50.0 |" in text
