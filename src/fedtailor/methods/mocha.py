"""MOCHA: every client has a linear model of its own, and the server learns how the clients' models are related.

Smith et al., Federated Multi-Task Learning, NeurIPS 2017, Algorithm 1.

min sum_t 1/n_t sum_i hinge(y_i w_t x_i) + lambda/2 tr W Omega W', with means over a client's examples as in the
authors' code. Many classes are told apart one against the rest, with one Omega for all; a constant input stands for the
bias. A client keeps a dual variable for every example and class and sends v_t, from which the server makes W with the
Omega it has. The authors' code goes on from the old W when Omega has changed, though no dual variables belong to it
then: see ``carry``.

One round is one step towards W: whoever takes part changes its duals. Omega is found anew every so many rounds, for
all clients heard of. The others are taken as unrelated to anybody, and predict by the mean of all models. A client
whose reply got lost goes on from those duals that the server knows of.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fedtailor.client import Client
from fedtailor.core.errors import Unsupported
from fedtailor.core.tensors import onehot
from fedtailor.core.tree import Params
from fedtailor.maths.sdca import bound_together, climb, combine, relate, sum_up
from fedtailor.method import Cohort, Count, Doc, Method, New, Positive, Uploads, hyper, one_by_one
from fedtailor.models.backbone import Backbone


class Server(NamedTuple):
    """What the server remembers."""

    zero: Annotated[Params, Doc("the model before anything is known")]
    clients: Annotated[int, Doc("m")]
    heard: Annotated[dict[int, int], Doc("by client, the round of its last reply")]
    v: Annotated[Tensor, Doc("v_t of the clients heard of, in the order of their numbers")]
    sigma: Annotated[Tensor, Doc("Omega^-1, how they are related")]
    t: Annotated[int, Doc("this round")]
    steps: Annotated[int, Doc("rounds with replies so far")]
    rest: Annotated[
        Tensor | None,
        Doc("W - V Sigma / lambda, what is left of former Omegas where W is carried on"),
    ]


class Down(NamedTuple):
    """What goes down."""

    w: Annotated[Params, Doc("w_t, the client's model")]
    heard: Annotated[
        int,
        Doc(
            "the round of its last reply that came through; 0: none did, and w is the mean of all models"
        ),
    ]
    pull: Annotated[float, Doc("Sigma_tt / lambda: by how much a change of v_t moves the model")]
    rho: Annotated[float, Doc("by how much the changes of all clients together may exceed that")]


class Keep(NamedTuple):
    """What never leaves the client."""

    old: Annotated[Tensor, Doc("alpha_t before the last round it took part in, one row an example")]
    new: Annotated[Tensor, Doc("and after it")]
    t: Annotated[int, Doc("that round")]


class Up(NamedTuple):
    """What goes up."""

    v: Annotated[Tensor, Doc("v_t with the new duals")]


@dataclass(frozen=True)
class Mocha(Method[Server, Down, Keep, Up]):
    """Linear support vector machines that help each other as far as they are alike."""

    test_backbone: ClassVar[str] = "linear"

    lam: Positive = hyper(
        1.0, "lambda, weight of the regulariser; tuned in the paper, and 1 is best in that of pFedC"
    )
    fraction: Positive = hyper(
        0.5, "steps of coordinate ascent in an epoch, per example; authors' code"
    )
    every: Count = hyper(
        10,
        "rounds between updates of Omega; 100 (of 1000) in the code, but a run of 50 rounds needs some",
    )
    carry: bool = hyper(
        False,
        "whether W stays as it is when Omega changes (authors' code), or is made anew from the duals",
    )

    def net(self, backbone: Backbone) -> nn.Module:
        if not isinstance(backbone.head, nn.Linear) or list(backbone.base.parameters()):
            raise Unsupported("MOCHA trains linear models only; use --model linear")
        return backbone

    def init(self, new: New, clients: int) -> Server:
        zero = {k: torch.zeros_like(x) for k, x in new(0).items()}
        none = pack(zero).new_zeros(0, *pack(zero).shape)
        sigma = torch.zeros(0, 0, dtype=torch.float64)
        return Server(zero, clients, {}, none, sigma, 0, 0, none if self.carry else None)

    def send(self, server: Server, k: int) -> Down:
        ids, alone = sorted(server.heard), 1 / server.clients
        if not ids:
            return Down(server.zero, 0, alone / self.lam, 1.0)
        row = server.sigma[ids.index(k)] if k in ids else server.sigma.mean(0)
        w = combine(row, server.v, self.lam)
        if server.rest is not None:
            w = w + (server.rest[ids.index(k)] if k in ids else server.rest.mean(0))
        pull = float(row[ids.index(k)]) if k in ids else alone
        rho = bound_together(server.sigma)
        return Down(unpack(w, server.zero), server.heard.get(k, 0), pull / self.lam, rho)

    def first_keep(self, c: Client, down: Down) -> Keep:
        alpha = torch.zeros(c.y.shape[0], c.classes, device=c.y.device)
        return Keep(alpha, alpha, 0)

    @one_by_one
    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        x, y = list_inputs(c, down.w), 2 * onehot(c.y, c.classes) - 1
        alpha = keep.new if keep.t == down.heard else keep.old
        passes = self.fraction * c.plan.epochs
        orders = [c.rng.fold(i).permutation(len(x)) for i in range(math.ceil(passes))]
        order = torch.cat(orders)[: max(1, round(passes * len(x)))]
        new = climb(x, y, alpha, self.own(down), down.rho * down.pull, order)
        return Up(sum_up(new, x)), Keep(alpha, new, c.t)

    def own(self, down: Down) -> Tensor:
        """The model that belongs to a client's duals."""
        return pack(down.w) if down.heard else torch.zeros_like(pack(down.w))

    def expected_upload(self, down: Down, t: int) -> dict[str, Tensor]:
        return {"v": torch.zeros_like(pack(down.w))}

    def round(self, server: Server, cohort: Cohort) -> Server:
        if (
            server.steps and server.steps % self.every == 0
        ):  # now, so that nobody sees models that do not fit it yet
            w = combine(server.sigma, server.v, self.lam)
            w = w if server.rest is None else w + server.rest
            known = len(server.heard) / max(
                server.clients, len(server.heard)
            )  # tr Sigma is 1 with the others
            sigma = relate(w).cpu() * known
            rest = w - combine(sigma, server.v, self.lam) if self.carry else None
            server = server._replace(sigma=sigma, rest=rest)
        return super().round(server._replace(t=cohort.t), cohort)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        heard = server.heard | dict.fromkeys(ups.clients, server.t)
        ids = sorted(heard)
        known = torch.tensor([ids.index(k) for k in sorted(server.heard)], dtype=torch.int64)
        now = torch.tensor([ids.index(k) for k in ups.clients])
        v = server.v.new_zeros(len(ids), *server.v.shape[1:])
        v[known], v[now] = server.v, torch.stack(ups.v)
        rest = None
        if server.rest is not None:
            rest = torch.zeros_like(v)
            rest[known] = server.rest
        sigma = torch.eye(len(ids), dtype=torch.float64) / server.clients
        sigma[known[:, None], known] = server.sigma
        return server._replace(heard=heard, v=v, sigma=sigma, steps=server.steps + 1, rest=rest)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return down.w

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        change = up.v - sum_up(keep.old, list_inputs(c, down.w))
        return unpack(self.own(down) + down.pull * change, down.w)

    def closing_remarks(self, server: Server) -> list[str]:
        if server.steps > self.every:
            return []
        return [
            f"MOCHA never updated Omega, so that clients learned alone: it does so after {self.every} rounds, "
            f"and there were {server.steps}; set every to less"
        ]


def list_inputs(c: Client, w: Params) -> Tensor:
    """The client's examples, one a row, with a constant at the end if the model has a bias."""
    x: Tensor = c.model.base(w, c.x).flatten(1)
    return torch.cat([x, x.new_ones(len(x), 1)], 1) if len(w) > 1 else x


def pack(w: Params) -> Tensor:
    """A linear layer as a matrix, its bias as the last column."""
    return torch.cat([x.reshape(len(x), -1) for x in w.values()], 1)


def unpack(matrix: Tensor, like: Params) -> Params:
    """The matrix as a linear layer again."""
    parts = torch.split(matrix, [x[0].numel() for x in like.values()], 1)
    return {k: x.reshape(old.shape) for (k, old), x in zip(like.items(), parts, strict=True)}
