"""The catalogue: what is in it, and that one new file is a new data set."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from data_helpers import refusal, write_prepared

from fedtailor.cli.main import main
from fedtailor.data import fetch_dataset, list_datasets, load_dataset, sets
from fedtailor.data.catalogue import find_entry, find_loader, list_loaders

SET_FILE = '''
"""Petals: lengths and widths, from a text file of numbers."""

from pathlib import Path

import numpy as np

from fedtailor.data.entry import Download, Entry
from fedtailor.data.loader import Loader
from fedtailor.data.raw import Raw, to_dataset

PETALS = Entry(
    name="petals",
    title="Petals of two flowers",
    kind="table",
    shape=(2,),
    classes=2,
    samples=200,
    source="nobody",
    homepage="http://localhost",
    licence="none",
    files=("petals.txt",),
    downloads=(Download("petals.txt", ("http://127.0.0.1:9/petals.txt",)),),
    labels=("rose", "lily"),
    variants=("metric", "doubled"),
)
LEAVES = Entry(**{**vars(PETALS), "name": "leaves", "title": "The same", "variants": ()})


def parse_petals(paths, entry):
    table = np.loadtxt(paths["petals.txt"], dtype=np.float32)
    return Raw({"x": table[:, :2], "y": table[:, 2].astype(np.int64)})


def scale_petals(raw, entry):
    factor = 2 if entry.variant == "doubled" else 1
    return to_dataset(Raw(raw.arrays | {"x": raw.arrays["x"] * factor}), entry)


LOADERS = (Loader(PETALS, parse_petals, finish=scale_petals), Loader(LEAVES, parse_petals))
'''


@pytest.fixture
def new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file ``petals.py`` among the files of data sets, which holds two of them."""
    folder = tmp_path / "more_sets"
    folder.mkdir()
    (folder / "petals.py").write_text(SET_FILE)
    monkeypatch.setattr(sets, "__path__", [*sets.__path__, str(folder)])
    yield
    sys.modules.pop("fedtailor.data.sets.petals", None)
    vars(sets).pop("petals", None)


def write_petals(folder: Path, name: str = "petals") -> np.ndarray:
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = rng.normal(size=(200, 2)) + y[:, None]
    (folder / name).mkdir()
    np.savetxt(folder / name / "petals.txt", np.column_stack([x, y]))
    return x.astype(np.float32)


@pytest.mark.usefixtures("new_file")
class TestOneNewFile:
    def test_its_data_sets_are_in_the_catalogue(self) -> None:
        names = [entry.name for entry in list_datasets()]
        assert {"petals", "leaves", "mnist", "har"} < set(names) and names == sorted(
            names
        )
        assert find_entry("petals:doubled").variant == "doubled"
        assert find_entry("leaves").title == "The same"

    def test_they_are_loaded_from_official_and_from_prepared_files(
        self, tmp_path: Path
    ) -> None:
        assert "put petals.txt into" in refusal(load_dataset, "petals", tmp_path)
        write_prepared(tmp_path, "petals")
        assert len(load_dataset("petals", tmp_path)) == 8
        x = write_petals(tmp_path)
        petals = load_dataset("petals", tmp_path)
        assert np.allclose(petals.x.numpy(), x) and petals.labels == ("rose", "lily")
        doubled = load_dataset("petals:doubled", tmp_path)
        assert (
            np.allclose(doubled.x.numpy(), 2 * x) and doubled.name == "petals:doubled"
        )
        assert len(list((tmp_path / ".fedtailor").glob("petals-*"))) == 1

    def test_misspelt_names_are_told(self, tmp_path: Path) -> None:
        assert "did you mean petals" in refusal(load_dataset, "petal", tmp_path)
        assert "did you mean doubled?" in refusal(
            load_dataset, "petals:double", tmp_path
        )

    def test_what_is_there_is_not_fetched(self, tmp_path: Path) -> None:
        write_petals(tmp_path, "leaves")
        assert fetch_dataset("leaves", tmp_path) == [tmp_path / "leaves" / "petals.txt"]

    def test_the_command_line_knows_them(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "160")
        monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
        write_petals(tmp_path)
        for command in (
            "datasets",
            "partition --data petals:doubled --clients 4 --out p",
        ):
            monkeypatch.setattr(sys, "argv", ["fedtailor", *command.split()])
            with pytest.raises(SystemExit) as end:
                main()
            shown = capsys.readouterr()
            assert not end.value.code and "petals" in shown.out, shown.err
        assert (tmp_path / "p.npz").exists()


def test_without_the_file_there_is_no_such_data_set() -> None:
    assert find_loader("petals") is None and "petals" not in list_loaders()


def test_every_file_lists_its_data_sets() -> None:
    folder = Path(next(iter(sets.__path__)))
    files = sorted(
        path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")
    )
    modules = {loader.parse.__module__ for loader in list_loaders().values()}
    assert sorted(module.rpartition(".")[2] for module in modules) == files
    for file in files:
        loaders = sys.modules[f"fedtailor.data.sets.{file}"].LOADERS
        for loader in loaders:  # no other file has a data set of the same name
            assert find_loader(loader.entry.name) is loader


@pytest.mark.parametrize("name", list_loaders())
def test_what_is_known_of_a_data_set(name: str) -> None:
    entry = find_entry(name)
    assert entry.title and entry.source and entry.licence
    assert entry.homepage.startswith("http")
    assert bool(entry.files) == (name != "digits")
    assert bool(entry.owners or name == "flickr_aes") == bool(entry.natural_clients)
    for download in entry.downloads:
        assert all(url.startswith("http") for url in download.urls)
        assert not download.checksum or len(download.checksum) == len("md5:") + 32
    for variant in entry.variants or ("",):
        described = entry.with_variant(variant)
        assert described.variant == variant
        assert not described.labels or len(described.labels) == described.classes
        known = {file.removesuffix(".gz") for file in described.files}
        assert set(described.md5) <= known
