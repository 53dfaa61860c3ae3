"""FedRep: head and representation train in turns, and who has no turn stands still."""

from __future__ import annotations

import copy

import torch

from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import average, part, tensors
from fedtailor.methods.fedrep import Down, FedRep, Keep
from fedtailor.testing.small_world import SIZES, run_small
from helpers import equal, names, overhear


def test_one_trains_while_the_other_stands_still() -> None:
    played = run_small(FedRep(head_epochs=2), rounds=1)
    base, head = played.server.base, played.keep(0).head
    with torch_settings():
        up, keep = FedRep(head_epochs=2).local(
            played.runner.client(0, 2, Purpose.CALL, 2, 1), Down(base), Keep(head)
        )
        c = played.runner.client(0, 2, Purpose.CALL, 2, 1)
        w = c.train(c.loss, {**base, **head}, only="head", epochs=2)
        assert equal(part(w, "base"), base) and equal(part(w, "head"), keep.head)
        w = c.train(c.loss, w, only="base")
        assert equal(part(w, "head"), keep.head) and equal(part(w, "base"), up.base)
        assert not equal(up.base, base) and not equal(keep.head, head)


def test_batchnorm_of_the_representation_stands_still_while_the_head_trains() -> None:
    played = run_small(FedRep(), rounds=1, norm="batch")
    base = played.server.base
    before = copy.deepcopy(base)
    with torch_settings():
        method = FedRep(head_epochs=3)
        client = played.runner.client(0, 2, Purpose.CALL, 2, 1)
        head = method.fit_head(client, base, played.keep(0).head, 3)
    assert equal(base, before) and head.keys() == {"head.weight", "head.bias"}
    assert "base.norm1.running_mean" in base


def test_the_server_takes_the_mean_by_data() -> None:
    played, heard = overhear(FedRep(head_epochs=1), rounds=1, norm="batch")
    ups = [heard[-1].up[k].base for k in range(6)]
    assert equal(played.server.base, average(ups, torch.tensor(SIZES)))
    assert not equal(played.server.base, average(ups, torch.ones(6)))


def test_heads_stay_at_home() -> None:
    played, heard = overhear(FedRep(head_epochs=2))
    for sent in heard[1:]:
        for k in sent.up:
            assert all(
                name.startswith("base.")
                for name in names(sent.up[k]) | names(sent.down[k])
            )
    heads = [x for k in range(6) for x in tensors(played.keep(k))]
    assert len({tuple(x.flatten().tolist()) for x in heads}) == 12


def test_fine_tuning_trains_the_head_on_the_newest_representation() -> None:
    played = run_small(FedRep(head_epochs=1), norm="batch", rounds=2)
    down, keep = Down(played.server.base), played.keep(0)
    with torch_settings():
        plain, tuned = (
            FedRep(finetune=e).personal(
                played.runner.client(0, 2, Purpose.EVALUATE, 2), down, keep
            )
            for e in (0, 2)
        )
        same = FedRep().fit_head(
            played.runner.client(0, 2, Purpose.EVALUATE, 2), down.base, keep.head, 2
        )
    assert equal(plain, {**down.base, **keep.head})
    assert equal(part(tuned, "base"), down.base) and equal(part(tuned, "head"), same)
    assert not torch.equal(tuned["head.weight"], plain["head.weight"])
