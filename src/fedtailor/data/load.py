"""From the name of a data set, or the path of a user's own data, to a ``Dataset``."""

from __future__ import annotations

from pathlib import Path

from fedtailor.core.errors import UserError, unknown
from fedtailor.data.catalogue import find_loader, list_loaders
from fedtailor.data.federation import Dataset
from fedtailor.data.locations import find_data_folder
from fedtailor.data.own.files import is_path, load_own_data
from fedtailor.data.own.missing_values import check_missing_option
from fedtailor.data.readers.csv_table import USUAL, Columns


def load_dataset(
    name: str,
    folder: Path | str | None = None,
    *,
    missing: str | None = None,
    columns: Columns = USUAL,
) -> Dataset:
    """The data set of this name (``NAME`` or ``NAME:VARIANT``), or the user's own at this path.

    Args:
        name: a data set's name, or the path of a file or folder.
        folder: where the files of named data sets are; by default FEDTAILOR_DATA, else
            ~/.fedtailor/data. The official files in ``<name>/`` win over a prepared ``<name>.npz``.
            What is parsed is cached there.
        missing: ``"median"`` fills missing values in the user's own tables.
        columns: which column of the user's own csv files is the label, which are left out.
    """
    check_missing_option(missing)
    try:
        return _load_by_name_or_path(name, folder, missing, columns)
    except OSError as e:  # no permission, a disk that fails
        raise UserError(
            f"{e.filename or name} cannot be read ({e.strerror or e})"
        ) from None


def _load_by_name_or_path(
    name: str, folder: Path | str | None, missing: str | None, columns: Columns
) -> Dataset:
    base, _, variant = name.partition(":")
    loader = find_loader(base)
    if loader is not None:
        return loader.load(variant, find_data_folder(folder))
    if is_path(name):
        return load_own_data(Path(name).expanduser(), missing=missing, columns=columns)
    raise unknown("data set", base, list_loaders())
