"""Local training is ordinary PyTorch: compared with torch.optim on the nn.Module, bit for bit."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fedtailor.client import Batch
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


def site(plan: Plan, norm: str = "batch") -> ClientRunner:
    return ClientRunner(World(FedAvg(), small(norm=norm), digits(), plan, 0, 5), MemoryStore())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training_equals_torch_on_the_module(momentum):
    plan = Plan(lr=0.05, epochs=3, batch=7, momentum=momentum, weight_decay=0.01)
    here = site(plan)
    w = here.new()
    module = small(norm="batch")
    module.load_state_dict({k: v.clone() for k, v in w.items()}, strict=False)
    judge = torch.optim.SGD(module.parameters(), lr=0.05, momentum=momentum, weight_decay=0.01)
    seen = []
    trained = here.client(0, 1, 9).train(
        lambda v, b: (seen.append(b), here.client(0, 1, 9).loss(v, b))[1], w
    )
    module.train()
    for batch in seen:
        judge.zero_grad()
        F.cross_entropy(module(batch.x), batch.y).backward()
        judge.step()
    theirs = module.state_dict()
    assert len(seen) == 3 * 5
    for k, v in trained.items():
        assert torch.equal(v, theirs[k]), k


def texts(plan: Plan) -> ClientRunner:
    words = torch.randint(0, 50, (60, 12), generator=torch.Generator().manual_seed(0))
    f = replace(
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
    return ClientRunner(
        World(FedAvg(), build("fasttext", (12,), 4, vocabulary=50), f, plan, 0, 5), MemoryStore()
    )


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_word_vectors_learn_as_with_whole_gradients(decay):
    here = texts(Plan(lr=0.5, epochs=2, batch=7, weight_decay=decay))
    w, kinds = here.new(), set()
    c = here.client(0, 1, 9)
    sparse = c.train(c.loss, w)
    whole = (d := here.client(0, 1, 9)).each_batch(lambda v, b: d.step(d.loss, v, b)[0], w)
    touched = (sparse["base.embedding.weight"] != w["base.embedding.weight"]).any(1)
    assert all(torch.allclose(sparse[k], whole[k], atol=1e-6) for k in w)
    assert bool(touched.any()) and (decay > 0 or not bool(touched.all()))

    def spy(v: Params, b: Batch) -> torch.Tensor:
        (g,) = torch.autograd.grad(c.loss(v, b), [v["base.embedding.weight"]])
        kinds.add(g.is_sparse)
        return c.loss(v, b)

    here.client(0, 1, 9).train(spy, w)
    assert kinds == {True}


def test_what_is_given_stays_as_it_was_and_only_the_asked_part_moves():
    here = site(Plan(lr=0.1))
    w = here.new()
    before = copy.deepcopy(w)
    c = here.client(0, 1, 9)
    new = c.train(c.loss, w, only="head")
    assert all(torch.equal(w[k], before[k]) for k in w)
    assert all(torch.equal(new[k], w[k]) for k in part(w, "base") if k not in here.template.buffers)
    assert all(not torch.equal(new[k], w[k]) for k in part(w, "head"))
    assert not any(v.requires_grad for v in new.values())


def test_a_borrowed_models_statistics_stay_as_they_are():
    here = site(Plan(lr=0.1))
    w, other = here.new(0), here.new(1)
    before = copy.deepcopy(other)
    c = here.client(0, 1, 9)
    trained = c.train(lambda v, b: c.loss(v, b) + 0 * c.model(other, b.x).sum(), w)
    assert all(torch.equal(other[k], before[k]) for k in other)
    assert not torch.equal(trained["base.norm1.running_mean"], w["base.norm1.running_mean"])


def test_two_trainings_of_one_epoch_are_one_of_two():
    here = site(Plan(lr=0.1), norm="group")
    w = here.new()
    c = here.client(0, 1, 9)
    twice = c.train(c.loss, c.train(c.loss, w, epochs=1), epochs=1)
    once = (d := here.client(0, 1, 9)).train(d.loss, w, epochs=2)
    assert all(torch.equal(twice[k], once[k]) for k in w)


def test_an_epoch_sees_everything_and_fills_its_last_batch_from_its_own_beginning():
    here = site(Plan(batch=8))
    c = here.client(0, 1, 9)
    batches = []
    c.each_batch(lambda _, b: batches.append(b), None, epochs=1)
    at = torch.cat([b.at for b in batches])
    assert {len(b.y) for b in batches} == {8} and len(batches) == 4
    assert sorted(at[: c.n].tolist()) == list(range(c.n))
    assert at[c.n :].tolist() == at[: 32 - c.n].tolist()
    for b in batches:
        assert torch.equal(b.x, c.x[b.at]) and torch.equal(b.y, c.y[b.at])


def test_short_and_dropped_batches():
    for batching, sizes in (("keep", [8, 8, 8, 6]), ("drop", [8, 8, 8])):
        c = site(Plan(batch=8, batching=batching)).client(0, 1, 9)
        got = []
        c.each_batch(lambda _, b, got=got: got.append(len(b.y)), None, epochs=1)
        assert got == sizes


def test_a_gradient_inside_a_loss_is_differentiable():
    here = site(Plan(lr=0.1), norm="group")
    w, c = here.new(), here.client(0, 1, 9)

    def meta(v, batch):  # one step of MAML: needs second derivatives
        g = c.grad(c.loss, v, batch)
        return c.loss({k: v[k] - 0.1 * g[k] for k in v}, batch)

    batches = []
    c.each_batch(lambda _, b: batches.append(b), None, epochs=1)
    exact = c.grad(meta, w, batches[0])
    direction = {k: Rng.seed(4, i).normal(*v.shape) for i, (k, v) in enumerate(w.items())}
    up, down = ({k: v + s * 1e-2 * direction[k] for k, v in w.items()} for s in (1, -1))
    numeric = (meta(up, batches[0]) - meta(down, batches[0])) / 2e-2
    assert torch.allclose(sum((exact[k] * direction[k]).sum() for k in w), numeric, rtol=0.05)


def test_step_is_one_step_of_train():
    here = site(Plan(lr=0.1, batch=64), norm="batch")
    w, c = here.new(), here.client(0, 1, 9)
    batches = []
    c.each_batch(lambda _, b: batches.append(b), None, epochs=1)
    stepped, _ = c.step(c.loss, w, batches[0], SGD(0.1))
    trained = (d := here.client(0, 1, 9)).train(d.loss, w, epochs=1)
    assert all(torch.equal(stepped[k], trained[k]) for k in w)


def test_a_missing_parameter_fails_loudly():
    here = site(Plan())
    w = here.new()
    del w["base.fc1.weight"]
    with pytest.raises(KeyError, match=r"base\.fc1\.weight"):
        here.client(0, 1, 9).model(w, torch.zeros(1, 1, 8, 8))


def test_bytes_are_scaled_on_the_fly():
    x = torch.tensor([0, 255], dtype=torch.uint8)
    assert features(x).tolist() == [-1.0, 1.0] and x.tolist() == [0, 255]


def test_first_parameters_depend_on_their_number_and_the_seed():
    here = site(Plan())
    assert torch.equal(here.new(0)["head.weight"], here.new(0)["head.weight"])
    assert not torch.equal(here.new(0)["head.weight"], here.new(1)["head.weight"])
    own = here.client(1, 1, 9).fresh("head"), here.client(2, 1, 9).fresh("head")
    assert not torch.equal(own[0]["head.weight"], own[1]["head.weight"])
    assert fresh(small(), Rng.seed(1)).keys() == small().state_dict().keys()
