"""What every method computes at one client as a bare loop: the reference for federation's cost.

A bare loop is forward, backward and updates in plain PyTorch: nothing is sent, averaged, stored or
checked. S2 divides the time of a method's round by the time of its bare loop; the quotient is what
the engine adds.

``TRAIN[method](model, client)`` trains ``model.net`` from ``model.initial`` as the method's paper
says. The formulae of MGDA and MMD are the package's: they are the methods' own arithmetic.
``tests/test_benchmarks.py`` compares what comes out with what FedTailor's methods send and keep.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.maths.class_tasks import CPU, lay_out
from fedtailor.maths.mgda import head_gram, min_norm, normalise
from fedtailor.maths.mmd import mmd

HEAD_EPOCHS = 10  # FedRep's tau
FROZEN_BATCH = 100  # examples that go through Fed3+2p's frozen extractor at once
PRIVATE_SHARE = 0.5  # CD2-pFed's p


@dataclass(frozen=True)
class ClientData:
    """A client's training data and its batches."""

    x: Tensor
    y: Tensor
    epochs: Sequence[Sequence[Tensor]]  # by epoch, the positions of each batch
    classes: int


@dataclass(frozen=True)
class Model:
    """A network of named parts, its first values, and the learning rate."""

    net: nn.ModuleDict
    initial: dict[str, Tensor]
    lr: float

    def reset(self) -> None:
        """Go back to the first values."""
        self.net.load_state_dict(self.initial)


BareLoop = Callable[[Model, ClientData], None]


def build_model(
    method: str, net: nn.Sequential, initial: dict[str, Tensor], lr: float
) -> Model:
    """The network of a method: ``base``, ``head``, and the parts that the method adds."""
    parts = {"base": net.base, "head": net.head}
    if method == "fedcp":
        parts["shared"] = copy.deepcopy(net.head)
        parts["policy"] = build_policy(net.head.in_features)
        initial = dict(initial)
        for name in net.head.state_dict():  # the two heads start alike
            initial[f"shared.{name}"] = initial[f"head.{name}"]
    elif method == "gpfl":
        parts["valve"] = build_valve(net.head.in_features)
        parts["embed"] = nn.Embedding(net.head.out_features, net.head.in_features)
    elif method.startswith("fed3p2p"):
        parts["base"] = copy_extractor(net.base)
        parts["filter"] = net.base.fc1
    return Model(nn.ModuleDict(parts), initial, lr)


def build_policy(width: int) -> nn.Sequential:
    """FedCP's conditional policy network."""
    return nn.Sequential(
        nn.Linear(width, 2 * width),
        nn.LayerNorm(2 * width),
        nn.ReLU(),
    )


def build_valve(width: int) -> nn.ModuleDict:
    """GPFL's conditional valve: a network for gamma and one for beta."""
    networks = []
    for _ in range(2):
        layers = (nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width))
        networks.append(nn.Sequential(*layers))
    return nn.ModuleDict({"two": nn.ModuleList(networks)})


def copy_extractor(base: nn.Sequential) -> nn.Sequential:
    """Fed3+2p's feature extractor: the base without its last layer, which is the filter."""
    extractor = nn.Sequential()
    for name, layer in base.named_children():
        if name not in ("fc1", "relu3"):
            extractor.add_module(name, layer)
    return extractor


def minimise(
    loss: Callable[[Tensor], Tensor],
    parameters: Iterable[Tensor] | Iterable[dict[str, object]],
    epochs: Iterable[Sequence[Tensor]],
    lr: float,
) -> None:
    """Descend: the loss of every batch, its gradient, a step."""
    optimiser = torch.optim.SGD(parameters, lr=lr, foreach=True)
    for batches in epochs:
        for index in batches:
            optimiser.zero_grad()
            loss(index).backward()
            optimiser.step()


def train_fedavg(model: Model, client: ClientData) -> None:
    """One epoch of all parameters; also FedPer."""
    net = model.net
    model.reset()

    def loss(index: Tensor) -> Tensor:
        logits = net.head(net.base(client.x[index]))
        return F.cross_entropy(logits, client.y[index])

    minimise(loss, net.parameters(), client.epochs[:1], model.lr)


