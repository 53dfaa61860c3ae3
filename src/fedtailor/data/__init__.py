"""Data sets, and how they are dealt to clients."""

from fedtailor.data.registry import load

__all__ = ["load"]
