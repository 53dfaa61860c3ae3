"""Data sets, and how they are dealt to clients."""

from fedtailor.data.catalogue import catalogue
from fedtailor.data.entry import Download, Entry
from fedtailor.data.fetch import fetch
from fedtailor.data.load import load
from fedtailor.data.locations import data_folder, is_available
from fedtailor.data.own.arrays import arrays, notices

__all__ = [
    "Download",
    "Entry",
    "arrays",
    "catalogue",
    "data_folder",
    "fetch",
    "is_available",
    "load",
    "notices",
]
