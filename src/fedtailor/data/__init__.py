"""Data sets, and how they are dealt to clients."""

from fedtailor.data.clients import arrays, notices
from fedtailor.data.entries import catalogue
from fedtailor.data.entry import Download, Entry
from fedtailor.data.fetch import fetch
from fedtailor.data.places import data_folder, is_available
from fedtailor.data.registry import load

__all__ = ["Download", "Entry", "arrays", "catalogue", "data_folder", "fetch", "is_available", "load", "notices"]
