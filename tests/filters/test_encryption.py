"""Encrypted sums: equal to the same sums in clear, and nothing but sums is to be had."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.sealed import Block, Sealed, find_sealed, make_block
from fedtailor.core.tree import Params, Tree
from fedtailor.core.wire import encode, replace_leaves
from fedtailor.executors.visit import Look
from fedtailor.filters import Call, Filter
from fedtailor.filters.by_option.encryption import Encryption
from fedtailor.filters.by_option.sums import SumTerms, choose_slots
from fedtailor.filters.tap import Tap
from fedtailor.maths.fixed_point import FixedPoint
from fedtailor.maths.homomorphic import make_key
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedper import FedPer
from fedtailor.methods.perfedavg import PerFedAvg
from fedtailor.methods.pfedc import PFedC
from fedtailor.testing.small_world import SmallRun, run_small
from helpers import gap

pytest.importorskip("tenseal")
CLIENTS = 6
HEAVIEST = 40


def make_filter(
    method: Any, scope: str, scheme: str = "bfv", **more: Any
) -> Encryption:
    """The filter for a small run of a method."""
    limits = {"limit": 8.0, **more.pop("limits", {})}
    terms = SumTerms(
        option=f"encrypt={scope}",
        method="it",
        scope=scope,  # type: ignore[arg-type]
        summed=method.summed,
        head_fields=method.head_fields,
        is_equal=method.counts_alike,
        mean=FixedPoint(CLIENTS, heaviest=HEAVIEST, **limits),
        sum=FixedPoint(CLIENTS, **limits),
    )
    key_id = "plain" if scheme == "plain" else None
    return Encryption(terms, scheme, key_id, **more)


def run_sealed(
    method: Any, scope: str, scheme: str = "bfv", rounds: int = 2, **options: Any
) -> SmallRun:
    """A small run under encryption."""
    method = method.with_sealed_sums(CLIENTS)
    filters = [make_filter(method, scope, scheme), *options.pop("filters", ())]
    return run_small(method, rounds=rounds, filters=filters, **options)


def models(run: SmallRun) -> dict[int, Params]:
    """Every client's personal model."""
    downs = {k: run.method.send(run.server, k) for k in run.clients}
    replies = run.exchange.look(Look.PERSONAL, downs, run.t)
    assert not any(reply.error for reply in replies.values())
    return {k: reply.up for k, reply in replies.items()}


def are_equal(first: dict[int, Params], second: dict[int, Params]) -> bool:
    """Bit for bit."""
    pairs = [(first[k][name], second[k][name]) for k in first for name in first[k]]
    return all(torch.equal(a, b) for a, b in pairs)


# ---------------------------------------------------------------- equal to sums in clear
@pytest.mark.parametrize(
    ("method", "scope"),
    [(FedAvg(), "all"), (FedAvg(), "heads"), (PFedC(), "heads"), (PFedC(), "all")],
)
def test_ciphertexts_give_the_sums_of_integers_bit_for_bit(method, scope):
    sealed = models(run_sealed(method, scope))
    assert are_equal(sealed, models(run_sealed(method, scope, "plain")))
    clear = models(run_small(method.with_sealed_sums(CLIENTS), rounds=2))
    assert 0 < max(gap(sealed[k], clear[k]) for k in clear) < 1e-4


@pytest.mark.slow
def test_worker_processes_give_the_same_bits():
    one_by_one = models(run_sealed(PFedC(), "heads"))
    assert are_equal(
        one_by_one, models(run_sealed(PFedC(), "heads", executor="processes"))
    )


def test_vmap_gives_the_same_bits_as_in_clear():
    sealed = models(run_sealed(FedAvg(), "all", executor="vmap"))
    clear = models(run_sealed(FedAvg(), "all", "plain", executor="vmap"))
    assert are_equal(sealed, clear)


def test_ckks_is_close_to_the_exact_sums():
    exact = models(run_sealed(FedAvg(), "all", "plain"))
    close = models(run_sealed(FedAvg(), "all", "ckks"))
    assert 0 < max(gap(exact[k], close[k]) for k in exact) < 1e-5


def test_lost_replies_are_missing_from_the_sum_and_its_weight():
    sealed = models(run_sealed(FedAvg(), "all", drop=0.4, rounds=3))
    clear = models(run_small(FedAvg(), drop=0.4, rounds=3))
    assert max(gap(sealed[k], clear[k]) for k in clear) < 1e-4


# ---------------------------------------------------------------- who knows what
def list_tensors(tree: Tree) -> list[str]:
    return [path for path, x in encode(tree).items() if isinstance(x, Tensor)]


