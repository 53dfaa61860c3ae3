"""The walk through a round counts what was entered, and a round does not get longer unnoticed."""

from tools.walk import FileWalk, main, measure_file, measure_files, watch_rounds

# files that docs/architecture.md names as those with the control flow of a round
CONTROL_FLOW = {
    "engine/loop.py",
    "method.py",
    "methods/fedavg.py",
    "engine/exchange.py",
    "executors/sequential.py",
    "executors/client_runner.py",
    "client.py",
    "training/in_place.py",
}
# lines of all functions that a round of FedAvg enters, its measures and checks included
MOST_CODE = 2100


def test_a_round_of_fedavg_goes_through_the_files_that_the_documents_name():
    rows = measure_files(watch_rounds("fedavg"))
    names = {row.name for row in rows}
    assert names >= CONTROL_FLOW
    assert "methods/ditto.py" not in names
    assert sum(row.code_lines for row in rows) <= MOST_CODE


def test_code_lines_leave_out_docstrings_comments_and_functions_not_entered(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("tools.walk.PACKAGE", tmp_path)
    path = tmp_path / "a.py"
    path.write_text(
        'def f(x):\n    """It."""\n    # why\n\n    return x\n\n\ndef g(x):\n    return f(x)\n'
    )
    assert measure_file(path, {1}) == FileWalk("a.py", 1, 2, 9)
    assert measure_file(path, {1, 8}) == FileWalk("a.py", 2, 4, 9)


def test_the_table_ends_with_the_sum(capsys):
    assert main(["--method", "fedper"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("methods/fedper.py") for line in lines)
    assert lines[-1].startswith(f"{len(lines) - 2} files")
