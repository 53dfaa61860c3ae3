"""Groups of clients by their label counts: groups that mirror everybody, and groups of look-alikes."""

from fedtailor.maths.grouping.balanced_kl import extend_mirrors, group_mirrors
from fedtailor.maths.grouping.divergence import Counts, Groups
from fedtailor.maths.grouping.minsum_js import extend_lookalikes, group_lookalikes, suggest_groups
from fedtailor.maths.grouping.phase import Phase, advance, is_flat, last_round, validate
from fedtailor.maths.grouping.quality import Quality, assess
from fedtailor.maths.grouping.relay import Relay, run_relay
from fedtailor.maths.grouping.roster import (
    Census,
    Roster,
    ask_counts,
    count_labels,
    draw_groups,
    enrol,
    find_group,
    form_lookalikes,
    list_mirrors,
    open_roster,
    remirror,
    tell,
)

__all__ = [
    "Census",
    "Counts",
    "Groups",
    "Phase",
    "Quality",
    "Relay",
    "Roster",
    "advance",
    "ask_counts",
    "assess",
    "count_labels",
    "draw_groups",
    "enrol",
    "extend_lookalikes",
    "extend_mirrors",
    "find_group",
    "form_lookalikes",
    "group_lookalikes",
    "group_mirrors",
    "is_flat",
    "last_round",
    "list_mirrors",
    "open_roster",
    "remirror",
    "run_relay",
    "suggest_groups",
    "tell",
    "validate",
]
