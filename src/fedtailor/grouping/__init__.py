"""Groups of clients by their label counts: groups that mirror everybody, and groups of look-alikes."""

from fedtailor.grouping.balanced_kl import extend_mirrors, group_mirrors
from fedtailor.grouping.divergence import Counts, Groups
from fedtailor.grouping.minsum_js import extend_lookalikes, group_lookalikes, suggest_groups
from fedtailor.grouping.quality import Quality, assess

__all__ = [
    "Counts",
    "Groups",
    "Quality",
    "assess",
    "extend_lookalikes",
    "extend_mirrors",
    "group_lookalikes",
    "group_mirrors",
    "suggest_groups",
]
