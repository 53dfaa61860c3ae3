"""Given weights count; what is frozen, tied or constant stays so, and constants are not sent."""

import pytest
import torch
from torch import nn

import fedtailor
from fedtailor.core.rng import Rng
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare
from fedtailor.models import wrap_own_network
from fedtailor.models.backbone import fresh
from fedtailor.models.constants import list_constants
from fedtailor.storage.private_state import MemoryStore

OPTIONS = {"clients": 3, "limit": 150, "partition": "iid", "rounds": 2}
EXECUTORS = ("sequential", "vmap", "processes")


class Net(nn.Module):
    """With a frozen layer, an index buffer, a constant one, and a counter that forwards change."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 32).requires_grad_(False)
        self.places = nn.Embedding(4, 8)
        self.fc1 = nn.Linear(32, 32)
        self.fc = nn.Linear(32, 10)
        self.ids = nn.Buffer(torch.arange(4), persistent=False)
        self.scale = nn.Buffer(torch.tensor([7.0]))
        self.seen = nn.Buffer(torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen.add_(1)
        h = self.frozen(x.flatten(1)).reshape(-1, 4, 8) + self.places(self.ids)
        return self.fc(self.fc1(h.flatten(1)).relu() * self.scale / 7)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(64, 64, bias=False)
        self.two = nn.Linear(64, 64)
        self.two.weight = self.one.weight
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(self.two(self.one(x.flatten(1)).relu()).relu())


def make(cls=Net, seed=3):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return cls()


def make_runner(model, **options) -> ClientRunner:
    config = make_experiment({"data": "digits", **OPTIONS, **options})
    setup = prepare(config, model=model, last="fc")
    return ClientRunner(setup.world, MemoryStore())


# ---------------------------------------------------------------- first values
def test_a_network_starts_from_its_own_values():
    net = make()
    w = make_runner(net).new()
    assert torch.equal(w["base.fc1.weight"], net.fc1.weight)
    assert torch.equal(w["head.weight"], net.fc.weight)
    drawn = make_runner(net, init="fresh").new()
    assert not torch.equal(drawn["base.fc1.weight"], net.fc1.weight)
    again = make_runner(make(seed=4), init="fresh").new()
    assert torch.equal(drawn["head.weight"], again["head.weight"])


def test_further_models_have_heads_of_their_own():
    net = make()
    second = make_runner(net).new(1)
    assert torch.equal(second["base.fc1.weight"], net.fc1.weight)
    assert not torch.equal(second["head.weight"], net.fc.weight)


@pytest.mark.parametrize("method", ["fedavg", "local", "fedper", "fedcp"])
def test_a_trained_network_is_not_thrown_away(method):
    """At a learning rate of nothing, the accuracy is the network's own."""
    net = make()
    x, y = read_digits()
    optimiser = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 0.01)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    result = fedtailor.run(method, "digits", net, last="fc", **OPTIONS, lr=1e-7)
    wanted = 0.8 if method != "fedcp" else 0.5  # its layers between are new
    assert result["accuracy"]["last"] > wanted


def read_digits():
    config = make_experiment({"data": "digits", **OPTIONS})
    federation = prepare(config).world.federation
    images = federation.x.float() / 127.5 - 1
    return images, federation.y


def test_given_values_are_for_own_networks():
    with pytest.raises(fedtailor.UserError, match="init=given is for a network"):
        fedtailor.run("fedavg", "digits", init="given", **OPTIONS)


# ---------------------------------------------------------------- constants
@pytest.mark.parametrize("executor", EXECUTORS)
def test_constants_stay_and_are_not_sent(executor, tmp_path):
    net = make()
    out = tmp_path / "run"
    fedtailor.run(
        "ditto",
        "digits",
        net,
        last="fc",
        executor=executor,
        workers=2,
        out=out,
        **OPTIONS,
    )
    finished = fedtailor.load(out, model=make(seed=9), last="fc")
    model = finished.client(1)
    names = set(model.parameters)
    assert not names & {"base.frozen.weight", "base.ids", "base.scale"}
    assert "base.seen" in names
    assert not torch.equal(model.parameters["base.fc1.weight"], net.fc1.weight)
    kept = list_constants(model.runner.world.backbone)
    assert torch.equal(kept["base.frozen.weight"], net.frozen.weight)
    assert torch.equal(kept["base.scale"], torch.tensor([7.0]))
    assert torch.equal(kept["base.ids"], torch.arange(4))
    # the loaded model predicts as the trained network does
    x = read_digits()[0][:5]
    own = {name.replace("head.", "fc."): v for name, v in model.parameters.items()}
    net.load_state_dict(
        {name.removeprefix("base."): v for name, v in own.items()}, strict=False
    )
    assert torch.allclose(model.logits(x), net.eval()(x), atol=1e-5)


def test_bytes_count_what_is_trained():
    net = make()
    result = fedtailor.run("fedavg", "digits", net, last="fc", **OPTIONS)
    sent = sum(p.numel() for p in net.parameters() if p.requires_grad) + 1
    assert result["bytes"]["up"] == 4 * sent * 3 * 2


# ---------------------------------------------------------------- tied weights
@pytest.mark.parametrize("executor", EXECUTORS)
def test_tied_weights_stay_tied(executor, tmp_path):
    net = make(Tied)
    out = tmp_path / "run"
    fedtailor.run(
        "fedavg",
        "digits",
        net,
        last="fc",
        executor=executor,
        workers=2,
        out=out,
        **OPTIONS,
    )
    model = fedtailor.load(out, model=make(Tied, seed=9), last="fc").client(0)
    assert "base.two.weight" not in model.parameters
    with torch.no_grad():
        net.one.weight.copy_(model.parameters["base.one.weight"])
        net.two.bias.copy_(model.parameters["base.two.bias"])
        net.fc.weight.copy_(model.parameters["head.weight"])
        net.fc.bias.copy_(model.parameters["head.bias"])
    x = read_digits()[0][:5]
    assert torch.allclose(model.logits(x), net(x), atol=1e-5)


def test_training_a_tied_weight_is_that_of_plain_pytorch():
    """One client, one batch: the gradients of both uses are added."""
    net = make(Tied)
    runner = make_runner(net, clients=1, batch=200, lr=0.1)
    client = runner.client(0, 1, 5)
    w = runner.new()
    trained = client.train(client.loss, w)
    nn.functional.cross_entropy(net(client.x), client.y).backward()
    wanted = net.one.weight - 0.1 * net.one.weight.grad
    # the last batch is filled up from the epoch's own beginning
    assert torch.allclose(trained["base.one.weight"], wanted, atol=1e-2)
    assert not torch.allclose(trained["base.one.weight"], net.one.weight, atol=1e-4)


def test_a_twin_of_the_last_layer():
    class Same(Tied):
        def forward(self, x):
            return self.two(self.one(x.flatten(1)).relu())

    backbone = wrap_own_network(make(Same), "two")
    w = fresh(backbone, Rng.seed(0))
    assert set(w) == {"base.one.weight", "head.bias", "base.fc.weight", "base.fc.bias"}


# ---------------------------------------------------------------- networks that do not fit
@pytest.mark.parametrize(
    ("net", "says"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(9, 10)),
            "cannot take the data's inputs",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), "the data have 10 classes"),
    ],
)
def test_a_network_that_does_not_fit_is_one_line(net, says):
    with pytest.raises(fedtailor.UserError, match=says) as caught:
        fedtailor.run("fedavg", "digits", net, last="1", **OPTIONS)
    assert "\n" not in str(caught.value)