def train_fedrep(model: Model, client: ClientData) -> None:
    """The head on a frozen base, then the base under a frozen head."""
    base = model.net.base
    head = model.net.head
    model.reset()

    def loss_of_head(index: Tensor) -> Tensor:
        with torch.no_grad():
            features = base(client.x[index])
        return F.cross_entropy(head(features), client.y[index])

    def loss_of_base(index: Tensor) -> Tensor:
        logits = head(base(client.x[index]))
        return F.cross_entropy(logits, client.y[index])

    minimise(loss_of_head, head.parameters(), client.epochs[:HEAD_EPOCHS], model.lr)
    head.requires_grad_(False)
    last_epoch = client.epochs[HEAD_EPOCHS : HEAD_EPOCHS + 1]
    minimise(loss_of_base, base.parameters(), last_epoch, model.lr)
    head.requires_grad_(True)


def train_ditto(model: Model, client: ClientData) -> None:
    """The personal model, then the global one with the batches of the second epoch."""
    train_ditto_personal(model, client)
    train_fedavg(model, replace(client, epochs=client.epochs[1:2]))


def train_ditto_personal(model: Model, client: ClientData) -> None:
    """Ditto's personal model, pulled towards the global one."""
    net = model.net
    lam = 1.0
    model.reset()

    def loss(index: Tensor) -> Tensor:
        logits = net.head(net.base(client.x[index]))
        task = F.cross_entropy(logits, client.y[index])
        distance = 0.0
        for name, value in net.named_parameters():
            distance = distance + (value - model.initial[name]).square().sum()
        return task + lam / 2 * distance

    minimise(loss, net.parameters(), client.epochs[:1], model.lr)


def train_fedcp(model: Model, client: ClientData) -> None:
    """FedCP: a policy splits the features between a global and a personal head."""
    net = model.net
    lam = 0.1 if net.head.in_features < 512 else 5.0
    model.reset()
    net.shared.requires_grad_(False)
    frozen = copy.deepcopy(net.base)
    v = F.normalize(net.head.weight.detach().sum(0), dim=0)

    def loss(index: Tensor) -> Tensor:
        x = client.x[index]
        h = net.base(x)
        policy = net.policy(v * h).unflatten(-1, (2, -1))
        r, s = policy.softmax(-2).unbind(-2)
        logits = net.shared(r * h) + net.head(s * h)
        task = F.cross_entropy(logits, client.y[index])
        with torch.no_grad():
            global_features = frozen(x)
        return task + lam * mmd(h, global_features)

    trained = [value for value in net.parameters() if value.requires_grad]
    minimise(loss, trained, client.epochs[:1], model.lr)


def train_cd2pfed(model: Model, client: ClientData) -> None:
    """CD2-pFed: private and shared channels learn from each other."""
    net = model.net
    lam = 1.0
    model.reset()

    def loss(index: Tensor) -> Tensor:
        x = client.x[index]
        private = forward_half(net, x, private=True).log_softmax(-1)
        shared = forward_half(net, x, private=False).log_softmax(-1)
        divergence = measure_divergence(private, shared)
        logits = net.head(net.base(x))
        task = F.cross_entropy(logits, client.y[index])
        return task + lam / 2 * divergence

    minimise(loss, net.parameters(), client.epochs[:1], model.lr)
    average_private_channels(model)


def measure_divergence(a: Tensor, b: Tensor) -> Tensor:
    """KL(a || b) + KL(b || a) of two predictions, given as logarithms; the mean over examples."""
    forward = a.exp() * (a - b)
    backward = b.exp() * (b - a)
    return (forward + backward).sum(-1).mean()


def forward_half(net: nn.ModuleDict, x: Tensor, private: bool) -> Tensor:
    """Logits of the private channels alone (the last half of every layer) or of the shared ones."""
    base = net.base
    inputs = slice(0, x.shape[1])
    for convolution in (base.conv1, base.conv2):
        outputs = choose_half(convolution, private)
        weight = convolution.weight[outputs, inputs]
        bias = convolution.bias[outputs]
        x = F.conv2d(x, weight, bias, padding=convolution.padding)
        x = F.relu(F.max_pool2d(x, 2))
        inputs = outputs
    pixels = x[0, 0].numel()
    x = x.flatten(1)
    inputs = slice(inputs.start * pixels, inputs.stop * pixels)
    outputs = choose_half(base.fc1, private)
    weight = base.fc1.weight[outputs, inputs]
    bias = base.fc1.bias[outputs]
    x = F.relu(F.linear(x, weight, bias))
    return F.linear(x, net.head.weight[:, outputs], net.head.bias)


def choose_half(layer: nn.Module, private: bool) -> slice:
    """The output channels of one kind."""
    channels = len(layer.weight)
    half = channels // 2
    return slice(half, channels) if private else slice(0, half)