def test_a_tap_at_the_server_finds_no_plain_upload():
    tap = Tap()
    run = run_sealed(FedPer(), "all", filters=[tap])
    rounds = [traffic for traffic in tap.traffic if traffic.call.function == "local"]
    uploads = [up for traffic in rounds for up in traffic.up.values()]
    assert len(uploads) == 2 * CLIENTS
    assert all(find_sealed(up) and not list_tensors(up) for up in uploads)
    later = [down for traffic in rounds[1:] for down in traffic.down.values()]
    assert all(not list_tensors(down.base) for down in later)
    assert not list_tensors(run.server.base)


def test_with_heads_only_the_representation_is_in_clear():
    tap = Tap()
    run_sealed(PFedC(), "heads", filters=[tap])
    (up, *_) = tap.traffic[0].up.values()
    assert {path.split("/")[0] for path in list_tensors(up)} == {"base"}


def test_the_server_part_has_no_key():
    run = run_sealed(FedAvg(), "all", rounds=1)
    (server,) = run.exchange.filters.filters
    (client,) = run.runner.filters.filters
    assert server.key is None
    assert client.key.is_secret
    with pytest.raises(UserError, match="no key"):
        server.open_tree(run.server)
    secret = client.key.context
    for value in vars(server).values():
        assert value != secret


# ---------------------------------------------------------------- what a method may ask
class Looks(FedAvg):
    """A method that does what its server cannot."""

    def merge(self, server, ups):
        return ASKED[type(self).question](self, server, ups)


ASKED = {
    "uploads": lambda self, server, ups: server._replace(w=ups.w[0]),
    "by_client": lambda self, server, ups: ups.by_client(),
    "map": lambda self, server, ups: ups.map(lambda up: up),
    "sum": lambda self, server, ups: server._replace(w=ups.sum("w")),
    "weights": lambda self, server, ups: server._replace(
        w=ups.mean("w", torch.ones(len(ups)))
    ),
    "rule": lambda self, server, ups: ups.with_reduction(None),
}


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("uploads", "looks at every client's w"),
        ("by_client", "looks at every client's upload"),
        ("map", "computes with every client's upload"),
        ("sum", "adds up w, which it does not name"),
        ("weights", "weighs clients otherwise"),
        ("rule", "merges by another rule than the mean"),
    ],
)
def test_other_questions_are_refused_by_name(question, reason):
    kind = type("Asks", (Looks,), {"question": question})
    with pytest.raises(UserError, match=f"encrypt=all: it {reason}"):
        run_sealed(kind(), "all", rounds=1)


def test_sums_of_some_clients_can_be_had():
    class InTwo(FedAvg):
        def merge(self, server, ups):
            half = ups.of(ups.clients[:3])
            return server._replace(w=half.mean("w"))

    sealed = models(run_sealed(InTwo(), "all", rounds=1))
    clear = models(run_small(InTwo(), rounds=1))
    assert max(gap(sealed[k], clear[k]) for k in clear) < 1e-5


# ---------------------------------------------------------------- limits at the client
def test_a_number_beyond_the_range_leaves_its_client_out_by_name():
    method = FedAvg()
    f = make_filter(method, "all", limits={"limit": 0.05})
    run = run_small(method, rounds=1, filters=[f])
    lost = run.exchange.traffic.lost
    assert sorted(lost) == list(range(CLIENTS))
    assert "its w/" in lost[0]
    assert "beyond the range of 0.05 (--sum-range)" in lost[0]


def test_a_change_beyond_the_limit_leaves_its_client_out():
    method = FedAvg()
    f = make_filter(method, "all", change_limit=1e-6)
    run = run_small(method, rounds=1, filters=[f])
    assert "beyond --change-limit 1e-06" in run.exchange.traffic.lost[0]


# ---------------------------------------------------------------- bad ciphertexts
@pytest.fixture(scope="module")
def sent():
    """The server's part, and three uploads."""
    shared = make_filter(FedAvg(), "all")
    shared.take_key(make_key("bfv"))
    up = FedAvg().init(lambda i: {"head.weight": torch.ones(4)}, 3)
    rng: Any = None
    ups = {}
    for k in range(3):
        ups[k], _ = shared.for_client(k, 10).client_sends(up, up, {}, rng)
    return shared.for_server(), ups


def change(up: Tree, **values: Any) -> Tree:
    """The upload with another block; its checksum is right unless given."""
    old = find_sealed(up)[0].block
    names = ("scheme", "key", "clients", "values", "parts")
    kept = {name: getattr(old, name) for name in names}
    checksum = values.pop("checksum", None)
    block = make_block(**{**kept, **values})
    if checksum:
        block = Block(**{**kept, **values}, checksum=old.checksum)
    new = {
        path: Sealed(block, *leaf.layout())
        for path, leaf in encode(up).items()
        if isinstance(leaf, Sealed)
    }
    return replace_leaves(up, new)


def flip(part: bytes) -> bytes:
    """One byte in the middle, changed."""
    middle = len(part) // 2
    return part[:middle] + bytes([part[middle] ^ 1]) + part[middle + 1 :]


