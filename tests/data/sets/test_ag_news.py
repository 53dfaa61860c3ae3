"""AG News: tokens, vocabulary on training data alone, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from data_helpers import refusal

from fedtailor.data import load_dataset
from fedtailor.data.sets.ag_news import (
    LENGTH,
    UNKNOWN,
    VOCABULARY,
    fit_vocabulary,
    tokenize,
)

TRAIN = [
    (3, "Wall St. Bears", "Short-sellers, Wall Street's dwindling\\band"),
    (1, "World", 'the "quoted" the'),
]
TEST = [(4, "Science", "unheard words: the end")]


def write_official(folder: Path) -> Path:
    home = folder / "ag_news"
    home.mkdir()
    for file, rows in (("train.csv", TRAIN), ("test.csv", TEST)):
        cells = [
            [str(label), title.replace('"', '""'), text.replace('"', '""')]
            for label, title, text in rows
        ]
        (home / file).write_text("".join('"' + '","'.join(c) + '"\n' for c in cells))
    return home


def complaint(folder: Path) -> str:
    return refusal(load_dataset, "ag_news", folder)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, World!", ["hello", ",", "world", "!"]),
        ("It's (not) 3.5?", ["it", "'", "s", "(", "not", ")", "3", ".", "5", "?"]),
        ('a "b"c; d:e<br />f', ["a", "bc", "d", "e", "f"]),
        ("  tabs\tand\nlines ", ["tabs", "and", "lines"]),
        ("short-sellers #36;10", ["short-sellers", "#36", "10"]),
        ("", []),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


def test_official_files(tmp_path: Path) -> None:
    write_official(tmp_path)
    d = load_dataset("ag_news", tmp_path)
    assert d.kind == "text" and d.x.shape == (3, LENGTH) and d.x.dtype == torch.int64
    assert (
        d.y.tolist() == [2, 0, 3]
        and d.test is not None
        and d.test.tolist() == [False, False, True]
    )
    texts = [tokenize(f"{title} {text}") for _, title, text in TRAIN + TEST]
    assert (d.x != 0).sum(1).tolist() == [len(t) for t in texts]
    assert d.vocabulary == len({token for t in texts for token in t}) + 2


def test_a_prepared_file_gives_the_same(tmp_path: Path) -> None:
    home = write_official(tmp_path)
    official = load_dataset("ag_news", tmp_path)
    for file, rows in (("train.csv", TRAIN), ("test.csv", TEST)):
        cells = [
            f'{label - 1},"{title} {text}"\n'.replace('"quoted"', '""quoted""')
            for label, title, text in rows
        ]
        (home / file).write_text("label,text\n" + "".join(cells))
    prepared = load_dataset("ag_news", tmp_path)
    assert (official.x == prepared.x).all() and (official.y == prepared.y).all()


def test_the_vocabulary_is_of_the_training_samples_alone(tmp_path: Path) -> None:
    write_official(tmp_path)
    d = load_dataset("ag_news", tmp_path)
    assert d.fit is not None and d.test is not None
    x = d.fit((~d.test).nonzero()[:, 0])
    test = tokenize(f"{TEST[0][1]} {TEST[0][2]}")
    assert test == ["science", "unheard", "words", "the", "end"]
    assert x[2, :5].tolist() == [
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        2,
        UNKNOWN,
    ]  # 'the' twice and 'wall' twice: 'the' first
    assert x[0, :2].tolist() == [3, x[0, 1]] and int(x.max()) < d.vocabulary
    assert ((x == 0) == (d.x == 0)).all()


def test_only_the_most_frequent_tokens_are_kept() -> None:
    x = torch.tensor([[2, 3, 3, 4], [4, 4, 5, 0], [6, 6, 6, 6]])
    fitted = fit_vocabulary(x, 4, torch.tensor([0, 1]))
    assert fitted.tolist() == [[1, 3, 3, 2], [2, 2, 1, 0], [1, 1, 1, 1]]


def test_long_texts_are_cut(tmp_path: Path) -> None:
    home = write_official(tmp_path)
    (home / "test.csv").write_text('"1","t","' + "word " * 300 + '"\n')
    assert int((load_dataset("ag_news", tmp_path).x[2] != 0).sum()) == LENGTH


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            '"1","a","b"\n"2","only a title"\n',
            "train.csv, line 2: 2 columns instead of 3",
        ),
        ('"5","a","b"\n', "train.csv, line 1: label '5' is not one of 1 to 4"),
        ("label,text\n4,a\n", "train.csv, line 2: label '4' is not one of 0 to 3"),
        ("label,text\n1,a,b\n", "train.csv, line 2: 3 columns instead of 2"),
        ("", "train.csv is empty"),
    ],
)
def test_bad_rows_are_named(content: str, expected: str, tmp_path: Path) -> None:
    home = write_official(tmp_path)
    (home / "train.csv").write_text(content)
    assert expected in complaint(tmp_path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    home = write_official(tmp_path)
    (home / "test.csv").write_bytes(b'"1","a","b"\n"1","\xff\xfe","b"\n')
    assert f"{home / 'test.csv'}, line 2: byte 0xff is no text" in complaint(tmp_path)


class TestReal:
    def test_real_part(self, real_data) -> None:
        d = load_dataset("ag_news", real_data("ag_news"))
        assert (
            int(d.test.sum()) == 7_600 and d.y[d.test].bincount().tolist() == [1900] * 4
        )
        assert 40_000 < d.vocabulary <= VOCABULARY
        train = (~d.test).nonzero()[:, 0]
        x = d.fit(train)
        assert x.shape == d.x.shape and not (x[train] == UNKNOWN).any()
        unknown = (x[d.test] == UNKNOWN).sum() / (x[d.test] > 0).sum()
        assert 0.01 < unknown < 0.1
        # the most frequent token is the first of the vocabulary
        assert x[x > 0].mode().values == 2

    def test_words_tell_the_class(self, real_data) -> None:
        """Naive Bayes on the fitted ids gets most of the test part right."""
        d = load_dataset("ag_news", real_data("ag_news"))
        x = d.fit((~d.test).nonzero()[:, 0])
        counts = [
            x[~d.test & (d.y == c)].flatten().bincount(minlength=d.vocabulary) + 1.0
            for c in range(4)
        ]
        likely = [
            (n / n[2:].sum()).log().index_fill(0, torch.tensor([0, 1]), 0.0)
            for n in counts
        ]
        guess = torch.stack([log[x[d.test]].sum(1) for log in likely]).argmax(0)
        assert (guess == d.y[d.test]).float().mean() > 0.85
