"""AG News: tokens, and a vocabulary built on the training samples alone (fastText's set-up)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.checksums import verify
from fedtailor.data.entry import Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.raw import Raw, to_dataset
from fedtailor.data.readers.text_lines import read_cells

LENGTH = 200  # tokens of a text; shorter ones are padded, longer ones cut
VOCABULARY = 98_635  # at most, padding and the unknown token included: the size in FedCP's and GPFL's experiments
PAD, UNKNOWN, FIRST = (
    0,
    1,
    2,
)  # ids of padding, of tokens outside the vocabulary, and of the first token
OFFICIAL_COUNTS = {"train.csv": 120_000, "test.csv": 7_600}
TOKEN = re.compile(r"['.,()!?]|[^\s'.,()!?;:]+")


def tokenize(text: str) -> list[str]:
    """Lower-case words and punctuation marks; quotation marks vanish, colons and semicolons only separate."""
    return TOKEN.findall(text.lower().replace("<br />", " ").replace('"', ""))


def read_news(path: Path) -> Iterator[tuple[int, str]]:
    """Labels 0..3 and texts, from the official columns (label 1..4, title, description) or a prepared file.

    A prepared file has the header ``label,text`` and labels 0..3.
    """
    rows = read_cells(path)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path} is empty")
    prepared = first[1] == ["label", "text"]
    width, low, names = (2, 0, "label, text") if prepared else (3, 1, "label, title, description")
    for where, cells in rows if prepared else chain([first], rows):
        if len(cells) != width:
            raise UserError(f"{where}: {len(cells)} columns instead of {width} ({names})")
        if not cells[0].isdecimal() or not low <= int(cells[0]) <= low + 3:
            raise UserError(f"{where}: label '{cells[0]}' is not one of {low} to {low + 3}")
        yield int(cells[0]) - low, " ".join(cells[1:])


def parse_news(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """Token ids of the lexicon of all texts, in alphabetical order so that an id tells nothing of a frequency."""
    y: list[int] = []
    texts: list[list[str]] = []
    counts = []
    for file in entry.files:
        before = len(y)
        for label, text in read_news(paths[file]):
            y.append(label)
            texts.append(tokenize(text)[:LENGTH])
        counts.append(len(y) - before)
        complete = counts[-1] == OFFICIAL_COUNTS[file]
        content = paths[file].read_bytes()
        verify(
            content,
            entry.name,
            file,
            paths[file],
            complete=complete and not content.startswith(b"label,text"),
        )
    lexicon = {token: i for i, token in enumerate(sorted(set(chain.from_iterable(texts))), FIRST)}
    tokens = np.fromiter((lexicon[t] for t in chain.from_iterable(texts)), np.int32)
    lengths = np.array([len(t) for t in texts], np.int32)
    test = np.repeat([False, True], counts)
    return Raw(
        {
            "y": np.array(y),
            "test": test,
            "tokens": tokens,
            "lengths": lengths,
            "size": np.array([len(lexicon)]),
        }
    )


def pad_texts(raw: Raw, entry: Entry) -> Dataset:
    """The data set: ids of the lexicon until ``fit`` has seen which samples are for training."""
    lengths = torch.from_numpy(raw.arrays["lengths"])
    x = torch.zeros(len(lengths), LENGTH, dtype=torch.int64)
    x[torch.arange(LENGTH) < lengths[:, None]] = torch.from_numpy(raw.arrays["tokens"]).long()
    size = min(VOCABULARY, int(raw.arrays["size"][0]) + FIRST)
    return to_dataset(raw, entry, x=x, vocabulary=size, fit=partial(fit_vocabulary, x, size))


def fit_vocabulary(x: Tensor, size: int, train: Tensor) -> Tensor:
    """All texts in ids of the ``size`` - 2 most frequent tokens of the training samples, the most frequent first.

    Equally frequent tokens come in alphabetical order; every other token becomes the unknown one.
    """
    counts = torch.bincount(x[train].flatten(), minlength=int(x.max()) + 1)
    counts[:FIRST] = 0
    order = torch.argsort(counts, descending=True, stable=True)
    kept = order[: min(size - FIRST, int((counts > 0).sum()))]
    table = torch.full_like(counts, UNKNOWN)
    table[kept] = torch.arange(FIRST, FIRST + len(kept))
    table[PAD] = PAD
    return table[x]
