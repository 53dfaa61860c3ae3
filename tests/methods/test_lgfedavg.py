"""LG-FedAvg: private representations under shared layers, or, as its code has it, the other way round."""

from __future__ import annotations

import pytest
import torch
from battery import (  # noqa: F401
    equal,
    gap,
    names,
    overhear,
    test_copes_with_absent_clients_and_lost_replies,
    test_leaves_what_it_is_given_untouched,
    test_personal_models_learn,
    test_serves_a_client_never_seen,
    test_vectorised_clients_agree_with_single_ones,
    test_worker_processes_agree_to_the_last_bit,
)

from fedtailor.errors import UserError
from fedtailor.methods.lgfedavg import LGFedAvg
from fedtailor.models import build
from fedtailor.tree import average, tensors
from fedtailor.trial import play, small


@pytest.fixture
def method() -> LGFedAvg:
    return LGFedAvg(share="conv", weights="data")


@pytest.mark.parametrize(
    ("method_", "shared"),
    [
        (LGFedAvg(), {"head"}),
        (LGFedAvg(layers=2), {"base.fc1", "head"}),
        (LGFedAvg(share="conv"), {"base.conv1", "base.norm1"}),
    ],
)
def test_private_layers_never_go_up(method_: LGFedAvg, shared: set[str]) -> None:
    played, heard = overhear(method_, norm="batch")
    w = played.site.new(0)
    travels = {k for k in w if k.rsplit(".", 1)[0] in shared}
    for sent in heard[1:]:
        for k in sent.up:
            assert names(sent.up[k]) == names(sent.down[k]) == travels
    private = [x for k in range(6) for x in tensors(played.keep(k)) if x.numel() > 1]
    sent_up = [x for sent in heard for up in sent.up.values() for x in tensors(up)]
    assert not any(torch.equal(x, y) for x in private for y in sent_up if x.shape == y.shape and bool(y.std() > 0))
    assert all(played.keep(k).own.keys() == w.keys() - travels for k in range(6))


def test_on_lenet_the_code_shares_convolutions_and_the_text_the_top() -> None:
    lenet = build("lenet5", (3, 32, 32), 10)
    assert LGFedAvg(share="conv").resolve(lenet).private == "base.fc1,base.fc2,head"
    assert LGFedAvg(layers=2).resolve(lenet).private == "base.conv1,base.conv2,base.fc1"


@pytest.mark.parametrize(("weights", "n"), [("equal", [1.0] * 6), ("data", [30, 17, 24, 9, 1, 40])])
def test_weights_of_the_mean(weights: str, n: list[float]) -> None:
    played, heard = overhear(LGFedAvg(weights=weights), rounds=1)  # type: ignore[arg-type]
    assert equal(played.server.w, average([heard[1].up[k].w for k in range(6)], n))


def test_only_shared_layers_are_downloaded_after_the_beginning() -> None:
    bytes_down = [play(LGFedAvg(), rounds=t).exchange.ledger.down for t in (1, 2)]
    assert bytes_down[1] - bytes_down[0] == 6 * 4 * (16 * 10 + 10)


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match=r"share=conv needs a network that begins with convolutions"):
        LGFedAvg(share="conv").resolve(small("linear"))
    with pytest.raises(UserError, match=r"layers=4 leaves nothing private.*choose at most 3"):
        LGFedAvg(layers=4).resolve(small())
    with pytest.raises(UserError, match=r"no layer of this network 'haed'; did you mean head"):
        LGFedAvg(private="haed").resolve(small())
