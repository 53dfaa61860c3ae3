"""How good groups are, for logs and reports."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedtailor.maths.grouping.divergence import kl, normalise_rows, pairwise_js
from fedtailor.maths.grouping.members import Counts, Groups, tabulate_counts


class Quality(NamedTuple):
    """What both kinds of Fed3+2p's coordinators minimise, of one set of groups."""

    sizes: list[int]
    kl_sum: float  # Eq. (5): over groups, KL(joint distribution || that of all clients)
    kl_max: float
    js_sum: float  # Eq. (10): JS summed over all ordered pairs inside groups
    js_mean: float  # the mean over pairs of different clients inside a group; 0 if there is none


def measure_quality(groups: Groups, counts: Counts) -> Quality:
    """The quality of any groups of the clients in ``counts``."""
    clients, n = tabulate_counts(counts)
    row_of = {k: i for i, k in enumerate(clients)}
    js = pairwise_js(normalise_rows(n))
    joint_counts = []
    js_sum = 0.0
    pairs = 0
    for group in groups:
        if not group:
            continue
        rows = [row_of[k] for k in group]
        joint_counts.append(n[rows].sum(0))
        js_sum += float(js[np.ix_(rows, rows)].sum())
        pairs += len(rows) * (len(rows) - 1)
    kl_of_groups = kl(np.stack(joint_counts), n.sum(0))
    return Quality(
        sizes=[len(group) for group in groups],
        kl_sum=float(kl_of_groups.sum()),
        kl_max=float(kl_of_groups.max()),
        js_sum=js_sum,
        js_mean=js_sum / max(pairs, 1),
    )
