"""Put the windows of a prepared HAR file back into the order of the experiment, as far as known.

    python -m experiments.studies.har_order DATA/har.npz ORDERED/har.npz

Every volunteer did everything twice, with the phone in another place the second time: standing,
sitting, lying, walking, down the stairs, up the stairs. The official files keep that order and need
none of this. A file sorted by activity has lost it, but of volunteers who were upright the
direction of gravity tells the two placements apart. Which of the two came first, and in which of
them a volunteer sat or lay, is drawn at random.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans

from fedtailor.data.sets.har import find_segments

WALKING, UP, DOWN, SITTING, STANDING, LYING = range(6)
MOVING = (WALKING, UP, DOWN)
ORDER = (STANDING, SITTING, LYING, WALKING, DOWN, UP)  # of the experiment
GRAVITY = slice(6, 9)  # channels of the total acceleration


def main() -> None:
    """Read, order, write."""
    source, target = map(Path, sys.argv[1:])
    with np.load(source) as file:
        arrays = {name: file[name] for name in file.files}
    x = arrays["x"]
    y = arrays["y"]
    client = arrays["client"]
    segment = find_segments(x, y, client)
    rng = np.random.default_rng(0)
    order: list[int] = []
    early = []  # labels of every volunteer's first three quarters
    late = []  # and of the last quarter
    for k in np.unique(client):
        own_segments = np.unique(segment[client == k])
        recordings = [np.flatnonzero(segment == s) for s in own_segments]
        windows = order_windows(x, y, recordings, rng)
        cut = round(0.75 * len(windows))
        early.append(y[windows[:cut]])
        late.append(y[windows[cut:]])
        order.extend(windows)
    target.parent.mkdir(parents=True, exist_ok=True)
    ordered = {name: values[order] for name, values in arrays.items()}
    np.savez(target, **ordered)
    print(
        f"of walking, level or stairs: {measure_moving_share(early):.0%} of the first three "
        f"quarters, {measure_moving_share(late):.0%} of the last"
    )


def order_windows(
    x: np.ndarray,
    y: np.ndarray,
    recordings: list[np.ndarray],
    rng: np.random.Generator,
) -> list[int]:
    """One volunteer's windows: the first trial, then the second, activity after activity."""
    second = find_second_trial(x, y, recordings, rng)
    order: list[int] = []
    for trial in (False, True):
        for activity in ORDER:
            for windows, is_second in zip(recordings, second, strict=True):
                if is_second == trial and y[windows[0]] == activity:
                    order.extend(windows)
    return order


def find_second_trial(
    x: np.ndarray,
    y: np.ndarray,
    recordings: list[np.ndarray],
    rng: np.random.Generator,
) -> list[bool]:
    """Which of one volunteer's recordings are of the second trial."""
    activity = np.array([y[windows[0]] for windows in recordings])
    moving = np.isin(activity, MOVING)
    second = rng.permutation(len(recordings)) % 2 == 0
    tilt = np.array([x[windows, GRAVITY].mean(axis=(0, 2)) for windows in recordings])
    for a in MOVING:  # people who climb lean forward, wherever the phone is
        same = activity == a
        tilt[same] -= tilt[same].mean(axis=0)
    clustering = KMeans(2, n_init=10, random_state=0)
    placement = clustering.fit_predict(tilt[moving])
    second[moving] = placement == rng.integers(2)
    return [bool(value) for value in second]


def measure_moving_share(labels: list[np.ndarray]) -> float:
    """The share of windows in which somebody walks."""
    return float(np.isin(np.concatenate(labels), MOVING).mean())


if __name__ == "__main__":
    main()
