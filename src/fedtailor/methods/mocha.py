"""MOCHA: every client has a linear model of its own, and the server learns how the clients' models are related.

Smith et al., Federated Multi-Task Learning, NeurIPS 2017, Algorithm 1.

min sum_t 1/n_t sum_i hinge(y_i w_t x_i) + lambda/2 tr W Omega W', with means over a client's examples as in the
authors' code. Many classes are told apart one against the rest, with one Omega for all of them; a constant input stands
for the bias. A client keeps one dual variable an example and class, and sends v_t, from which the server makes W for
the Omega it has: the authors' code goes on with the old W when Omega changes, which no dual variables belong to.

One round is one step of W; only clients that take part change their duals. Omega is found anew every so many rounds,
for the clients heard of; of the others nothing is known but that they are unrelated, and until a client is heard of,
its model is the mean of all. A client whose reply got lost goes on from the duals that the server knows of.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fedtailor.client import Client, onehot
from fedtailor.errors import Unsupported
from fedtailor.method import Count, Method, New, Positive, Uploads, one_by_one
from fedtailor.models.backbone import Backbone
from fedtailor.sdca import bound_together, climb, relate, sum_up
from fedtailor.tree import Params


class Server(NamedTuple):
    """What the server remembers."""

    clients: int  # m, how many there are
    zero: Params  # the model before anything is known
    v: dict[int, Tensor]  # v_t of every client heard of, (classes, inputs)
    heard: dict[int, int]  # the round of its last reply
    sigma: Tensor  # Omega^-1 of the clients heard of, in the order of their numbers
    rounds: int  # rounds with replies so far
    updates: int  # how often Omega has been found


class Down(NamedTuple):
    """What goes down."""

    w: Params  # w_t, the client's model; the mean of all for a client not heard of
    heard: int  # the round of its last reply that came through; 0 for none
    pull: float  # Sigma_tt / lambda, how v_t moves its model
    rho: float  # how much more the clients' steps weigh together


class Keep(NamedTuple):
    """What never leaves the client."""

    old: Tensor  # alpha_t before the last round it took part in, (examples, classes)
    new: Tensor  # and after it
    t: int  # that round


class Up(NamedTuple):
    """What goes up."""

    v: Tensor  # v_t, after the steps of this round


@dataclass(frozen=True)
class Mocha(Method[Server, Down, Keep, Up]):
    """Linear support vector machines that help each other as far as they are alike."""

    suits: ClassVar[str] = "linear"

    lam: Positive = 1.0  # lambda, weight of the regulariser; tuned in the paper, 1 was best in that of pFedC
    fraction: Positive = 0.5  # coordinate steps an epoch, as a share of the client's examples; authors' code
    every: Count = 10  # rounds between updates of Omega; authors' code has 100, of rounds that cost less

    def net(self, backbone: Backbone) -> nn.Module:
        if not isinstance(backbone.head, nn.Linear) or list(backbone.base.parameters()):
            raise Unsupported("MOCHA trains linear models only: take --model linear")
        return backbone

    def init(self, new: New, clients: int) -> Server:
        zero = {k: torch.zeros_like(x) for k, x in new(0).items()}
        return Server(clients, zero, {}, {}, torch.zeros(0, 0, dtype=torch.float64), 0, 0)

    def send(self, server: Server, k: int) -> Down:
        w, rho = self.models(server), bound_together(server.sigma)
        if k not in server.v:
            mean = w.mean(0) if len(w) else join_bias(server.zero)
            return Down(split_bias(mean, server.zero), 0, 1 / server.clients / self.lam, rho)
        i = sorted(server.v).index(k)
        pull = float(server.sigma[i, i]) / self.lam
        return Down(split_bias(w[i], server.zero), server.heard[k], pull, rho)

    def models(self, server: Server) -> Tensor:
        """W = V Sigma / lambda, a row a client."""
        v = [server.v[k] for k in sorted(server.v)]
        return torch.einsum("ts,scd->tcd", server.sigma.to(v[0]), torch.stack(v)) / self.lam if v else torch.zeros(0)

    def join(self, c: Client, down: Down) -> Keep:
        alpha = torch.zeros(c.y.shape[0], c.classes, device=c.y.device)
        return Keep(alpha, alpha, 0)
