"""FedPHP: what a client learned in earlier rounds is inherited, the more the longer training lasts.

Li et al., FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021, Algorithm 1.

Two readings. ``inherit=start``, which FedCP and GPFL compare with: a client starts from a mix of the global model and
its own old one, trained while its features stay near the global model's; the mix is the personal model.
``inherit=end``, the authors' code: it starts from the global model, trained while its features stay near those of an
inherited model, into which the trained one is then mixed; the inherited model is the personal one. PFLlib evaluates the
trained one instead, which is the view ``after``.

Closeness is the squared MMD with the fixed bandwidths of FedCP's code. The authors' code takes bandwidths relative to
the mean distance in a batch, or distils: see ``near``. mu grows with the round, in their code with the number of rounds
the client has taken part in: see ``turns``.
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
RELATIVE = (
    0.125,
    0.25,
    0.5,
    1.0,
    2.0,
)  # bandwidths by mean squared distance, halved for mmd doubles them; code


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("global model")]


class Down(NamedTuple):
    """What goes down."""

    w: Params


class Keep(NamedTuple):
    """What the client remembers."""

    old: Annotated[Params, Doc("its last model; with inherit=end the inherited one")]
    turns: Annotated[Tensor | None, Doc("how often it has taken part, where mu goes by that")]


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("locally trained model")]


@dataclass(frozen=True)
class FedPHP(Method[Server, Down, Keep, Up]):
    """The global model is FedAvg's of models that remember."""

    depends_on_rounds: ClassVar[bool] = True
    also_sent: ClassVar[tuple[str, ...]] = ("old",)  # with inherit=start it is what went up last

    mu: Share = hyper(
        0.9,
        "mu, share of the old model in the last round; it grows as mu t / T (0.9 in the authors' code)",
    )
    lam: Share = hyper(
        0.1,
        "lambda, weight of closeness, 1 - lambda that of the task; 0.1, 0.05 in the authors' train_dir.py",
    )
    near: Literal["mmd", "relative", "distil"] = hyper(
        "mmd", "closeness: MMD as in FedCP, or the code's MMD or distillation"
    )
    turns: Count | None = hyper(
        None, "rounds a client takes part in; then mu grows as mu n / turns, n those so far (code)"
    )
    inherit: Literal["start", "end"] = hyper(
        "start", "when the old model is mixed in: before or after local training"
    )

    def warnings(self) -> list[str]:
        return ["mu=0: FedPHP inherits nothing"] if self.mu == 0 else []

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(down.w, next(iter(down.w.values())).new_zeros(()) if self.turns else None)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        early = self.inherit == "start"
        teacher = down.w if early else keep.old

        def loss(w: Params, batch: Batch) -> Tensor:
            h = c.model.base(w, batch.x)
            logits = c.model.head(w, h)
            task = c.task.loss(logits, batch.y)
            if self.lam == 0:
                return task
            return (1 - self.lam) * task + self.lam * self.gap(c, h, logits, teacher, batch.x)

        w = c.train(loss, self.mix(c, down.w, keep) if early else down.w)
        return Up(w), Keep(
            w if early else self.mix(c, w, keep), None if keep.turns is None else keep.turns + 1
        )

    def gap(self, c: Client, h: Tensor, logits: Tensor, teacher: Params, x: Tensor) -> Tensor:
        """How far features or logits are from the teacher's."""
        theirs = c.model.base(teacher, x)
        if self.near == "distil":
            return F.cross_entropy(logits, (c.model.head(teacher, theirs) / SOFTNESS).softmax(-1))
        if self.near == "mmd":
            return mmd(h, theirs)
        rows = torch.cat([h, theirs]).detach()
        centre, scale = (
            rows.mean(0),
            (2 * rows.var(0).sum() + 1e-8).sqrt(),
        )  # twice the variance is the mean distance
        return mmd((h - centre) / scale, (theirs - centre) / scale, RELATIVE)

    def mix(self, c: Client, new: Params, keep: Keep) -> Params:
        """(1 - mu_t) new + mu_t old, mu_t = mu t / T; or t counts the client's own rounds before this one."""
        if self.turns is None or keep.turns is None:
            mixed: Params = lerp(new, keep.old, self.mu * min(1.0, c.t / max(c.rounds, 1)))
        else:
            mixed = lerp(new, keep.old, self.mu * (keep.turns / self.turns).clamp(max=1))
        return mixed

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return Server(ups.mean("w"))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return self.mix(c, down.w, keep) if self.inherit == "start" else keep.old

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return up.w

    def shared(self, server: Server) -> Params:
        return server.w
