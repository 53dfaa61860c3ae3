"""Local training is ordinary PyTorch: compared with torch.optim on the nn.Module, bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fedtailor.client import Batch, Client
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, part
from fedtailor.data.federation import features
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.world import World
from fedtailor.methods.fedavg import FedAvg
from fedtailor.models import build
from fedtailor.models.backbone import fresh
from fedtailor.storage.private_state import MemoryStore
from fedtailor.testing.small_world import digits, small
from fedtailor.training.optim import SGD, Plan
from helpers import differences, gap, make_runner


def some_client(runner: ClientRunner) -> Client:
    """Client 0 in round 1, always with the same randomness."""
    return runner.client(0, 1, 9)


def list_batches(c: Client, epochs: int = 1) -> list[Batch]:
    batches: list[Batch] = []
    c.each_batch(lambda _, batch: batches.append(batch), None, epochs=epochs)
    return batches


# ---------------------------------------------------------------- training
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training_equals_torch_on_the_module(momentum):
    plan = Plan(lr=0.05, epochs=3, batch=7, momentum=momentum, weight_decay=0.01)
    runner = make_runner(plan)
    w = runner.new()
    c = some_client(runner)
    trained = c.train(c.loss, w)

    module = small(norm="batch")
    module.load_state_dict(
        {name: value.clone() for name, value in w.items()}, strict=False
    )
    reference = torch.optim.SGD(
        module.parameters(), lr=0.05, momentum=momentum, weight_decay=0.01
    )
    module.train()
    batches = list_batches(some_client(runner), epochs=3)
    for batch in batches:
        reference.zero_grad()
        F.cross_entropy(module(batch.x), batch.y).backward()
        reference.step()
    theirs = module.state_dict()
    assert len(batches) == 3 * 5
    assert differences(trained, {name: theirs[name] for name in trained}) == []


def make_text_runner(plan: Plan) -> ClientRunner:
    """One client whose examples are twelve words each."""
    words = torch.randint(0, 50, (60, 12), generator=torch.Generator().manual_seed(0))
    federation = replace(
        digits(),
        x=words,
        y=words.sum(1) % 4,
        row=None,
        classes=4,
        vocabulary=50,
        train=[torch.arange(40)],
        val=[torch.arange(40, 50)],
        test=[torch.arange(50, 60)],
    )
    network = build("fasttext", (12,), 4, vocabulary=50)
    return ClientRunner(World(FedAvg(), network, federation, plan, 0, 5), MemoryStore())


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_word_vectors_learn_as_with_whole_gradients(decay):
    runner = make_text_runner(Plan(lr=0.5, epochs=2, batch=7, weight_decay=decay))
    w = runner.new()
    c = some_client(runner)
    sparse = c.train(c.loss, w)
    c = some_client(runner)
    whole = c.each_batch(lambda w, batch: c.step(c.loss, w, batch)[0], w)
    assert gap(sparse, whole) < 1e-6
    table = "base.embedding.weight"
    touched = (sparse[table] != w[table]).any(1)
    assert bool(touched.any())
    assert decay > 0 or not bool(touched.all())


def test_gradients_of_word_vectors_are_sparse():
    runner = make_text_runner(Plan(lr=0.5, batch=7))
    c = some_client(runner)
    seen = set()

    def spy(w: Params, batch: Batch) -> torch.Tensor:
        table = w["base.embedding.weight"]
        (gradient,) = torch.autograd.grad(c.loss(w, batch), [table])
        seen.add(gradient.is_sparse)
        return c.loss(w, batch)

    some_client(runner).train(spy, runner.new())
    assert seen == {True}


def test_what_is_given_stays_as_it_was_and_only_the_named_part_moves():
    runner = make_runner(Plan(lr=0.1))
    w = runner.new()
    before = copy.deepcopy(w)
    c = some_client(runner)
    new = c.train(c.loss, w, only="head")
    assert differences(w, before) == []
    assert set(differences(new, w)) == {*part(w, "head"), *runner.template.buffers}
    assert not any(value.requires_grad for value in new.values())


def test_nothing_to_train_is_nothing_done():
    """Later epochs draw as if something had been trained."""
    runner = make_runner(Plan(lr=0.1), norm="none")
    w = runner.new()
    c = some_client(runner)
    assert differences(c.train(c.loss, w, only="base.relu1"), w) == []
    second = c.train(c.loss, w)
    other = some_client(runner)
    list_batches(other)
    assert differences(other.train(other.loss, w), second) == []


def test_a_borrowed_models_statistics_stay_as_they_are():
    runner = make_runner(Plan(lr=0.1))
    w = runner.new(0)
    other = runner.new(1)
    before = copy.deepcopy(other)
    c = some_client(runner)
    trained = c.train(
        lambda w, batch: c.loss(w, batch) + 0 * c.model(other, batch.x).sum(), w
    )
    assert differences(other, before) == []
    assert "base.norm1.running_mean" in differences(trained, w)


def test_two_trainings_of_one_epoch_are_one_of_two():
    runner = make_runner(Plan(lr=0.1), norm="group")
    w = runner.new()
    c = some_client(runner)
    half = c.train(c.loss, w, epochs=1)
    twice = c.train(c.loss, half, epochs=1)
    c = some_client(runner)
    assert differences(c.train(c.loss, w, epochs=2), twice) == []


def test_a_step_is_one_step_of_train():
    runner = make_runner(Plan(lr=0.1, batch=64))
    w = runner.new()
    c = some_client(runner)
    (batch,) = list_batches(c)
    stepped, _ = c.step(c.loss, w, batch, SGD(0.1))
    c = some_client(runner)
    assert differences(c.train(c.loss, w, epochs=1), stepped) == []


def test_a_gradient_inside_a_loss_is_differentiable():
    runner = make_runner(Plan(lr=0.1), norm="group")
    w = runner.new()
    c = some_client(runner)
    batch = list_batches(c)[0]

    def meta(
        w: Params, batch: Batch
    ) -> torch.Tensor:  # one step of MAML: second derivatives
        gradient = c.grad(c.loss, w, batch)
        return c.loss({name: w[name] - 0.1 * gradient[name] for name in w}, batch)

    exact = c.grad(meta, w, batch)
    direction = {
        name: Rng.seed(4, i).normal(*value.shape)
        for i, (name, value) in enumerate(w.items())
    }
    up = {name: value + 1e-2 * direction[name] for name, value in w.items()}
    down = {name: value - 1e-2 * direction[name] for name, value in w.items()}
    numeric = (meta(up, batch) - meta(down, batch)) / 2e-2
    slope = sum((exact[name] * direction[name]).sum() for name in w)
    assert torch.allclose(slope, numeric, rtol=0.05)


# ---------------------------------------------------------------- batches
def test_an_epoch_sees_everything_and_fills_its_last_batch_from_its_own_beginning():
    c = some_client(make_runner(Plan(batch=8)))
    batches = list_batches(c)
    index = torch.cat([batch.index for batch in batches])
    assert [len(batch.y) for batch in batches] == [8] * 4
    assert sorted(index[: c.n].tolist()) == list(range(c.n))
    assert index[c.n :].tolist() == index[: 32 - c.n].tolist()
    for batch in batches:
        assert torch.equal(batch.x, c.x[batch.index])
        assert torch.equal(batch.y, c.y[batch.index])


@pytest.mark.parametrize(
    ("batching", "sizes"), [("keep", [8, 8, 8, 6]), ("drop", [8, 8, 8])]
)
def test_short_and_dropped_batches(batching, sizes):
    c = some_client(make_runner(Plan(batch=8, batching=batching)))
    assert [len(batch.y) for batch in list_batches(c)] == sizes


def test_every_step_and_every_epoch_have_their_own_randomness():
    c = some_client(make_runner(Plan(batch=8)))
    batches = list_batches(c, epochs=2)
    assert len({batch.rng.key for batch in batches}) == 8
    first, second = batches[0].halves()
    assert first.rng.key != second.rng.key
    assert torch.equal(torch.cat([first.x, second.x]), batches[0].x)
    assert torch.equal(torch.cat([first.index, second.index]), batches[0].index)


# ---------------------------------------------------------------- losses and data
def test_losses_by_example_are_those_of_the_task():
    runner = make_runner(Plan())
    w = runner.new()
    c = some_client(runner)
    losses = c.losses(w, c.data)
    by_hand = F.cross_entropy(c.model(w, c.x), c.y, reduction="none")
    assert torch.allclose(losses, by_hand, atol=1e-6)
    everything = Batch(c.x, c.y, torch.arange(c.n), c.rng)
    assert torch.allclose(losses.mean(), c.loss(w, everything), atol=1e-6)
    assert torch.allclose(c.mean(losses), losses.mean(), atol=1e-6)


def test_a_function_of_all_inputs_is_computed_in_chunks():
    c = some_client(make_runner(Plan()))
    sizes = []

    def double(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return 2 * x

    assert torch.equal(c.data.map(double, size=7), 2 * c.x)
    assert sizes == [7, 7, 7, 7, 2]


def test_class_sums_and_counts():
    c = some_client(make_runner(Plan()))
    values = torch.arange(float(c.n))[:, None]
    sums, counts = c.class_sums(values)
    assert torch.equal(counts, c.counts)
    for label in range(c.classes):
        mine = c.y == label
        assert counts[label] == mine.sum()
        assert sums[label] == values[mine].sum()


def test_a_missing_parameter_fails_loudly():
    runner = make_runner(Plan())
    w = runner.new()
    del w["base.fc1.weight"]
    with pytest.raises(KeyError, match=r"base\.fc1\.weight"):
        some_client(runner).model(w, torch.zeros(1, 1, 8, 8))


def test_bytes_are_scaled_on_the_fly():
    x = torch.tensor([0, 255], dtype=torch.uint8)
    assert features(x).tolist() == [-1.0, 1.0]
    assert x.tolist() == [0, 255]


def test_first_parameters_depend_on_their_number_and_the_seed():
    runner = make_runner(Plan())
    assert torch.equal(runner.new(0)["head.weight"], runner.new(0)["head.weight"])
    assert not torch.equal(runner.new(0)["head.weight"], runner.new(1)["head.weight"])
    one = runner.client(1, 1, 9).fresh("head")
    two = runner.client(2, 1, 9).fresh("head")
    assert not torch.equal(one["head.weight"], two["head.weight"])
    assert fresh(small(), Rng.seed(1)).keys() == small().state_dict().keys()


@pytest.mark.parametrize(
    ("old", "new"), [("fit", "train_with_state"), ("sgd", "optimiser")]
)
def test_an_old_name_gives_the_new_one(old, new):
    c = some_client(make_runner(Plan()))
    with pytest.raises(AttributeError, match=f"c.{old} is now c.{new}"):
        getattr(c, old)
