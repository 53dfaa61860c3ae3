"""Networks: the papers' backbones by name, and a user's own."""

from fedtailor.models.backbone import Backbone, fresh, leading_modules
from fedtailor.models.input_checks import suggest_architecture
from fedtailor.models.layers import drop_counters
from fedtailor.models.own_network import wrap_own_network
from fedtailor.models.registry import (
    CatalogueEntry,
    build,
    catalogue,
    find_learning_rate,
)

__all__ = [
    "Backbone",
    "CatalogueEntry",
    "build",
    "catalogue",
    "drop_counters",
    "find_learning_rate",
    "fresh",
    "leading_modules",
    "suggest_architecture",
    "wrap_own_network",
]
