"""Data sets, and how their samples are divided among clients."""

from fedtailor.data.catalogue import list_datasets
from fedtailor.data.entry import Download, Entry
from fedtailor.data.fetch import fetch_dataset
from fedtailor.data.load import load_dataset
from fedtailor.data.locations import find_data_folder, is_available
from fedtailor.data.own.arrays import build_dataset, build_own_data, list_notices

__all__ = [
    "Download",
    "Entry",
    "build_dataset",
    "build_own_data",
    "fetch_dataset",
    "find_data_folder",
    "is_available",
    "list_datasets",
    "list_notices",
    "load_dataset",
]
