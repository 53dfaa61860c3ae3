"""FedPHP: what a client learned in earlier rounds is inherited, the more the longer training lasts.

Li et al., FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021,
Algorithm 1.

There are two readings. ``inherit=start``, which FedCP and GPFL compare with: a client starts from a
mix of the global model and its own old one, and trains it while its features stay near the global
model's; the mix is the personal model. ``inherit=end``, the authors' code: a client starts from the
global model, trains it while its features stay near those of an inherited model, and then mixes the
trained model into the inherited one, which is the personal model. PFLlib evaluates the trained
model instead, which is the view ``after``.

Closeness is the squared MMD with the fixed bandwidths of FedCP's code. The authors' code takes
bandwidths relative to the mean distance in a batch, or distils: see ``near``. mu grows with the
round; in their code it grows with the number of rounds the client has taken part in: see ``turns``.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, lerp
from fedtailor.maths.mmd import mmd
from fedtailor.method import Count, Doc, Method, New, Share, Uploads, hyper

SOFTNESS = 4.0  # the teacher's logits are divided by it in distillation; authors' code
# Bandwidths in mean squared distances; half of those in the authors' code, as mmd doubles them.
RELATIVE = (0.125, 0.25, 0.5, 1.0, 2.0)


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("global model")]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[
        Params, Doc("global model, to mix the old model with and to stay near")
    ]


class Keep(NamedTuple):
    """What a client remembers."""

    old: Annotated[Params, Doc("its last model; with inherit=end the inherited one")]
    turns: Annotated[
        Tensor | None,
        Doc("how many rounds it has taken part in, where mu grows with them"),
    ]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[Params, Doc("locally trained model")]


@dataclass(frozen=True)
class FedPHP(Method[Server, Down, Keep, Up]):
    """The global model is FedAvg's, of models that inherit from earlier ones."""

    depends_on_rounds: ClassVar[bool] = True
    # with inherit=start it was the last upload
    also_sent: ClassVar[tuple[str, ...]] = ("old",)

    mu: Share = hyper(
        0.9,
        "mu, share of the old model in the last round; "
        "it grows as mu t / T (0.9 in the authors' code)",
    )
    lam: Share = hyper(
        0.1,
        "lambda, weight of closeness, 1 - lambda that of the task; "
        "0.1, 0.05 in the authors' train_dir.py",
    )
    near: Literal["mmd", "relative", "distil"] = hyper(
        "mmd",
        "closeness: MMD as in FedCP, or the code's MMD or distillation",
    )
    turns: Count | None = hyper(
        None,
        "rounds a client takes part in; then mu grows as mu n / turns, n those so far (code)",
    )
    inherit: Literal["start", "end"] = hyper(
        "start",
        "when the old model is mixed in: before or after local training",
    )

    def warnings(self) -> list[str]:
        if self.mu == 0:
            return ["mu=0: FedPHP inherits nothing"]
        return []

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def first_keep(self, c: Client, down: Down) -> Keep:
        turns = None
        if self.turns:
            like = next(iter(down.w.values()))
            turns = like.new_zeros(())
        return Keep(down.w, turns)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Train near a teacher, and mix the old model in: before training, or after it."""
        turns = None if keep.turns is None else keep.turns + 1
        if self.inherit == "start":
            mixed = self.mix(c, down.w, keep)
            w = self.train_near(c, mixed, teacher=down.w)
            return Up(w), Keep(w, turns)
        w = self.train_near(c, down.w, teacher=keep.old)
        inherited = self.mix(c, w, keep)
        return Up(w), Keep(inherited, turns)

    def train_near(self, c: Client, start: Params, teacher: Params) -> Params:
        """Train on (1 - lambda) task + lambda gap to the teacher."""

        def loss(w: Params, batch: Batch) -> Tensor:
            features = c.model.base(w, batch.x)
            logits = c.model.head(w, features)
            task = c.task.loss(logits, batch.y)
            if self.lam == 0:
                return task
            gap = self.measure_gap(c, features, logits, teacher, batch.x)
            return (1 - self.lam) * task + self.lam * gap

        return c.train(loss, start)

    def measure_gap(
        self, c: Client, features: Tensor, logits: Tensor, teacher: Params, x: Tensor
    ) -> Tensor:
        """How far features or logits are from the teacher's."""
        theirs = c.model.base(teacher, x)
        if self.near == "distil":
            their_logits = c.model.head(teacher, theirs)
            if not c.task.has_classes:
                return F.mse_loss(logits, their_logits)
            soft = (their_logits / SOFTNESS).softmax(-1)
            return F.cross_entropy(logits, soft)
        if self.near == "mmd":
            return mmd(features, theirs)
        rows = torch.cat([features, theirs]).detach()
        centre = rows.mean(0)
        mean_distance = 2 * rows.var(0).sum()  # squared, between two rows
        scale = (mean_distance + 1e-8).sqrt()
        scaled = (features - centre) / scale
        theirs_scaled = (theirs - centre) / scale
        return mmd(scaled, theirs_scaled, RELATIVE)

    def mix(self, c: Client, new: Params, keep: Keep) -> Params:
        """(1 - mu_t) new + mu_t old, with mu_t = mu t / T.

        With ``turns``, t counts the rounds the client has taken part in before this one.
        """
        progress: float | Tensor = min(1.0, c.t / max(c.rounds, 1))
        if self.turns is not None and keep.turns is not None:
            share = keep.turns / self.turns
            progress = share.clamp(max=1)
        mixed: Params = lerp(new, keep.old, self.mu * progress)
        return mixed

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return Server(ups.mean("w"))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        if self.inherit == "start":
            return self.mix(c, down.w, keep)
        return keep.old

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return up.w

    def shared(self, server: Server) -> Params:
        return server.w
