"""The measure of density counts what it says it counts."""

import pytest

from tools import density
from tools.density import Measure, main, measure_source


def counts(source):
    measure = measure_source(source, "a.py")
    return {kind: measure.count(kind) for kind in measure.places}


@pytest.mark.parametrize(
    ("source", "lines", "tokens"),
    [
        ("a = 1\n", 1, 3),
        ("a = 1  # why\n\n# alone\nb = f(a)\n", 2, 9),
        ('"""Module."""\n\n\ndef f():\n    """It."""\n    return 1\n', 2, 7),
        ('class A:\n    """Two\n    lines."""\n\n    x = 1\n', 2, 6),
        ('async def f():\n    """It."""\n    return 1\n', 2, 8),
        ('text = """one\ntwo\nthree"""\n', 3, 3),
        ('say(f"{a} and {b + 1}")\n', 1, 4),
        ("call(\n    a,\n    b,\n)\n", 4, 7),
    ],
)
def test_tokens_of_code_lines_are_counted(source, lines, tokens):
    measure = measure_source(source)
    assert (measure.lines, measure.tokens) == (lines, tokens)
    assert measure.tokens_per_line == tokens / lines


@pytest.mark.parametrize(
    ("source", "parallel"),
    [
        ("a, b = 1, 2\n", 1),
        ("a = c, d = 1, 2\n", 1),
        ("a, b = b, a\n", 0),
        ("x[0], x[1] = x[1], x[0]\n", 0),
        ("a, b = b, a + b\n", 1),
        ("a, b = f()\n", 0),
        ("a = 1, 2\n", 0),
        ("for a, b in ((1, 2), (3, 4)):\n    pass\n", 0),
    ],
)
def test_tuples_on_both_sides_are_parallel_unless_they_swap(source, parallel):
    assert counts(source)["parallel"] == parallel


@pytest.mark.parametrize(
    ("source", "nested"),
    [
        ("a = 1 if x else 2\n", 0),
        ("a = 1 if x else 2 if y else 3\n", 1),
        ("a = (1 if x else 2) if y else 3\n", 1),
        ("a = f(1 if x else 2) + (3 if y else 4)\n", 0),
        ("a = 1 if x else [2 if y else 3 for y in z]\n", 1),
    ],
)
def test_conditional_expressions_in_others_are_nested(source, nested):
    assert counts(source)["nested"] == nested


@pytest.mark.parametrize(("lines", "long"), [(40, 0), (41, 1)])
def test_functions_of_more_than_forty_lines_are_long(lines, long):
    source = "@decorated\ndef f():\n" + "    a = 1\n" * (lines - 1)
    assert counts(source)["long"] == long


def test_lines_of_more_than_a_hundred_characters_are_wide():
    source = f'"""{"x" * 94}"""\n# {"y" * 99}\na = "{"z" * 95}"\n'
    measure = measure_source(source, "a.py")
    assert measure.places["wide"] == ["a.py:2", "a.py:3"]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A package of two rooms instead of this repository."""
    (tmp_path / "calm").mkdir()
    (tmp_path / "calm/plain.py").write_text("a = 1\n" * 20)
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy/golf.py").write_text("a, b = f(g(h(x, y)), z), k[m - 1]\n" * 20)
    (tmp_path / "method.py").write_text("b = 2\n")
    monkeypatch.setattr(density, "PACKAGE", tmp_path)
    monkeypatch.setattr(density, "OTHER_ROOMS", ())
    monkeypatch.setattr(density, "ALLOWANCES", {})
    monkeypatch.setattr(density, "BUDGETS", dict.fromkeys(density.BUDGETS, 20))
    return tmp_path


def test_every_room_has_a_row_and_all_have_one(small, capsys):
    assert main([]) == 0
    rows = [line.split()[:4] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [
        ["busy", "20", "25.00", "20"],
        ["calm", "20", "3.00", "0"],
        ["interface", "1", "3.00", "0"],
        ["all", "41", "13.73", "20"],
    ]


def test_a_room_above_the_limit_fails_until_it_is_allowed(small, monkeypatch, capsys):
    assert main(["--check"]) == 1
    assert "busy has 25.0 tokens a line, 9.0 are allowed" in capsys.readouterr().out
    monkeypatch.setattr(density, "ALLOWANCES", {"busy": 25.0})
    assert main(["--check"]) == 0
    monkeypatch.setattr(density, "ALLOWANCES", {"busy": 26.0})
    assert main(["--check"]) == 0
    assert "busy 26.0 -> 25.0" in capsys.readouterr().out


def test_more_than_a_budget_fails(small, monkeypatch, capsys):
    monkeypatch.setattr(density, "ALLOWANCES", {"busy": 25.0})
    monkeypatch.setitem(density.BUDGETS, "parallel", 19)
    assert main(["--check"]) == 1
    assert "parallel: 20 in all rooms, 19 are allowed" in capsys.readouterr().out


def test_the_densest_come_first(small, capsys):
    (small / "busy/more.py").write_text(
        "def f():\n" + "    a = b[c[d[e]]] + g(h)\n" * 6
    )
    assert main(["--worst", "2"]) == 0
    files, functions = (
        capsys.readouterr().out.split("densest files")[1].split("densest functions")
    )
    assert "golf.py" in files.splitlines()[1] and "plain.py" in files.splitlines()[2]
    assert "more.py:1 f" in functions


def test_measures_add_up():
    total = Measure()
    total.add(measure_source("a, b = 1, 2\n", "a.py"))
    total.add(measure_source("c = 1\n", "b.py"))
    assert (total.lines, total.tokens) == (2, 10)
    assert total.places["parallel"] == ["a.py:1"]
