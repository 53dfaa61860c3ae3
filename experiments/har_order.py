"""Put the windows of a prepared HAR file back into the order of the experiment, as far as it can be found again.

    python experiments/har_order.py DATA/har.npz ORDERED/har.npz

Every volunteer did everything twice, with the phone in another place the second time: standing, sitting, lying,
walking, down the stairs, up the stairs. The official files keep that order and need none of this. A file sorted by
activity has lost it, but of whoever was upright the direction of gravity tells the two placements apart. Which of the
two came first, and in which of them somebody sat or lay, is drawn by lot.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans

from fedtailor.data.sets.har import find_segments

WALKING, UP, DOWN, SITTING, STANDING, LYING = range(6)
GRAVITY = slice(6, 9)  # channels of the total acceleration


def main() -> None:
    """Read, order, write."""
    source, target = map(Path, sys.argv[1:])
    with np.load(source) as file:
        arrays = {name: file[name] for name in file.files}
    x, y, client = (arrays[name] for name in ("x", "y", "client"))
    segment, lot = find_segments(x, y, client), np.random.default_rng(0)
    order: list[int] = []
    early, late = [], []  # labels of every volunteer's first three quarters, and of the last
    for k in np.unique(client):
        recordings = [np.flatnonzero(segment == s) for s in np.unique(segment[client == k])]
        second = find_second(x, y, recordings, lot)
        begun = len(order)
        for trial in (False, True):
            for activity in (STANDING, SITTING, LYING, WALKING, DOWN, UP):
                for windows, later in zip(recordings, second, strict=True):
                    if later == trial and y[windows[0]] == activity:
                        order.extend(windows)
        cut = begun + round(0.75 * (len(order) - begun))
        early.append(y[order[begun:cut]])
        late.append(y[order[cut:]])
    target.parent.mkdir(parents=True, exist_ok=True)
    np.savez(target, **{name: values[order] for name, values in arrays.items()})
    shares = [np.isin(np.concatenate(part), (WALKING, UP, DOWN)).mean() for part in (early, late)]
    print(
        f"of walking, level or stairs: {shares[0]:.0%} of the first three quarters, {shares[1]:.0%} of the last"
    )


def find_second(
    x: np.ndarray, y: np.ndarray, recordings: list[np.ndarray], lot: np.random.Generator
) -> list[bool]:
    """Which of one volunteer's recordings are of the second trial."""
    activity = np.array([y[windows[0]] for windows in recordings])
    moving = np.isin(activity, (WALKING, UP, DOWN))
    second = lot.permutation(len(recordings)) % 2 == 0
    tilt = np.array([x[windows, GRAVITY].mean(axis=(0, 2)) for windows in recordings])
    for a in (WALKING, UP, DOWN):  # who climbs leans forward, wherever the phone is
        tilt[activity == a] -= tilt[activity == a].mean(axis=0)
    groups = KMeans(2, n_init=10, random_state=0).fit_predict(tilt[moving])
    second[moving] = groups == lot.integers(2)
    return [bool(s) for s in second]


if __name__ == "__main__":
    main()
