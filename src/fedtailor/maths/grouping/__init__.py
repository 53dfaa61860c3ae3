"""Groups of clients by their label counts: balanced groups, and groups of similar clients.

A balanced group is one whose labels, taken together, are distributed like those of all clients.
"""

from fedtailor.maths.grouping.balanced_kl import (
    extend_balanced_groups,
    make_balanced_groups,
)
from fedtailor.maths.grouping.members import Counts, Groups, draw_groups, find_group
from fedtailor.maths.grouping.minsum_js import (
    extend_similar_groups,
    make_similar_groups,
    suggest_group_count,
)
from fedtailor.maths.grouping.quality import Quality, measure_quality

__all__ = [
    "Counts",
    "Groups",
    "Quality",
    "draw_groups",
    "extend_balanced_groups",
    "extend_similar_groups",
    "find_group",
    "make_balanced_groups",
    "make_similar_groups",
    "measure_quality",
    "suggest_group_count",
]
