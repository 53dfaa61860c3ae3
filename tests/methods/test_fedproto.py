"""FedProto: class means travel, models do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.client import Batch
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params
from fedtailor.method import Uploads
from fedtailor.methods.fedproto import Down, FedProto, Server, Up
from fedtailor.models import Backbone
from fedtailor.testing.small_world import digits, run_small, small
from fedtailor.training.optim import Plan
from helpers import equal, gap, overhear

TWICE = Plan(lr=0.05, batch=10, epochs=2, momentum=0.5)


def test_no_model_is_exchanged() -> None:
    played, heard = overhear(FedProto(), norm="batch")
    for sent in heard:
        for k in sent.up:
            assert (
                [tuple(x.shape) for x in sent.down[k]]
                == [tuple(x.shape) for x in sent.up[k]]
                == [(10, 16), (10,)]
            )
    firsts = {tuple(played.keep(k).w["base.conv1.bias"].tolist()) for k in range(6)}
    assert len(firsts) == 6 and played.runner.method.shared(played.server) is None


def test_prototypes_are_class_means_under_the_trained_model() -> None:
    played, heard = overhear(FedProto(), norm="batch", dtype=torch.float64)
    with torch_settings(torch.float64):
        for k in range(6):
            c, up, down = played.runner.client(k, 3), heard[-1].up[k], heard[-1].down[k]
            h = c.model.base(played.keep(k).w, c.x)
            for label in range(10):
                mine = h[c.y == label]
                assert float(up.weight[label]) == len(mine)
                assert (
                    gap(
                        up.proto[label],
                        mine.mean(0) if len(mine) else down.proto[label],
                    )
                    < 1e-12
                )


def features(w: Params, x: Tensor, norm: str) -> Tensor:
    """The trial network's, in training mode, by hand."""
    h = F.conv2d(x, w["base.conv1.weight"], w["base.conv1.bias"], padding=1)
    scale, shift = w["base.norm1.weight"], w["base.norm1.bias"]
    h = (
        F.batch_norm(h, None, None, scale, shift, True)
        if norm == "batch"
        else F.group_norm(h, 2, scale, shift)
    )
    return F.relu(
        F.linear(
            F.max_pool2d(F.relu(h), 2).flatten(1),
            w["base.fc1.weight"],
            w["base.fc1.bias"],
        )
    )


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_prototypes_can_be_gathered_while_the_last_epoch_changes_the_model(
    norm: str,
) -> None:
    played = run_small(
        FedProto(lam=0.0), rounds=2, norm=norm, plan=TWICE, dtype=torch.float64
    )
    down, keep = Down(*played.server), played.keep(0)
    with torch_settings(torch.float64):

        def again() -> Any:
            return played.runner.client(0, 3, Purpose.CALL, 3, 1)

        after, trained = FedProto(lam=0.0).local(again(), down, keep)
        during, same = FedProto(lam=0.0, prototypes="during").local(again(), down, keep)
        seen: list[tuple[Tensor, Tensor]] = []
        c = again()

        def step(carry: tuple[Params, Any], batch: Batch) -> tuple[Params, Any]:
            seen.append((features(carry[0], batch.x, norm), batch.y))
            return c.step(c.loss, carry[0], batch, c.optimiser, carry[1])

        c.each_batch(step, c.train_with_state(c.loss, keep.w, epochs=1), epochs=1)
        h, y = (torch.cat(x) for x in zip(*seen, strict=True))
    assert equal(trained, same) and len(y) == 30
    assert torch.equal(during.weight, c.counts) and torch.equal(
        during.weight, after.weight
    )
    for label in range(10):
        mine = h[y == label]
        assert (
            gap(during.proto[label], mine.mean(0) if len(mine) else down.proto[label])
            < 1e-12
        )
    assert gap(during.proto, after.proto) > 1e-3


def test_a_class_that_the_last_epoch_did_not_see_has_no_prototype() -> None:
    """13 examples of ten digits, of which three are in no batch."""
    options: dict[str, Any] = dict(
        plan=Plan(batch=10, batching="drop"), federation=digits((13,) * 6, skew=False)
    )
    (_, (during,)), (_, (after,)) = (
        overhear(FedProto(prototypes=p), rounds=1, **options)
        for p in ("during", "after")
    )  # type: ignore[arg-type]
    some, every = (
        torch.stack([sent.up[k].weight for k in range(6)]) for sent in (during, after)
    )
    assert ((some == every) | (some == 0)).all() and 0 < int(
        (some != every).sum()
    ) <= 18


