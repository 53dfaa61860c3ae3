"""Dropout is a function of the seed: the same under every executor, none in evaluation."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedtailor
from fedtailor.core.errors import ClientError
from fedtailor.core.rng import Rng
from fedtailor.engine.observer import Observer
from fedtailor.training.draws import SELU_FLOOR, RepeatableDraws

OPTIONS = {"clients": 2, "limit": 60, "rounds": 2, "partition": "iid"}
SPELLINGS = ("module", "function", "always", "attention", "weights", "sdpa", "depth")


class Net(nn.Module):
    """Drops in one of several spellings."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.spelling = spelling
        self.fc1 = nn.Linear(64, 32)
        self.drop = nn.Dropout(0.3)
        self.mha = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        h = F.relu(self.fc1(x.flatten(1)))
        q = h.reshape(-1, 4, 8)
        p = 0.3 if self.training else 0.0
        match self.spelling:
            case "module":
                h = self.drop(h)
            case "function":
                h = F.dropout(h, 0.3, self.training)
            case "always":
                h = F.dropout(h, 0.3)
            case "attention":
                h = self.mha(q, q, q, need_weights=False)[0].flatten(1)
            case "weights":
                h = self.mha(q, q, q)[0].flatten(1)
            case "sdpa":
                h = F.scaled_dot_product_attention(q, q, q, dropout_p=p).flatten(1)
            case "depth" if self.training:
                h = h * h.new_empty(len(h), 1).bernoulli_(0.7)
            case "rand" if self.training:
                h = h * torch.rand(len(h), 1)
        return self.fc(h)


class Messages(Observer):
    def __init__(self):
        self.texts = []

    def message(self, text):
        self.texts.append(text)


def run(spelling, **options):
    torch.manual_seed(0)
    net = Net(spelling)
    torch.manual_seed(
        torch.seed() % 1000
    )  # what is drawn does not depend on torch's own
    return fedtailor.run("ditto", "digits", net, last="fc", **{**OPTIONS, **options})


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_runs_of_one_seed_have_one_hash(spelling):
    seen = Messages()
    options = {"dtype": "float64", "observers": [seen]}
    sequential = [run(spelling, executor="sequential", **options) for _ in range(2)]
    mapped = run(spelling, executor="vmap", **options)
    assert sequential[0]["hash"] == sequential[1]["hash"]
    assert mapped["accuracy"] == sequential[0]["accuracy"]
    assert not [text for text in seen.texts if text.startswith("vmap:")]


def test_worker_processes_and_a_resumed_run_drop_alike(tmp_path):
    whole = run("module", executor="sequential", rounds=3)["hash"]
    workers = run("module", executor="processes", workers=2, rounds=3)["hash"]
    run("module", executor="sequential", rounds=2, out=tmp_path / "run")
    again = run("module", rounds=3, out=tmp_path / "run", resume=True)["hash"]
    assert workers == whole
    assert again == whole


def test_what_no_run_could_repeat_is_refused_by_name():
    with pytest.raises(ClientError, match="draws with torch's 'rand'"):
        run("rand", executor="sequential")


# ---------------------------------------------------------------- one call
def draws(training: bool = True) -> RepeatableDraws:
    mode = RepeatableDraws()
    mode.is_training = training
    mode.begin(Rng.seed(3))
    return mode


def test_a_share_p_is_dropped_and_the_mean_stays():
    x = torch.ones(200, 100)
    with draws():
        kept = F.dropout(x, 0.3)
    share = float((kept == 0).float().mean())
    assert share == pytest.approx(0.3, abs=0.01)
    assert torch.allclose(kept[kept != 0], torch.tensor(1 / 0.7))
    with draws(training=False):
        assert F.dropout(x, 0.3) is x
    with draws():
        assert not F.dropout(x, 1.0).any()


def test_two_calls_drop_differently_and_a_step_begins_anew():
    x = torch.ones(8, 8)
    mode = draws()
    with mode:
        first = F.dropout(x)
        second = F.dropout(x)
        mode.begin(Rng.seed(3))
        again = F.dropout(x)
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("function", "shape", "axes"),
    [
        (F.dropout1d, (6, 5, 7), 2),
        (F.dropout1d, (6, 7), 1),
        (F.dropout2d, (6, 5, 3, 3), 2),
        (F.dropout3d, (6, 5, 2, 2, 2), 2),
        (F.dropout3d, (6, 2, 2, 2), 1),
    ],
)
def test_whole_channels_are_dropped(function, shape, axes):
    with draws():
        found = function(torch.ones(shape), 0.5).flatten(axes)
    assert bool((found == found[..., :1]).all())
    assert 0 < int((found == 0).sum()) < found.numel()


def test_alpha_dropout_keeps_mean_and_variance():
    x = F.selu(torch.randn(400, 400))
    with draws():
        found = F.alpha_dropout(x, 0.2, training=True)
    assert float(found.mean()) == pytest.approx(float(x.mean()), abs=0.02)
    assert float(found.var()) == pytest.approx(float(x.var()), abs=0.05)
    assert math.isclose(SELU_FLOOR, float(F.selu(torch.tensor(-1e9))), rel_tol=1e-6)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.5}])
def test_attention_without_luck_is_pytorchs_own(options):
    """With a tiny p nothing is dropped, and the formula must be PyTorch's."""
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    wanted = F.scaled_dot_product_attention(q, k, v, **options)
    with draws():
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=1e-9, **options)
    assert torch.allclose(found, wanted, atol=1e-6)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    with draws():
        found = F.scaled_dot_product_attention(q, k, v, mask, 1e-9)
    assert torch.allclose(found, wanted, atol=1e-6)


def test_networks_by_name_are_left_alone():
    from fedtailor.models import build
    from fedtailor.training.net import Template

    assert Template(build("cnn", (1, 8, 8), 10)).draws is None
