"""MOCHA: every client has a linear model of its own, and the server learns how these are related.

Smith et al., Federated Multi-Task Learning, NeurIPS 2017, Algorithm 1.

It minimises sum_t 1/n_t sum_i hinge(y_i w_t x_i) + lambda/2 tr W Omega W', with means over a
client's examples as in the authors' code. Several classes are told apart one against the rest, with
one Omega for all; a constant input stands for the bias. A client keeps a dual variable for every
example and class and sends v_t, from which the server makes W with the Omega it has. The authors'
code continues from the old W when Omega has changed, though no dual variables belong to it then:
see ``carry``.

One round is one step towards W: clients that take part change their duals. Omega is computed anew
every so many rounds, for all clients that have replied. The others are taken as unrelated to any
client, and predict by the mean of all models. A client whose reply was lost continues from the
duals that the server knows of.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fedtailor.client import Client
from fedtailor.core.errors import Unsupported
from fedtailor.core.tensors import onehot
from fedtailor.core.tree import Params, tmap
from fedtailor.maths.sdca import bound_together, climb, combine, relate, sum_up
from fedtailor.method import (
    Cohort,
    Count,
    Doc,
    Method,
    New,
    Positive,
    Uploads,
    hyper,
    one_by_one,
)
from fedtailor.models.backbone import Backbone


class Server(NamedTuple):
    """What the server remembers. Rows are clients that have replied, in the order of their ids."""

    zero: Annotated[Params, Doc("the model before anything is known")]
    clients: Annotated[int, Doc("m")]
    heard: Annotated[dict[int, int], Doc("by client, the round of its last reply")]
    v: Annotated[
        Tensor, Doc("v_t of the clients that have replied, in the order of their ids")
    ]
    sigma: Annotated[Tensor, Doc("Omega^-1, how they are related")]
    t: Annotated[int, Doc("this round")]
    steps: Annotated[int, Doc("rounds with replies so far")]
    rest: Annotated[
        Tensor | None,
        Doc(
            "W - V Sigma / lambda, what is left of former Omegas where W is carried on"
        ),
    ]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[Params, Doc("w_t, the client's model")]
    heard: Annotated[
        int,
        Doc(
            "the round of its last reply that the server received; "
            "0: none, and w is the mean of all models"
        ),
    ]
    pull: Annotated[
        float, Doc("Sigma_tt / lambda: by how much a change of v_t moves the model")
    ]
    rho: Annotated[
        float, Doc("by how much the changes of all clients together may exceed that")
    ]


class Keep(NamedTuple):
    """What a client keeps to itself."""

    old: Annotated[
        Tensor, Doc("alpha_t before the last round it took part in, one row an example")
    ]
    new: Annotated[Tensor, Doc("and after it")]
    t: Annotated[int, Doc("that round")]


class Up(NamedTuple):
    """What a client sends back."""

    v: Annotated[Tensor, Doc("v_t with the new duals")]


@dataclass(frozen=True)
class Mocha(Method[Server, Down, Keep, Up]):
    """Linear support vector machines that help each other as far as they are similar."""

    needs_classes: ClassVar[str] = "it tells one class from the rest"

    test_backbone: ClassVar[str] = "linear"

    lam: Positive = hyper(
        1.0,
        "lambda, weight of the regulariser; tuned in the paper, and 1 is best in that of pFedC",
    )
    fraction: Positive = hyper(
        0.5,
        "steps of coordinate ascent in an epoch, per example; authors' code",
    )
    every: Count = hyper(
        10,
        "rounds between updates of Omega; 100 (of 1000) in the code, but a run of 50 rounds "
        "needs some",
    )
    carry: bool = hyper(
        False,
        "whether W stays as it is when Omega changes (authors' code), or is made anew from the "
        "duals",
    )

    def net(self, backbone: Backbone) -> nn.Module:
        is_linear = isinstance(backbone.head, nn.Linear)
        if not is_linear or list(backbone.base.parameters()):
            raise Unsupported("MOCHA trains linear models only; use --model linear")
        return backbone

    def init(self, new: New, clients: int) -> Server:
        zero = tmap(torch.zeros_like, new(0))
        matrix = pack(zero)
        no_rows = matrix.new_zeros(0, *matrix.shape)
        return Server(
            zero=zero,
            clients=clients,
            heard={},
            v=no_rows,
            sigma=torch.zeros(0, 0, dtype=torch.float64),
            t=0,
            steps=0,
            rest=no_rows if self.carry else None,
        )

    def send(self, server: Server, k: int) -> Down:
        alone = 1 / server.clients  # Sigma_tt of a client that is related to none
        if not server.heard:
            return Down(
                w=server.zero,
                heard=0,
                pull=alone / self.lam,
                rho=1.0,
            )
        i = find_row(server, k)
        row = take_row(server.sigma, i)
        w = combine(row, server.v, self.lam)
        if server.rest is not None:
            w = w + take_row(server.rest, i)
        own = alone if i is None else float(row[i])
        return Down(
            w=unpack(w, server.zero),
            heard=server.heard.get(k, 0),
            pull=own / self.lam,
            rho=bound_together(server.sigma),
        )

    def first_keep(self, c: Client, down: Down) -> Keep:
        examples = len(c.y)
        alpha = torch.zeros(examples, c.classes, device=c.y.device)
        return Keep(
            old=alpha,
            new=alpha,
            t=0,
        )

    @one_by_one
    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Some steps of coordinate ascent on the client's own duals."""
        x = list_inputs(c, down.w)
        y = 2 * onehot(c.y, c.classes) - 1
        alpha = keep.new
        if keep.t != down.heard:  # the reply of that round was lost
            alpha = keep.old
        order = self.draw_order(c, len(x))
        scale = down.rho * down.pull
        new = climb(x, y, alpha, self.own(down), scale, order)
        v = sum_up(new, x)
        kept = Keep(
            old=alpha,
            new=new,
            t=c.t,
        )
        return Up(v), kept

    def draw_order(self, c: Client, n: int) -> Tensor:
        """The examples to take steps at: as many shuffles of all as the epochs ask for."""
        passes = self.fraction * c.plan.epochs
        shuffles = []
        for i in range(math.ceil(passes)):
            rng = c.rng.fold(i)
            shuffles.append(rng.permutation(n))
        steps = max(1, round(passes * n))
        return torch.cat(shuffles)[:steps]

    def own(self, down: Down) -> Tensor:
        """The model that belongs to a client's duals."""
        w = pack(down.w)
        return w if down.heard else torch.zeros_like(w)

    def expected_upload(self, down: Down, t: int) -> dict[str, Tensor]:
        return {"v": torch.zeros_like(pack(down.w))}

    def round(self, server: Server, cohort: Cohort) -> Server:
        # Omega changes before a round, so that no client is evaluated on models that do not fit it
        if server.steps and server.steps % self.every == 0:
            server = self.update_omega(server)
        server = server._replace(t=cohort.t)
        return super().round(server, cohort)

    def update_omega(self, server: Server) -> Server:
        """Relate clients by their models; tr Sigma is 1 with those that have not replied."""
        w = combine(server.sigma, server.v, self.lam)
        if server.rest is not None:
            w = w + server.rest
        known = len(server.heard)
        share = known / max(server.clients, known)
        sigma = relate(w).cpu() * share
        rest = None
        if self.carry:
            rest = w - combine(sigma, server.v, self.lam)
        return server._replace(sigma=sigma, rest=rest)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        """Take over the new v_t; clients that replied for the first time get rows of their own."""
        heard = server.heard | dict.fromkeys(ups.clients, server.t)
        clients = sorted(heard)
        known = find_places(clients, sorted(server.heard))
        senders = find_places(clients, ups.clients)
        matrix = server.v.shape[1:]
        v = server.v.new_zeros(len(clients), *matrix)
        v[known] = server.v
        v[senders] = torch.stack(ups.v)
        rest = None
        if server.rest is not None:
            rest = torch.zeros_like(v)
            rest[known] = server.rest
        unrelated = torch.eye(len(clients), dtype=torch.float64)
        sigma = unrelated / server.clients
        sigma[known[:, None], known] = server.sigma
        return server._replace(
            heard=heard,
            v=v,
            sigma=sigma,
            steps=server.steps + 1,
            rest=rest,
        )

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return down.w

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        """The model with the client's new duals and all others' old ones."""
        x = list_inputs(c, down.w)
        change = up.v - sum_up(keep.old, x)
        w = self.own(down) + down.pull * change
        return unpack(w, down.w)

    def closing_remarks(self, server: Server) -> list[str]:
        if server.steps > self.every:
            return []
        return [
            "MOCHA never updated Omega, so that clients learned alone: "
            f"it does so after {self.every} rounds, and there were {server.steps}; "
            "set every to less"
        ]


