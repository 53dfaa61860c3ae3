"""The defaults of a partition: the same for the command line, TOML files and Python."""

from __future__ import annotations

from fedtailor.data.federation import Dataset

DEFAULT_PARTITION = "dirichlet:0.1"  # where the data set does not say who owns what
DEFAULT_CLIENTS = 20
DEFAULT_SPLIT = "merged:0.75"
DEFAULT_VALIDATION = 0.1


def choose_default_partition(data: Dataset) -> str:
    """The partition of a data set if the user names none: its natural clients if it has them.

    Without classes to divide unevenly, samples are dealt evenly.
    """
    if data.owner is not None:
        return "natural"
    return DEFAULT_PARTITION if data.target == "classes" else "iid"
