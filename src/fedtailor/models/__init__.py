"""Networks: the papers' backbones by name, and a user's own."""

from fedtailor.models.backbone import Backbone, fresh, leading_modules
from fedtailor.models.input_checks import suggest
from fedtailor.models.layers import drop_counters
from fedtailor.models.own_network import adopt
from fedtailor.models.registry import Entry, build, catalogue

__all__ = [
    "Backbone",
    "Entry",
    "adopt",
    "build",
    "catalogue",
    "drop_counters",
    "fresh",
    "leading_modules",
    "suggest",
]
