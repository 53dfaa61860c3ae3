"""Merging rules against the papers' formulas written as loops, and against byzfl."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Rng
from fedtailor.maths import robust
from fedtailor.maths.robust import make_rule, parse_rule


def rows(n: int, d: int = 7, liars: int = 0, seed: int = 0) -> torch.Tensor:
    """Random rows around 1, the last ``liars`` of them far away."""
    x = 1 + Rng.seed(seed).normal(n, d).double()
    x[n - liars :] += 50
    return x


# ---------------------------------------------------------------- formulas as loops
def krum_scores(x: torch.Tensor, f: int) -> list[float]:
    """Blanchard et al.: sums over the n - f - 2 nearest other vectors."""
    scores = []
    for i in range(len(x)):
        far = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(len(x)) if j != i)
        scores.append(sum(far[: len(x) - f - 2]))
    return scores


@pytest.mark.parametrize("n", [3, 8, 11])
def test_median_and_trimmed_mean_coordinate_by_coordinate(n):
    x = rows(n, liars=1)
    median = robust.take_median(x)
    trimmed = robust.trim_mean(x, 0.2)
    cut = int(0.2 * n)
    for j in range(x.shape[1]):
        column = sorted(x[:, j].tolist())
        assert float(median[j]) == pytest.approx(statistics.median(column), abs=1e-12)
        kept = column[cut : n - cut]
        assert float(trimmed[j]) == pytest.approx(statistics.fmean(kept), abs=1e-12)


@pytest.mark.parametrize("n", [5, 8, 11])
def test_krum_and_multikrum_by_the_papers_score(n):
    x = rows(n, liars=1)
    f = (n - 3) // 2
    scores = krum_scores(x, f)
    order = sorted(range(n), key=scores.__getitem__)
    assert torch.equal(robust.krum(x), x[order[0]])
    expected = x[order[:3]].mean(0)
    assert torch.allclose(robust.multikrum(x, 3), expected, atol=1e-12)


def test_bulyan_by_the_paper():
    n = 11
    f = 2  # n >= 4f + 3
    x = rows(n, liars=2)
    left = list(range(n))
    chosen = []
    for _ in range(n - 2 * f):
        pool = x[left]
        # as soon as fewer are left than the score has neighbours, at least one counts
        near = max(len(left) - f - 2, 1)
        scores = []
        for i in range(len(left)):
            far = sorted(
                float(((pool[i] - y) ** 2).sum()) for j, y in enumerate(pool) if j != i
            )
            scores.append(sum(far[:near]))
        chosen.append(left.pop(scores.index(min(scores))))
    picked = x[chosen]
    expected = []
    for j in range(x.shape[1]):
        column = picked[:, j].tolist()
        middle = statistics.median(column)
        nearest = sorted(column, key=lambda v: abs(v - middle))[: n - 4 * f]
        expected.append(statistics.fmean(nearest))
    assert torch.allclose(robust.bulyan(x), torch.tensor(expected).double(), atol=1e-9)
    assert float(robust.bulyan(x).max()) < 5


def test_the_geometric_median_is_where_the_sum_of_distances_is_smallest():
    x = rows(9, liars=2)
    centre = robust.find_geometric_median(x)

    def total(point: torch.Tensor) -> float:
        return float((x - point).norm(dim=1).sum())

    for i in range(20):
        nudge = 1e-3 * Rng.seed(5, i).normal(x.shape[1])
        assert total(centre) < total(centre + nudge)
    units = (x - centre) / (x - centre).norm(dim=1, keepdim=True)
    assert float(units.sum(0).norm()) < 1e-5  # the gradient vanishes


def test_clipping_moves_no_further_than_the_radius():
    x = rows(9, liars=4)
    merged = robust.clip_around_median(x, 0.5)
    assert float((merged - robust.take_median(x)).norm()) <= 0.5
    far = robust.clip_around_median(x, 1e9)
    assert torch.allclose(far, x.mean(0), atol=1e-9)


@pytest.mark.parametrize("text", ["median", "trimmed:0.3", "krum", "multikrum:4"])
def test_rules_that_must_survive_a_third_of_liars(text):
    merged = make_rule(parse_rule(text))(rows(12, liars=3))
    assert float(merged.max()) < 5
    assert float(rows(12, liars=3).mean(0).min()) > 10


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("rule", robust.RULES)
def test_every_rule_bears_few_uploads(rule, n):
    text = rule.replace("SHARE", "0.1").replace(":M", ":3").replace(":C", ":1")
    x = rows(n)
    merged = make_rule(parse_rule(text))(x)
    assert merged.shape == x[0].shape and bool(merged.isfinite().all())


@pytest.mark.parametrize(
    "text", ["medain", "median:3", "trimmed", "trimmed:0.5", "multikrum:0", "clip:-1"]
)
def test_bad_rules_are_refused_in_one_line(text):
    with pytest.raises(UserError) as error:
        parse_rule(text)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- byzfl
BYZFL = Path(__file__).parent / "byzfl.json"  # what byzfl 0.0.11 gave


def merge_by_byzfl(x: torch.Tensor) -> dict[str, list[float]]:
    """What byzfl's aggregators make of the rows; its package's own imports are left out."""
    found = importlib.util.find_spec("byzfl")
    if found is None:
        pytest.skip(
            "byzfl 0.0.11 is not installed: only its recorded values are tested"
        )
    package = ModuleType("byzfl")
    package.__spec__ = found
    package.__path__ = list(found.submodule_search_locations or [])
    sys.modules["byzfl"] = package
    aggregators = importlib.import_module("byzfl.aggregators.aggregators")
    f = (len(x) - 3) // 2
    clipping = aggregators.CenteredClipping(L=1, tau=2.0)
    clipping.m = x.median(0).values
    rules = {
        "median": aggregators.Median(),
        "trimmed:0.2": aggregators.TrMean(f=2),
        # it counts n - f - 1 neighbours, the paper n - f - 2
        "krum": aggregators.Krum(f=f + 1),
        f"multikrum:{len(x) - f - 1}": aggregators.MultiKrum(f=f + 1),
        "geometric": aggregators.GeometricMedian(1e-12, 500),
        "clip:2.0": clipping,
    }
    return {text: rule(x).tolist() for text, rule in rules.items()}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rules_equal_byzfls_recorded_values(seed):
    recorded = json.loads(BYZFL.read_text())[str(seed)]
    assert len(recorded) == 6
    x = rows(11, liars=2, seed=seed)
    for text, values in recorded.items():
        ours = make_rule(parse_rule(text))(x)
        assert ours.tolist() == pytest.approx(values, abs=1e-6), text


@pytest.mark.filterwarnings("ignore")
def test_the_recorded_values_are_byzfls():
    recorded = json.loads(BYZFL.read_text())
    for seed in range(3):
        now = merge_by_byzfl(rows(11, liars=2, seed=seed))
        for text, values in recorded[str(seed)].items():
            assert now[text] == pytest.approx(values, abs=1e-6)


if __name__ == "__main__":  # records byzfl's values
    values = {seed: merge_by_byzfl(rows(11, liars=2, seed=seed)) for seed in range(3)}
    BYZFL.write_text(json.dumps(values, indent=1) + "\n")
