"""FedProto: models stay with their clients, class prototypes are exchanged.

Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022,
Algorithm 1.

A prototype is the mean feature of a class over all of a client's data, under the model it has after
training. The authors' code (``prototypes=during``) sums features up while the last epoch changes
the model, each batch in training mode and before its own step; the examples that fill up the last
batch count twice. A global prototype is the mean of the clients', weighted by their numbers of
examples of the class; the authors' code weighs clients equally: see ``weights``. Every client draws
its first model itself, as no model is sent. For a class that a client does not have, it sends back
what it was sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.client import Batch, Client, Loss
from fedtailor.core.tensors import onehot
from fedtailor.core.tree import Params, Tree, part
from fedtailor.method import Doc, Method, New, NonNegative, Uploads, hyper

LossAndFeatures = Callable[[Params, Batch], tuple[Tensor, Tensor]]


class Server(NamedTuple):
    """What the server remembers."""

    proto: Annotated[Tensor, Doc("global prototypes, a row for every class")]
    seen: Annotated[Tensor, Doc("1 for a class that has one")]


class Down(NamedTuple):
    """What a client is sent."""

    proto: Annotated[Tensor, Doc("global prototypes, a row for every class")]
    seen: Annotated[Tensor, Doc("1 for a class that has one")]


class Keep(NamedTuple):
    """What a client keeps to itself."""

    w: Annotated[Params, Doc("its model")]


class Up(NamedTuple):
    """What a client sends back."""

    proto: Annotated[Tensor, Doc("its class means")]
    weight: Annotated[
        Tensor, Doc("of each in the mean; 0 for a class it does not have")
    ]


class ClassMeans(NamedTuple):
    """Mean features of the classes."""

    mean: Tensor  # a row for every class
    # how many the client has of every class that has a mean, 0 elsewhere
    examples: Tensor


class LastEpoch(NamedTuple):
    """What the last epoch carries from batch to batch."""

    w: Params
    state: Tree  # of the optimiser
    sums: Tensor  # of the features of every class
    seen: Tensor  # how many of them


@dataclass(frozen=True)
class FedProto(Method[Server, Down, Keep, Up]):
    """Clients agree on where the classes lie in feature space, each with a model of its own."""

    reveals: ClassVar[dict[str, str]] = {
        "class counts": "the class means are sent with the number of examples in each",
    }

    lam: NonNegative = hyper(
        1.0,
        "lambda, pull of features towards the global prototypes; 1 in the authors' code",
    )
    weights: Literal["data", "equal"] = hyper(
        "data",
        "of clients in a prototype: by examples (paper) or alike (code)",
    )
    prototypes: Literal["after", "during"] = hyper(
        "after",
        "means after training (paper), or over its last epoch (code)",
    )
    inference: Literal["prototype", "head"] = hyper(
        "prototype",
        "the nearest global prototype (paper) or the model's head",
    )

    def warnings(self) -> list[str]:
        if self.lam == 0 and self.inference == "head":
            return [
                "lam=0 and inference=head: FedProto's clients learn nothing from each other"
            ]
        return []

    def init(self, new: New, clients: int) -> Server:
        head = part(new(0), "head").values()
        # linear, from features to logits
        layers = [value for value in head if value.dim() == 2]
        features = layers[0].shape[1]
        classes = layers[-1].shape[0]
        return Server(
            proto=torch.zeros(classes, features),
            seen=torch.zeros(classes),
        )

    def send(self, server: Server, k: int) -> Down:
        return Down(server.proto, server.seen)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(c.fresh("base", "head"))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Train on L_S + lambda L_R, and send the class means of the features."""

        def loss(w: Params, batch: Batch) -> tuple[Tensor, Tensor]:
            features = c.model.base(w, batch.x)
            logits = c.model.head(w, features)
            task = c.task.loss(logits, batch.y)
            gap = (features - down.proto[batch.y]).square().mean(-1)
            has_prototype = down.seen[batch.y]
            pull = (gap * has_prototype).mean()
            return task + self.lam * pull, features

        if self.prototypes == "after":
            w, means = train_then_average(c, loss, keep.w)
        else:
            zeros = torch.zeros_like(down.proto)
            w, means = train_and_average(c, loss, keep.w, zeros)
        has_class = means.examples[:, None] > 0
        proto = torch.where(has_class, means.mean, down.proto)
        weight = means.examples
        if self.weights == "equal":
            weight = weight.clamp(max=1)
        return Up(proto, weight), Keep(w)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        """Global prototypes: weighted means of the clients', the old ones where none was sent."""
        weight = ups.sum("weight")
        weighted = ups.map(multiply_by_weight)
        mean = divide_rows(weighted.sum("proto"), weight)
        is_sent = weight[:, None] > 0
        proto = torch.where(is_sent, mean, server.proto)
        seen = torch.maximum(server.seen, weight.clamp(max=1))
        return Server(proto, seen)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        if self.inference == "head":
            return keep.w
        return keep.w | {"proto": down.proto, "seen": down.seen}

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        """The nearer a class's prototype, the larger its logit; or the logits of the head."""
        if "proto" not in w:
            logits: Tensor = c.model(w, x)
            return logits
        features = c.model.base(w, x)
        gap = features[:, None] - w["proto"]
        distance = gap.square().mean(-1)
        # a class without a prototype is further than any other
        furthest = distance.amax(-1, keepdim=True) + 1
        return -torch.where(w["seen"] > 0, distance, furthest)


def train_then_average(
    c: Client, loss: LossAndFeatures, w: Params
) -> tuple[Params, ClassMeans]:
    """Train; then the class means of all features under the trained model."""
    w = c.train(without_features(loss), w)
    features = c.data.map(lambda x: c.model.base(w, x))
    sums, count = c.class_sums(features)
    mean = divide_rows(sums, count)
    return w, ClassMeans(mean, count)


def train_and_average(
    c: Client, loss: LossAndFeatures, w: Params, zeros: Tensor
) -> tuple[Params, ClassMeans]:
    """Train; also the class means of the features that the last epoch saw, each before its step."""
    optimiser = c.optimiser

    def step(carry: LastEpoch, batch: Batch) -> LastEpoch:
        w, state, features = c.step_with_aux(
            loss, carry.w, batch, optimiser, carry.state
        )
        labels = onehot(batch.y, c.classes)
        return LastEpoch(
            w=w,
            state=state,
            sums=carry.sums + labels.T @ features,
            seen=carry.seen + labels.sum(0),
        )

    earlier = c.plan.epochs - 1
    w, state = c.train_with_state(without_features(loss), w, epochs=earlier)
    start = LastEpoch(
        w=w,
        state=state,
        sums=zeros,
        seen=zeros[:, 0],
    )
    end = c.each_batch(step, start, epochs=1)
    mean = divide_rows(end.sums, end.seen)
    count = c.counts * (end.seen > 0)
    return end.w, ClassMeans(mean, count)


def without_features(loss: LossAndFeatures) -> Loss:
    """The loss alone."""

    def first(w: Params, batch: Batch) -> Tensor:
        value, _ = loss(w, batch)
        return value

    return first


def multiply_by_weight(up: Up) -> Up:
    """An upload with every prototype multiplied by its weight."""
    weighted = up.proto * up.weight[:, None]
    return up._replace(proto=weighted)


def divide_rows(sums: Tensor, count: Tensor) -> Tensor:
    """Every row of sums divided by its count; by 1 where that is less."""
    return sums / count.clamp(min=1)[:, None]
