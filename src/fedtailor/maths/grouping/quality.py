"""How good groups are, for logs and reports."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedtailor.maths.grouping.divergence import Counts, Groups, js, kl, normalise_rows, tabulate


class Quality(NamedTuple):
    """Of one set of groups."""

    sizes: list[int]
    kl_sum: float  # Eq. (5): sum over groups of KL(joint distribution || everybody's)
    kl_max: float
    js_sum: float  # Eq. (10): JS summed over all ordered pairs inside groups
    js_mean: (
        float  # the mean over pairs of different clients inside a group; 0 where there are none
    )


def assess(groups: Groups, counts: Counts) -> Quality:
    """What both kinds of coordinators minimise, for any groups of the clients in ``counts``."""
    clients, n = tabulate(counts)
    at = {k: i for i, k in enumerate(clients)}
    rows = [[at[k] for k in group] for group in groups if group]
    joint = kl(np.stack([n[r].sum(0) for r in rows]), n.sum(0))
    far = js(normalise_rows(n))
    inside = [float(far[np.ix_(r, r)].sum()) for r in rows]
    pairs = sum(len(r) * (len(r) - 1) for r in rows)
    sizes = [len(group) for group in groups]
    return Quality(
        sizes, float(joint.sum()), float(joint.max()), sum(inside), sum(inside) / max(pairs, 1)
    )
