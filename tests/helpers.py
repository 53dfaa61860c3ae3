"""What several test files share: small runs whose traffic is recorded, and comparisons of trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.tree import Tree
from fedtailor.core.wire import encode
from fedtailor.data.federation import Federation
from fedtailor.data.sets.digits import read_digits
from fedtailor.executors.world import AnyMethod
from fedtailor.filters.tap import Tap, Traffic
from fedtailor.models import build
from fedtailor.testing.small_world import SmallRun, digits, run_small

UNKNOWN = 99  # a client that no server has heard of


def words() -> dict[str, Any]:
    """For ``play``: the grey levels of digits, read as words, and a network that reads them."""
    x = torch.tensor(read_digits()[0], dtype=torch.int64)
    return {
        "federation": replace(digits(), kind="text", x=x),
        "backbone": build("fasttext", (64,), 10, vocabulary=17),
    }


def overhear(method: AnyMethod, **options: Any) -> tuple[SmallRun, list[Traffic]]:
    """A small run, and what went between server and clients meanwhile."""
    tap = Tap()
    run = run_small(method, filters=[tap], **options)
    return run, tap.traffic


def names(tree: Tree) -> set[str]:
    """The parameters in a message, whatever field holds them."""
    return {
        path.split("/", 1)[-1] for path, value in encode(tree).items() if isinstance(value, Tensor)
    }


def gap(a: Tree, b: Tree) -> float:
    """The largest difference between two trees of the same shape."""
    a, b = encode(a), encode(b)
    assert a.keys() == b.keys()
    pairs = [(x, b[k]) for k, x in a.items() if isinstance(x, Tensor)]
    return max((float((x - y).abs().max()) for x, y in pairs if x.numel()), default=0.0)


def equal(a: Tree, b: Tree) -> bool:
    """Whether two trees are the same to the last bit."""
    a, b = encode(a), encode(b)
    return a.keys() == b.keys() and all(
        torch.equal(x, b[k]) if isinstance(x, Tensor) else x == b[k] for k, x in a.items()
    )


def planted(groups: int, clients: int = 8, n: int = 40) -> Federation:
    """Real digits, dealt evenly; the clients of group k % groups read them with shifted labels."""
    f = digits(sizes=(n,) * clients, skew=False)
    y = f.y.clone()
    for k in range(clients):
        mine = torch.cat([f.train[k], f.val[k], f.test[k]])
        y[mine] = (f.y[mine] + k % groups * 10 // groups) % 10
    return replace(f, y=y)


def members(cluster: dict[int, int]) -> set[frozenset[int]]:
    """The clients of every cluster, however the clusters are numbered."""
    return {frozenset(k for k, j in cluster.items() if j == one) for one in cluster.values()}