@torch.no_grad()
def average_private_channels(model: Model) -> None:
    """CD2-pFed's temporal average of the private half."""
    beta = 0.5
    for name, value in model.net.named_parameters():
        if name == "head.bias":
            continue
        axis = 1 if name == "head.weight" else 0
        channels = value.shape[axis]
        half = channels // 2
        new = value.narrow(axis, half, channels - half)
        old = model.initial[name].narrow(axis, half, channels - half)
        new.copy_(torch.lerp(old, new, beta))


def train_fed3p2p_phase1(model: Model, client: ClientData) -> None:
    """Fed3+2p, phase 1: all three parts."""
    net = model.net
    model.reset()

    def loss(index: Tensor) -> Tensor:
        features = net.base(client.x[index])
        logits = net.head(net.filter(features).relu())
        return F.cross_entropy(logits, client.y[index])

    minimise(loss, net.parameters(), client.epochs[:1], model.lr)


def train_fed3p2p_phase2(model: Model, client: ClientData) -> None:
    """Fed3+2p, phase 2: filter and head on the features of a frozen extractor."""
    net = model.net
    model.reset()
    with torch.no_grad():
        chunks = [net.base(x) for x in client.x.split(FROZEN_BATCH)]
    features = torch.cat(chunks)

    def loss(index: Tensor) -> Tensor:
        logits = net.head(net.filter(features[index]).relu())
        return F.cross_entropy(logits, client.y[index])

    trained = [*net.filter.parameters(), *net.head.parameters()]
    minimise(loss, trained, client.epochs[:1], model.lr)


def train_gpfl(model: Model, client: ClientData) -> None:
    """GPFL: global and personalised conditions on the features, and embeddings of the classes."""
    net = model.net
    lam = 0.01
    mu = 0.1
    model.reset()
    embed = model.initial["embed.weight"]
    counts = torch.bincount(client.y, minlength=client.classes).to(embed.dtype)
    global_condition = embed.mean(0)
    personal_condition = counts / counts.sum() @ embed

    def apply_valve(features: Tensor, condition: Tensor) -> Tensor:
        gamma, beta = (network(condition) for network in net.valve.two)
        return F.relu((gamma + 1) * features + beta)

    def loss(index: Tensor) -> Tensor:
        y = client.y[index]
        features = net.base(client.x[index])
        personal = apply_valve(features, personal_condition)
        task = F.cross_entropy(net.head(personal), y)
        general = apply_valve(features, global_condition)
        directions = F.normalize(net.embed.weight, dim=-1)
        cosine = F.normalize(general, dim=-1) @ directions.T
        angle = F.cross_entropy(cosine, y)
        magnitude = (general - embed[y]).norm()
        return task + angle + lam * magnitude

    plain = [*net.base.parameters(), *net.head.parameters()]
    decayed = [*net.valve.parameters(), *net.embed.parameters()]
    groups = [{"params": plain}, {"params": decayed, "weight_decay": mu}]
    minimise(loss, groups, client.epochs[:1], model.lr)


def train_pfedc(model: Model, client: ClientData) -> None:
    """pFedC: every class is a task, and MGDA weighs the tasks of a batch."""
    net = model.net
    classes = client.classes
    model.reset()
    tasks = lay_out(tuple((c,) for c in range(classes)), False, CPU)
    active = torch.bincount(client.y, minlength=classes) > 0

    def loss(index: Tensor) -> Tensor:
        z = net.base(client.x[index])
        losses, error = tasks.losses_and_errors(net.head(z.detach()), client.y[index])
        weight = net.head.weight.detach()
        gram = head_gram(weight, error, tasks.task_of, classes)
        gram = normalise(gram, losses.detach(), "l2")
        weights = min_norm(gram, active, 2 * classes)
        # heads take full steps, the representation the weighted one
        pull = (error * weights) @ weight
        return (losses * active).sum() + (z * pull).sum()

    minimise(loss, net.parameters(), client.epochs[:1], model.lr)
    with torch.no_grad():  # tasks the client does not have stay as they were
        for name, value in net.head.named_parameters():
            value[~active] = model.initial[f"head.{name}"][~active]


TRAIN: dict[str, BareLoop] = {
    "fedavg": train_fedavg,
    "fedper": train_fedavg,
    "fedrep": train_fedrep,
    "ditto": train_ditto,
    "fedcp": train_fedcp,
    "cd2pfed": train_cd2pfed,
    "fed3p2p-1": train_fed3p2p_phase1,
    "fed3p2p-2": train_fed3p2p_phase2,
    "gpfl": train_gpfl,
    "pfedc": train_pfedc,
}
