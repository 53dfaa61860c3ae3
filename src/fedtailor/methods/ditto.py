"""Ditto: beside the global model every client trains one of its own, pulled towards it.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1.

The authors' code draws clients in proportion to their data and averages them equally; here, as under FedAvg, everybody
is drawn alike and weighs as much as its data: the same in expectation. It also trains both models on the same batches
(``interleave``); here the personal one goes first, and the global one has batches of its own.

In the paper's experiments a client may ``choose`` its lambda by the loss on its validation data. That takes three
personal trainings in place of one, on the same batches; the validation data are looked at three times in a round, or at
every batch. The global model does not depend on the choice.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, Tree, learned, tmap
from fedtailor.method import Count, Doc, Method, New, NonNegative, Uploads, hyper
from fedtailor.training.optim import pull

LAMS = (0.1, 1.0, 2.0)  # what clients choose from; the paper's, where attacks are not strong
FEW, USUAL = (
    4,
    1,
)  # with fewer validation examples the choice is no choice but LAMS[USUAL]; the paper's
PIECE = 500  # validation examples in one forward

Trained = tuple[Params, Tree]  # a model and the state of its optimiser


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("global model")]


class Down(NamedTuple):
    """What goes down."""

    w: Params


class Keep(NamedTuple):
    """What never leaves the client."""

    v: Annotated[Params, Doc("personal model v_k")]


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("w_k, trained as in FedAvg")]


@dataclass(frozen=True)
class Ditto(Method[Server, Down, Keep, Up]):
    """The global model is FedAvg's; the personal one is regularised by it."""

    lam: NonNegative = hyper(
        1.0,
        "lambda, pull towards the global model; the authors' runs use 1 (Sec. 4 tries 0.05 .. 2)",
    )
    personal_epochs: Count | None = hyper(
        None, "s, epochs of the personal model per round; as many as the global one's"
    )
    choose: Literal["round", "batch"] | None = hyper(
        None, "lambda by validation loss, not lam: paper; batch: authors' code"
    )
    interleave: bool = hyper(
        False, "whether every batch trains both models, for the global one's epochs; authors' code"
    )

    def warnings(self) -> list[str]:
        found = []
        if self.lam == 0 and not self.choose:
            found.append("lam=0: nothing pulls Ditto's personal models together, they are Local's")
        if self.interleave and self.personal_epochs:
            found.append(
                "interleave: Ditto's models train on the same batches, personal_epochs is not read"
            )
        return found

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(down.w)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        if self.choose or self.interleave:
            w, v = self.train_together(c, down.w, keep.v)
            return Up(w), Keep(v)
        pulled = pull(c.optimiser, down.w, self.lam)  # Eq. (2): F_k(v) + lambda/2 ||v - w||^2
        v = c.train(c.loss, keep.v, epochs=self.personal_epochs, opt=pulled)
        return Up(c.train(c.loss, down.w)), Keep(v)

    def train_together(self, c: Client, start: Params, v: Params) -> tuple[Params, Params]:
        """The global model and the personal one, of which those with all lambdas train on the same batches."""
        opt, pulled = (
            c.optimiser,
            [pull(c.optimiser, start, lam) for lam in (LAMS if self.choose else (self.lam,))],
        )

        def step(
            carry: tuple[Trained, list[Trained]], batch: Batch
        ) -> tuple[Trained, list[Trained]]:
            (w, moments), tried = carry
            tried = [
                c.step(c.loss, v, batch, o, m) for o, (v, m) in zip(pulled, tried, strict=True)
            ]
            if self.choose == "batch":
                tried = [find_best(c, tried)] * len(tried)
            return c.step(c.loss, w, batch, opt, moments) if self.interleave else carry[0], tried

        first = (start, opt.init(learned(start))), [(v, opt.init(learned(v)))] * len(pulled)
        epochs = None if self.interleave else self.personal_epochs
        (w, _), tried = c.each_batch(step, first, epochs=epochs)
        return w if self.interleave else c.train(c.loss, start), find_best(c, tried)[0]

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return Server(ups.mean("w"))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return keep.v

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return keep.v

    def shared(self, server: Server) -> Params:
        return server.w


def find_best(c: Client, tried: list[Trained]) -> Trained:
    """The model with the least validation loss, the first of equals; with few examples that of the usual lambda."""
    if len(tried) == 1 or c.val.index.shape[0] == 0:
        return tried[min(USUAL, len(tried) - 1)]
    best, least = tried[0], torch.full((), torch.inf, device=c.rng.device)
    few = torch.as_tensor(c.val.n, device=c.rng.device) < FEW
    for i, (v, m) in enumerate(tried):
        pieces = [c.task.losses(c.model(v, x), y) for x, y, _ in c.val.chunks(PIECE)]
        loss = c.val.mean(torch.cat(pieces))
        better = few & (i == USUAL) | ~few & (loss < least)
        best = tmap(lambda new, old, better=better: torch.where(better, new, old), (v, m), best)
        least = torch.where(better, loss, least)
    return best