def find_row(server: Server, k: int) -> int | None:
    """The row of client k in the server's tensors; None if it has never replied."""
    if k not in server.heard:
        return None
    return sorted(server.heard).index(k)


def find_places(clients: list[int], some: list[int]) -> Tensor:
    """The places of some clients in a list of clients."""
    places = [clients.index(k) for k in some]
    return torch.tensor(places, dtype=torch.int64)


def take_row(matrix: Tensor, i: int | None) -> Tensor:
    """A client's row; the mean of all rows for a client that has none."""
    return matrix.mean(0) if i is None else matrix[i]


def list_inputs(c: Client, w: Params) -> Tensor:
    """The client's examples, one a row, with a constant at the end if the model has a bias."""
    features = c.model.base(w, c.x)
    x: Tensor = features.flatten(1)
    has_bias = len(w) > 1
    if not has_bias:
        return x
    constant = x.new_ones(len(x), 1)
    return torch.cat([x, constant], 1)


def pack(w: Params) -> Tensor:
    """A linear layer as a matrix, its bias as the last column."""
    columns = [x.reshape(len(x), -1) for x in w.values()]
    return torch.cat(columns, 1)


def unpack(matrix: Tensor, like: Params) -> Params:
    """The matrix as a linear layer again."""
    widths = [x[0].numel() for x in like.values()]
    columns = torch.split(matrix, widths, 1)
    w: Params = {}
    for (name, old), x in zip(like.items(), columns, strict=True):
        w[name] = x.reshape(old.shape)
    return w
