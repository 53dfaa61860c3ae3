"""Ditto: beside the global model every client trains one of its own, pulled towards it.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
Algorithm 1.

The authors' code samples clients in proportion to their data and averages them equally. Here, as in
FedAvg, clients are sampled uniformly and weighted by their data: the same in expectation. It also
trains both models on the same batches (``interleave``); here the personal model trains first, and
the global one has batches of its own.

In the paper's experiments a client may ``choose`` its lambda by the loss on its validation data.
That takes three personal trainings in place of one, on the same batches; the validation data are
used three times in a round, or at every batch. The global model does not depend on the choice.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, Tree, learned, tmap
from fedtailor.method import Count, Doc, Method, New, NonNegative, Uploads, hyper
from fedtailor.training.optim import pull

# what clients choose from (the paper's, where attacks are not strong)
LAMS = (
    0.1,
    1.0,
    2.0,
)
USUAL = 1  # the place in LAMS of the one to take where there are too few examples to choose by
FEWEST = 4  # validation examples needed for a choice; the paper's

Trained = tuple[Params, Tree]  # a model and the state of its optimiser
# the global model, and a personal one for every lambda
Both = tuple[Trained, list[Trained]]


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("w^t, global model")]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[Params, Doc("w^t, global model, which pulls the personal one")]


class Keep(NamedTuple):
    """What a client keeps to itself."""

    v: Annotated[Params, Doc("personal model v_k")]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[Params, Doc("w_k, trained as in FedAvg")]


@dataclass(frozen=True)
class Ditto(Method[Server, Down, Keep, Up]):
    """The global model is FedAvg's; the personal one is regularised by it."""

    lam: NonNegative = hyper(
        1.0,
        "lambda, pull towards the global model; the authors' runs use 1 (Sec. 4 tries 0.05 .. 2)",
    )
    personal_epochs: Count | None = hyper(
        None,
        "s, epochs of the personal model per round; as many as the global one's",
    )
    choose: Literal["round", "batch"] | None = hyper(
        None,
        "lambda by validation loss, not lam: paper; batch: authors' code",
    )
    interleave: bool = hyper(
        False,
        "whether every batch trains both models, for the global one's epochs; authors' code",
    )

    def warnings(self) -> list[str]:
        found = []
        if self.lam == 0 and not self.choose:
            found.append(
                "lam=0: nothing pulls Ditto's personal models together, they are Local's"
            )
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
        """Train the personal model, then the global one.

        The personal model trains on Eq. (2): F_k(v) + lambda/2 ||v - w||^2.
        """
        if self.choose or self.interleave:
            w, v = self.train_together(c, down.w, keep.v)
            return Up(w), Keep(v)
        pulled = pull(c.optimiser, down.w, self.lam)
        v = c.train(c.loss, keep.v, epochs=self.personal_epochs, opt=pulled)
        w = c.train(c.loss, down.w)
        return Up(w), Keep(v)

    def train_together(self, c: Client, w: Params, v: Params) -> tuple[Params, Params]:
        """Train a personal model for every lambda on the same batches, and choose the best.

        With ``interleave`` the same batches train the global model, else later ones.

        Args:
            w: the global model.
            v: the client's personal model.

        Returns:
            The trained global and personal models.
        """
        lams = LAMS if self.choose else (self.lam,)
        optimiser = c.optimiser
        pulled = [pull(optimiser, w, lam) for lam in lams]

        def step(both: Both, batch: Batch) -> Both:
            common, tried = both
            moved = []
            for opt, (model, state) in zip(pulled, tried, strict=True):
                new = c.step(c.loss, model, batch, opt, state)
                moved.append(new)
            if self.choose == "batch":
                moved = [find_best(c, moved)] * len(moved)
            if self.interleave:
                model, state = common
                common = c.step(c.loss, model, batch, optimiser, state)
            return common, moved

        common = (w, optimiser.init(learned(w)))
        personal = (v, optimiser.init(learned(v)))
        tried = [personal] * len(pulled)
        epochs = None if self.interleave else self.personal_epochs
        common, tried = c.each_batch(step, (common, tried), epochs=epochs)
        v, _ = find_best(c, tried)
        if self.interleave:
            w, _ = common
        else:
            w = c.train(c.loss, w)
        return w, v

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return Server(ups.mean("w"))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return keep.v

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return keep.v

    def shared(self, server: Server) -> Params:
        return server.w


def find_best(c: Client, tried: list[Trained]) -> Trained:
    """The model with the least validation loss, the first of equals.

    With too few validation examples it is the model of the usual lambda.
    """
    if len(tried) == 1:
        return tried[0]
    if c.val.index.shape[0] == 0:
        return tried[USUAL]
    device = c.rng.device
    n = torch.as_tensor(c.val.n, device=device)
    too_few = n < FEWEST
    best = tried[0]
    least = torch.full((), torch.inf, device=device)
    for i, candidate in enumerate(tried):
        model, _ = candidate
        losses = c.losses(model, c.val)
        loss = c.val.mean(losses)
        is_better = too_few & (i == USUAL) | ~too_few & (loss < least)
        best = tmap(partial(torch.where, is_better), candidate, best)
        least = torch.where(is_better, loss, least)
    return best
