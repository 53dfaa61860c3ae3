"""FedProto: models stay at home, class prototypes travel.

Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, Algorithm 1.

A prototype is the mean feature of a class over all of a client's data, under the model it has after training. The
authors' code (``prototypes=during``) sums features up while the last epoch changes the model, each batch in training
mode and before its own step; what fills up the last batch counts twice. A global prototype is the mean of the clients',
weighted by their numbers of examples of the class; the authors' code weighs clients equally: see ``weights``. Every
client draws its first model by itself, as no model is sent. What goes up for a class a client has not is what came
down.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.client import Batch, Client, Loss
from fedtailor.core.tensors import onehot
from fedtailor.core.tree import Params, Tree, part, total
from fedtailor.method import Doc, Method, New, NonNegative, Uploads, hyper

PIECE = 500  # examples in one forward


class Server(NamedTuple):
    """What the server remembers."""

    proto: Annotated[Tensor, Doc("global prototypes, a row for every class")]
    seen: Annotated[Tensor, Doc("1 for a class that has one")]


class Down(NamedTuple):
    """What goes down."""

    proto: Tensor
    seen: Tensor


class Keep(NamedTuple):
    """What never leaves the client."""

    w: Annotated[Params, Doc("its model")]


class Up(NamedTuple):
    """What goes up."""

    proto: Annotated[Tensor, Doc("its class means")]
    weight: Annotated[Tensor, Doc("of each in the mean; 0 for a class it has not")]


@dataclass(frozen=True)
class FedProto(Method[Server, Down, Keep, Up]):
    """Clients agree on where the classes lie, not on how to get there."""

    lam: NonNegative = hyper(
        1.0, "lambda, pull of features towards the global prototypes; 1 in the authors' code"
    )
    weights: Literal["data", "equal"] = hyper(
        "data", "of clients in a prototype: by examples (paper) or alike (code)"
    )
    prototypes: Literal["after", "during"] = hyper(
        "after", "means after training (paper), or over its last epoch (code)"
    )
    inference: Literal["prototype", "head"] = hyper(
        "prototype", "the nearest global prototype (paper) or the model's head"
    )

    def warnings(self) -> list[str]:
        alone = self.lam == 0 and self.inference == "head"
        return (
            ["lam=0 and inference=head: FedProto's clients learn nothing from each other"]
            if alone
            else []
        )

    def init(self, new: New, clients: int) -> Server:
        layers = [
            v for v in part(new(0), "head").values() if v.dim() == 2
        ]  # linear layers, features to logits
        return Server(
            torch.zeros(layers[-1].shape[0], layers[0].shape[1]), torch.zeros(layers[-1].shape[0])
        )

    def send(self, server: Server, k: int) -> Down:
        return Down(*server)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(c.fresh("base", "head"))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        def loss(w: Params, batch: Batch) -> Tensor:  # L_S + lambda L_R
            h = c.model.base(w, batch.x)
            gap: Tensor = (h - down.proto[batch.y]).square().mean(-1) * down.seen[batch.y]
            return c.task.loss(c.model.head(w, h), batch.y) + self.lam * gap.mean()

        if self.prototypes == "after":
            w = c.train(loss, keep.w)
            sums, counts = c.class_sums(
                torch.cat([c.model.base(w, x) for x, _, _ in c.data.chunks(PIECE)])
            )
            mean = sums / counts.clamp(min=1)[:, None]
        else:
            w, mean, counts = self.gather(c, loss, keep.w, torch.zeros_like(down.proto))
        weight = counts if self.weights == "data" else counts.clamp(max=1)
        return Up(torch.where(counts[:, None] > 0, mean, down.proto), weight), Keep(w)

    def gather(
        self, c: Client, loss: Loss, w: Params, none: Tensor
    ) -> tuple[Params, Tensor, Tensor]:
        """Train; also class means over what the last epoch saw, and the client's examples of the classes seen."""

        def touch(
            w: Params, batch: Batch
        ) -> Tensor:  # its gradient by "sums" is what they are, in training mode
            sums: Tensor = onehot(batch.y, c.classes).T @ c.model.base(w, batch.x)
            return (sums * w["sums"]).sum()

        def step(
            carry: tuple[Params, Tree, Tensor, Tensor], batch: Batch
        ) -> tuple[Params, Tree, Tensor, Tensor]:
            w, state, sums, seen = carry
            sums = sums + c.grad(touch, {**w, "sums": none}, batch, only="sums")["sums"]
            return (
                *c.step(loss, w, batch, c.optimiser, state),
                sums,
                seen + onehot(batch.y, c.classes).sum(0),
            )

        w, state = c.train_with_state(loss, w, epochs=c.plan.epochs - 1)
        w, _, sums, seen = c.each_batch(step, (w, state, none, none[:, 0]), epochs=1)
        return w, sums / seen.clamp(min=1)[:, None], c.counts * (seen > 0)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        weight = total(ups.weight)
        sums = total([p * n[:, None] for p, n in zip(ups.proto, ups.weight, strict=True)])
        proto = torch.where(weight[:, None] > 0, sums / weight.clamp(min=1)[:, None], server.proto)
        return Server(proto, torch.maximum(server.seen, weight.clamp(max=1)))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return (
            {**keep.w, "proto": down.proto, "seen": down.seen}
            if self.inference == "prototype"
            else keep.w
        )

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        if "proto" not in w:
            logits: Tensor = c.model(w, x)
            return logits
        distance = (c.model.base(w, x)[:, None] - w["proto"]).square().mean(-1)
        last = (
            distance.amax(-1, keepdim=True) + 1
        )  # a class without a prototype is further than any other
        return -torch.where(w["seen"] > 0, distance, last)