def find_faults(sent: Any, bad: Tree) -> dict[int, str]:
    server, ups = sent
    return server.find_faults(Call("local", 1, 1), {**ups, 1: bad})


def test_good_ciphertexts_have_no_faults(sent):
    server, ups = sent
    assert server.find_faults(Call("local", 1, 1), ups) == {}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda b: {"parts": (flip(b.parts[0]),), "checksum": True},
            "checksum is anot",
        ),
        (
            lambda b: {"parts": (b.parts[0][:1000],)},
            "a bad ciphertext: failed to parse",
        ),
        (lambda b: {"parts": ()}, "0 ciphertexts of 5 numbers, not 1 of 5"),
        (lambda b: {"values": 4}, "1 ciphertexts of 4 numbers, not 1 of 5"),
        (lambda b: {"clients": 2}, "1 ciphertexts of 5"),
        (lambda b: {"key": "someone else's"}, "a foreign key"),
        (lambda b: {"scheme": "ckks"}, "a foreign key"),
    ],
)
def test_damaged_short_and_foreign_ciphertexts_are_refused_by_name(sent, make, reason):
    _, ups = sent
    bad = change(ups[1], **make(find_sealed(ups[1])[0].block))
    faults = find_faults(sent, bad)
    assert list(faults) == [1]
    assert reason in faults[1]


def test_an_upload_in_clear_or_of_another_layout_is_refused(sent):
    _, ups = sent
    clear = replace_leaves(ups[1], {"w/head.weight": torch.ones(4)})
    assert "holds w/head.weight in clear" in find_faults(sent, clear)[1]
    leaf = find_sealed(ups[1])[0]
    moved = Sealed(leaf.block, 0, leaf.shape, leaf.dtype, leaf.is_mean)
    wrong = replace_leaves(ups[1], {"w/head.weight": moved})
    assert "in a wrong place" in find_faults(sent, wrong)[1]


class Damage(Filter):
    """A client whose ciphertext arrives damaged: what leaves it is changed after all filters."""

    def for_client(self, k, n):
        damaged = copy.copy(self)
        damaged.is_bad = k == 2
        return damaged

    def client_sends(self, up, down, memory, rng):
        if not self.is_bad:
            return up, memory
        old = find_sealed(up)[0].block
        return change(up, parts=tuple(map(flip, old.parts)), checksum=True), memory


def test_the_others_sum_is_right_without_the_damaged_one():
    method = FedAvg()
    filters = [Damage(), make_filter(method, "all")]
    run = run_small(method, rounds=1, filters=filters)
    assert list(run.exchange.traffic.lost) == [2]
    assert "damaged ciphertexts" in run.exchange.traffic.lost[2]
    assert all(
        torch.isfinite(x).all() for w in models(run).values() for x in w.values()
    )


def test_sealed_uploads_are_refused_where_nobody_asked_for_them(sent):
    _, ups = sent
    run = run_small(FedAvg(), rounds=1)
    faults = run.exchange.filters.find_faults(Call("local", 1, 1), {4: ups[0]})
    assert "which nobody asked for" in faults[4]


def test_sums_have_room_for_so_many_clients_and_no_more(sent):
    server, ups = sent
    many = {k: ups[0] for k in range(CLIENTS + 1)}
    faults = server.find_faults(Call("local", 1, 1), many)
    assert list(faults) == [CLIENTS]
    assert "--sum-clients" in faults[CLIENTS]


def test_slots_of_heads():
    terms = make_filter(PFedC(), "heads").terms
    up = {"base": {"a.weight": torch.ones(2)}, "heads": {"head.weight": torch.ones(3)}}
    slots = choose_slots({**up, "weight": torch.ones(3)}, terms)
    assert [(s.path, s.start, s.is_mean) for s in slots] == [
        ("heads/head.weight", 1, False),
        ("weight", 4, False),
    ]


# ---------------------------------------------------------------- rounds that differ
def test_sums_of_earlier_rounds_are_kept_sealed_under_partial_participation():
    """pFedC's server keeps the sums of rounds whose clients have not been heard since."""
    sealed = run_sealed(PFedC(), "heads", rounds=3, share=0.5)
    assert len(sealed.server.sums) > 1
    assert all(find_sealed(sums) for sums in sealed.server.sums)
    exact = run_sealed(PFedC(), "heads", "plain", rounds=3, share=0.5)
    assert are_equal(models(sealed), models(exact))


def test_clients_that_count_alike_need_no_weights():
    """Per-FedAvg averages with equal weights, whatever the clients' sizes."""
    method = PerFedAvg()
    f = make_filter(method, "all")
    f.terms = f.terms._replace(mean=FixedPoint(CLIENTS))
    sealed = models(run_small(method, rounds=1, filters=[f]))
    clear = models(run_small(method, rounds=1))
    assert max(gap(sealed[k], clear[k]) for k in clear) < 1e-5