@pytest.mark.parametrize("weights", ["data", "equal"])
def test_gathered_prototypes_agree_under_vmap(weights: str) -> None:
    method = FedProto(prototypes="during", weights=weights)  # type: ignore[arg-type]
    one, many = (
        run_small(
            method, rounds=2, norm="batch", dtype=torch.float64, plan=TWICE, executor=e
        )
        for e in ("sequential", "vmap")
    )
    assert many.executor.notices() == [] and gap(one.server, many.server) < 1e-9
    assert max(gap(one.keep(k), many.keep(k)) for k in range(6)) < 1e-9


def test_global_prototypes_are_weighted_by_examples_or_by_clients() -> None:
    rows = [
        torch.tensor([[1.0, 2.0], [5.0, 5.0], [0.0, 0.0]]),
        torch.tensor([[4.0, 8.0], [9.0, 9.0], [0.0, 0.0]]),
    ]
    old = Server(torch.full((3, 2), 7.0), torch.tensor([0.0, 1.0, 0.0]))

    def merge(*weights: list[float]) -> Server:
        ups = [Up(p, torch.tensor(w)) for p, w in zip(rows, weights, strict=True)]
        return FedProto().merge(old, Uploads([0, 1], torch.tensor([9.0, 9.0]), ups))

    by_examples = merge([1.0, 0.0, 0.0], [2.0, 0.0, 0.0])
    assert by_examples.proto.tolist() == [[3.0, 6.0], [7.0, 7.0], [7.0, 7.0]]
    assert by_examples.seen.tolist() == [1.0, 1.0, 0.0]
    assert merge([1.0, 1.0, 0.0], [1.0, 0.0, 0.0]).proto.tolist() == [
        [2.5, 5.0],
        [5.0, 5.0],
        [7.0, 7.0],
    ]


def test_equal_weights_tell_no_numbers_of_examples() -> None:
    _, heard = overhear(FedProto(weights="equal"))
    assert {
        x for sent in heard for up in sent.up.values() for x in up.weight.tolist()
    } == {
        0.0,
        1.0,
    }


def test_features_are_pulled_to_the_prototypes_that_exist() -> None:
    played = run_small(FedProto(), rounds=2)
    down, keep = Down(*played.server), played.keep(0)
    with torch_settings():
        method, c = FedProto(lam=0.5), played.runner.client(0, 3, Purpose.CALL, 3, 1)

        def loss(w: Params, batch: Batch) -> torch.Tensor:
            h = c.model.base(w, batch.x)
            gaps = [
                ((h[i] - down.proto[y]) ** 2).mean() * down.seen[y]
                for i, y in enumerate(batch.y)
            ]
            return (
                F.cross_entropy(c.model.head(w, h), batch.y)
                + 0.5 * torch.stack(gaps).mean()
            )

        by_hand = c.train(loss, keep.w)
        _, new = method.local(
            played.runner.client(0, 3, Purpose.CALL, 3, 1), down, keep
        )
        blind = Down(down.proto, torch.zeros(10))
        _, alone = method.local(
            played.runner.client(0, 3, Purpose.CALL, 3, 1), blind, keep
        )
        _, plain = FedProto(lam=0.0).local(
            played.runner.client(0, 3, Purpose.CALL, 3, 1), down, keep
        )
    assert gap(new.w, by_hand) < 1e-6 and gap(new.w, alone.w) > 1e-4
    assert equal(alone, plain)


def test_the_nearest_prototype_decides() -> None:
    played = run_small(FedProto())
    method, c, down = (
        played.runner.method,
        played.runner.client(0, 3),
        Down(*played.server),
    )
    with torch_settings():
        w = method.personal(c, down, played.keep(0))
        h = c.model.base(w, c.x)
        distance = torch.cdist(h, down.proto)
        distance[:, down.seen == 0] = torch.inf
        assert torch.equal(method.predict(c, w, c.x).argmax(1), distance.argmin(1))
        only = Down(down.proto, torch.eye(10)[3])
        assert method.predict(c, method.personal(c, only, played.keep(0)), c.x).argmax(
            1
        ).unique().tolist() == [3]


def test_or_the_head_does() -> None:
    played = run_small(FedProto(inference="head"))
    method, c = played.runner.method, played.runner.client(0, 3)
    with torch_settings():
        w = method.personal(c, Down(*played.server), played.keep(0))
        assert torch.equal(method.predict(c, w, c.x), c.model(played.keep(0).w, c.x))
    assert (
        FedProto(lam=0.0, inference="head").warnings()
        and not FedProto(lam=0.0).warnings()
    )


def test_prototypes_are_as_wide_as_the_features_under_a_deep_head() -> None:
    head = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    played = run_small(
        FedProto(), backbone=Backbone(nn.Flatten(), head, features=64, last="head.2")
    )
    assert played.server.proto.shape == (10, 64) and played.exchange.traffic.lost == {}
    assert run_small(FedProto(), backbone=small("linear")).server.proto.shape == (
        10,
        64,
    )
