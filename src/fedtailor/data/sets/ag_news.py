"""AG News: tokens, and a vocabulary built on the training samples alone (fastText's set-up)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.checksums import check_contents
from fedtailor.data.entry import Download, Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.loader import Loader
from fedtailor.data.raw import Raw, to_dataset
from fedtailor.data.readers.text_lines import read_csv_rows

LENGTH = 200  # tokens of a text; shorter ones are padded, longer ones cut
# At most, padding and the unknown token included: the size in FedCP's and GPFL's experiments.
VOCABULARY = 98_635
PAD = 0  # id of padding
UNKNOWN = 1  # id of all tokens outside the vocabulary
FIRST = 2  # id of the first token of the vocabulary
OFFICIAL_COUNTS = {"train.csv": 120_000, "test.csv": 7_600}
TOKEN = re.compile(r"['.,()!?]|[^\s'.,()!?;:]+")
OFFICIAL_COLUMNS = ["label", "title", "description"]
PREPARED_HEADER = ["label", "text"]
URL = (
    "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
)
TRAIN_MD5 = "b1a00f826fdfbd249f79597b59e1dc12"
TEST_MD5 = "d52ea96a97a2d943681189a97654912d"

AG_NEWS = Entry(
    name="ag_news",
    title="AG News, headlines and first sentences; at most 200 tokens",
    kind="text",
    shape=(LENGTH,),
    classes=4,
    samples=127_600,
    source="Zhang, Zhao, LeCun, NeurIPS 2015",
    homepage="http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
    licence="academic, non-commercial",
    files=("train.csv", "test.csv"),
    archive_folders=("ag_news_csv",),
    downloads=(
        Download("train.csv", (f"{URL}/train.csv",), f"md5:{TRAIN_MD5}"),
        Download("test.csv", (f"{URL}/test.csv",), f"md5:{TEST_MD5}"),
    ),
    md5={"train.csv": TRAIN_MD5, "test.csv": TEST_MD5},
    labels=("World", "Sports", "Business", "Sci/Tech"),
)


def tokenize(text: str) -> list[str]:
    """Lower-case words and punctuation marks.

    Quotation marks are removed; colons and semicolons only separate words.
    """
    plain = text.lower().replace("<br />", " ").replace('"', "")
    return TOKEN.findall(plain)


def parse_news(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """All texts as token ids, in the alphabetical order of all tokens.

    The order is alphabetical so that an id tells nothing of the token's frequency.
    """
    y: list[int] = []
    texts: list[list[str]] = []
    counts = []
    for file in entry.files:
        before = len(y)
        for label, text in read_news(paths[file]):
            y.append(label)
            texts.append(tokenize(text)[:LENGTH])
        counts.append(len(y) - before)
        _check_file(file, paths[file], counts[-1], entry)
    words = sorted(set(chain.from_iterable(texts)))
    number = {token: i for i, token in enumerate(words, FIRST)}
    tokens = (number[token] for token in chain.from_iterable(texts))
    arrays = {
        "y": np.array(y),
        "test": np.repeat([False, True], counts),
        "tokens": np.fromiter(tokens, np.int32),
        "lengths": np.array([len(text) for text in texts], np.int32),
        "size": np.array([len(number)]),
    }
    return Raw(arrays)


def read_news(path: Path) -> Iterator[tuple[int, str]]:
    """Labels 0..3 and texts, from an official or a prepared file.

    The official columns are label (1..4), title and description. A prepared file has the header
    ``label,text`` and labels 0..3.
    """
    rows = read_csv_rows(path)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path} is empty")
    _, header = first
    if header == PREPARED_HEADER:
        columns = PREPARED_HEADER
        lowest = 0
    else:
        columns = OFFICIAL_COLUMNS
        lowest = 1
        rows = chain([first], rows)
    highest = lowest + 3
    for where, cells in rows:
        if len(cells) != len(columns):
            raise UserError(
                f"{where}: {len(cells)} columns instead of {len(columns)} ({', '.join(columns)})"
            )
        label, *texts = cells
        if not label.isdecimal() or not lowest <= int(label) <= highest:
            raise UserError(
                f"{where}: label '{label}' is not one of {lowest} to {highest}"
            )
        yield int(label) - lowest, " ".join(texts)


def _check_file(file: str, path: Path, samples: int, entry: Entry) -> None:
    """Refuse a damaged official file; a prepared one has no known checksum."""
    content = path.read_bytes()
    is_prepared = content.startswith(b"label,text")
    complete = samples == OFFICIAL_COUNTS[file] and not is_prepared
    check_contents(content, file, path, entry, (AG_NEWS,), complete=complete)


def pad_texts(raw: Raw, entry: Entry) -> Dataset:
    """The data set, in ids of all tokens until ``fit`` knows which samples are for training."""
    lengths = torch.from_numpy(raw.arrays["lengths"])
    x = torch.zeros(len(lengths), LENGTH, dtype=torch.int64)
    is_token = torch.arange(LENGTH) < lengths[:, None]
    x[is_token] = torch.from_numpy(raw.arrays["tokens"]).long()
    all_tokens = int(raw.arrays["size"][0])
    size = min(VOCABULARY, all_tokens + FIRST)
    dataset = to_dataset(raw, entry, x)
    return replace(dataset, vocabulary=size, fit=partial(fit_vocabulary, x, size))


def fit_vocabulary(x: Tensor, size: int, train: Tensor) -> Tensor:
    """All texts in ids of the ``size`` - 2 most frequent tokens of the training samples.

    The most frequent token comes first; equally frequent ones are in alphabetical order. Every
    other token becomes the unknown one.
    """
    counts = torch.bincount(x[train].flatten(), minlength=int(x.max()) + 1)
    counts[:FIRST] = 0
    order = torch.argsort(counts, descending=True, stable=True)
    used = int((counts > 0).sum())
    kept = order[: min(size - FIRST, used)]
    new_ids = torch.full_like(counts, UNKNOWN)
    new_ids[kept] = torch.arange(FIRST, FIRST + len(kept))
    new_ids[PAD] = PAD
    return new_ids[x]


LOADERS = (Loader(AG_NEWS, parse_news, finish=pad_texts),)
