"""What every method computes at one client, as a bare loop: forward, backward and updates, no federation around it.

``VISITS[method](kit, guest)`` trains ``kit.net`` from ``kit.first`` as the method's paper says. The formulae of MGDA
and MMD are the package's: they are the methods' own arithmetic. ``tests/test_benchmarks.py`` compares what comes out
with what FedTailor's methods send and keep.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.maths.class_tasks import CPU, lay_out
from fedtailor.maths.mgda import head_gram, min_norm, normalise
from fedtailor.maths.mmd import mmd

HEAD_EPOCHS = 10  # FedRep's tau
PIECE = 100  # examples that go through Fed3+2p's frozen extractor at once
SHARE = 0.5  # CD2-pFed's p


@dataclass(frozen=True)
class Guest:
    """A client's share of the data."""

    x: Tensor  # its inputs
    y: Tensor
    epochs: Sequence[Sequence[Tensor]]  # by epoch, the positions of each batch
    classes: int


@dataclass(frozen=True)
class Kit:
    """A network of named parts, and what it starts from."""

    net: nn.ModuleDict
    first: dict[str, Tensor]
    lr: float

    def reset(self) -> None:
        self.net.load_state_dict(self.first)


Visit = Callable[[Kit, Guest], None]


def assemble(method: str, net: nn.Sequential, first: dict[str, Tensor], lr: float) -> Kit:
    """The parts that a method adds to ``base`` and ``head``."""
    parts = {"base": net.base, "head": net.head}
    width = net.head.in_features
    if method == "fedcp":
        parts["shared"] = copy.deepcopy(net.head)
        first = first | {
            f"shared.{k}": first[f"head.{k}"] for k in net.head.state_dict()
        }  # the two start alike
        parts["policy"] = nn.Sequential(
            nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU()
        )
    elif method == "gpfl":
        two = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in range(2)
        )
        parts["valve"] = nn.ModuleDict({"two": two})
        parts["embed"] = nn.Embedding(net.head.out_features, width)
    elif method.startswith("fed3p2p"):  # the layer before the last stands alone
        layers = dict(net.base.named_children())
        parts["filter"] = layers.pop("fc1")
        layers.pop("relu3")
        parts["base"] = nn.Sequential()
        for name, layer in layers.items():
            parts["base"].add_module(name, layer)
    return Kit(nn.ModuleDict(parts), first, lr)


def train(
    loss: Callable[[Tensor], Tensor],
    parameters: Iterable[Tensor] | Iterable[dict[str, object]],
    epochs: Iterable[Sequence[Tensor]],
    lr: float,
) -> None:
    """Descend: the loss of every batch, its gradient, a step."""
    optimiser = torch.optim.SGD(parameters, lr=lr, foreach=True)
    for batches in epochs:
        for at in batches:
            optimiser.zero_grad()
            loss(at).backward()
            optimiser.step()


def fedavg(kit: Kit, guest: Guest) -> None:
    net = kit.net
    kit.reset()
    train(
        lambda at: F.cross_entropy(net.head(net.base(guest.x[at])), guest.y[at]),
        net.parameters(),
        guest.epochs[:1],
        kit.lr,
    )


def fedrep(kit: Kit, guest: Guest) -> None:
    base, head = kit.net.base, kit.net.head
    kit.reset()

    def on_frozen_base(at: Tensor) -> Tensor:
        with torch.no_grad():
            h = base(guest.x[at])
        return F.cross_entropy(head(h), guest.y[at])

    train(on_frozen_base, head.parameters(), guest.epochs[:HEAD_EPOCHS], kit.lr)
    head.requires_grad_(False)
    train(
        lambda at: F.cross_entropy(head(base(guest.x[at])), guest.y[at]),
        base.parameters(),
        guest.epochs[HEAD_EPOCHS : HEAD_EPOCHS + 1],
        kit.lr,
    )
    head.requires_grad_(True)


def ditto(kit: Kit, guest: Guest) -> None:
    train_pulled(kit, guest)
    fedavg(kit, Guest(guest.x, guest.y, guest.epochs[1:2], guest.classes))


def train_pulled(kit: Kit, guest: Guest) -> None:
    """Ditto's personal model, pulled towards the global one."""
    net, lam = kit.net, 1.0
    kit.reset()

    def loss(at: Tensor) -> Tensor:
        task = F.cross_entropy(net.head(net.base(guest.x[at])), guest.y[at])
        return task + lam / 2 * sum(
            (p - kit.first[k]).square().sum() for k, p in net.named_parameters()
        )

    train(loss, net.parameters(), guest.epochs[:1], kit.lr)


def fedcp(kit: Kit, guest: Guest) -> None:
    net, lam = kit.net, 1.0 if kit.net.head.in_features < 512 else 5.0
    kit.reset()
    net.shared.requires_grad_(False)
    frozen, v = copy.deepcopy(net.base), F.normalize(net.head.weight.detach().sum(0), dim=0)

    def loss(at: Tensor) -> Tensor:
        x = guest.x[at]
        h = net.base(x)
        r, s = net.policy(v * h).unflatten(-1, (2, -1)).softmax(-2).unbind(-2)
        task = F.cross_entropy(net.shared(r * h) + net.head(s * h), guest.y[at])
        with torch.no_grad():
            given = frozen(x)
        return task + lam * mmd(h, given)

    train(loss, (p for p in net.parameters() if p.requires_grad), guest.epochs[:1], kit.lr)


def cd2pfed(kit: Kit, guest: Guest) -> None:
    net, lam, beta = kit.net, 1.0, 0.5
    kit.reset()
    layers = [(net.base.conv1, 2), (net.base.conv2, 2), (net.base.fc1, 0)]

    def side(x: Tensor, private: bool) -> Tensor:
        """The channels of one kind alone: the last half of every layer, or the first."""
        low, high, padding = 0, x.shape[1], net.base.conv1.padding
        for layer, pool in layers:
            if not pool:
                pixels = x[0, 0].numel()
                x, low, high = x.flatten(1), low * pixels, high * pixels
            half = len(layer.weight) // 2
            start, stop = (half, len(layer.weight)) if private else (0, half)
            weight, bias = layer.weight[start:stop, low:high], layer.bias[start:stop]
            x = (
                F.max_pool2d(F.conv2d(x, weight, bias, padding=padding), pool)
                if pool
                else F.linear(x, weight, bias)
            )
            x, low, high = F.relu(x), start, stop
        return F.linear(x, net.head.weight[:, low:high], net.head.bias)

    def distilled(at: Tensor) -> Tensor:
        x = guest.x[at]
        a, b = side(x, True).log_softmax(-1), side(x, False).log_softmax(-1)
        both = (a.exp() * (a - b) + b.exp() * (b - a)).sum(-1).mean()
        return F.cross_entropy(net.head(net.base(x)), guest.y[at]) + lam / 2 * both

    train(distilled, net.parameters(), guest.epochs[:1], kit.lr)
    with torch.no_grad():  # the temporal average of the private half
        for name, p in net.named_parameters():
            axis = int(name == "head.weight")
            if name != "head.bias":
                half = p.shape[axis] // 2
                mine, old = (
                    v.narrow(axis, half, p.shape[axis] - half) for v in (p, kit.first[name])
                )
                mine.copy_(torch.lerp(old, mine, beta))


def fed3p2p_1(kit: Kit, guest: Guest) -> None:
    net = kit.net
    kit.reset()
    train(
        lambda at: F.cross_entropy(net.head(net.filter(net.base(guest.x[at])).relu()), guest.y[at]),
        net.parameters(),
        guest.epochs[:1],
        kit.lr,
    )


def fed3p2p_2(kit: Kit, guest: Guest) -> None:
    net = kit.net
    kit.reset()
    with torch.no_grad():
        features = torch.cat([net.base(x) for x in guest.x.split(PIECE)])
    train(
        lambda at: F.cross_entropy(net.head(net.filter(features[at]).relu()), guest.y[at]),
        [*net.filter.parameters(), *net.head.parameters()],
        guest.epochs[:1],
        kit.lr,
    )


def gpfl(kit: Kit, guest: Guest) -> None:
    net, lam, mu = kit.net, 0.01, 0.1
    kit.reset()
    embed = kit.first["embed.weight"]
    counts = torch.bincount(guest.y, minlength=guest.classes).to(embed.dtype)
    g, p = embed.mean(0), counts / counts.sum() @ embed

    def valve(f: Tensor, condition: Tensor) -> Tensor:
        gamma, beta = (layers(condition) for layers in net.valve.two)
        return F.relu((gamma + 1) * f + beta)

    def loss(at: Tensor) -> Tensor:
        y = guest.y[at]
        f = net.base(guest.x[at])
        task = F.cross_entropy(net.head(valve(f, p)), y)
        f = valve(f, g)
        cosine = F.normalize(f, dim=-1) @ F.normalize(net.embed.weight, dim=-1).T
        return task + F.cross_entropy(cosine, y) + lam * (f - embed[y]).norm()

    plain = [*net.base.parameters(), *net.head.parameters()]
    decayed = [*net.valve.parameters(), *net.embed.parameters()]
    train(
        loss, [{"params": plain}, {"params": decayed, "weight_decay": mu}], guest.epochs[:1], kit.lr
    )


def pfedc(kit: Kit, guest: Guest) -> None:
    net = kit.net
    kit.reset()
    tasks = lay_out(tuple((c,) for c in range(guest.classes)), False, CPU)
    active = torch.bincount(guest.y, minlength=guest.classes) > 0

    def loss(at: Tensor) -> Tensor:
        losses, error = tasks.losses_and_errors(net.head(net.base(guest.x[at])), guest.y[at])
        gram = head_gram(net.head.weight.detach(), error, tasks.task_of, guest.classes)
        lam = min_norm(normalise(gram, losses.detach(), "l2"), active, 2 * guest.classes)
        return (lam * losses).sum()

    train(loss, net.parameters(), guest.epochs[:1], kit.lr)
    with torch.no_grad():  # tasks the client does not have stay as they were
        for name, p in net.head.named_parameters():
            p[~active] = kit.first[f"head.{name}"][~active]


VISITS: dict[str, Visit] = {
    "fedavg": fedavg,
    "fedper": fedavg,
    "fedrep": fedrep,
    "ditto": ditto,
    "fedcp": fedcp,
    "cd2pfed": cd2pfed,
    "fed3p2p-1": fed3p2p_1,
    "fed3p2p-2": fed3p2p_2,
    "gpfl": gpfl,
    "pfedc": pfedc,
}
