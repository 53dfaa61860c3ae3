"""FedAMP: every client gets a cloud model of its own, a mix that attends to similar clients.

Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021, Algorithm 1.

``attention=cosine`` is the paper's HeurFedAMP, meant for deep networks, where distances say little
and exp(-x / sigma) soon vanishes; ``relative`` measures distances by their median instead, whatever
the size of the network. Where the shares of the other clients would add up to more than 1, and
xi_kk be negative, they are scaled down to 1 and xi_kk is 0. A client trains from its cloud model,
the point that the proximal term holds it to; with ``start=own`` it trains from its last model.
Attention does not depend on BatchNorm statistics; they are mixed like everything else.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedtailor.client import Client
from fedtailor.core.tree import Params, Tree, average, learned
from fedtailor.method import (
    Doc,
    Method,
    New,
    NonNegative,
    Positive,
    Share,
    Uploads,
    hyper,
)
from fedtailor.models.backbone import Backbone
from fedtailor.training.optim import pull

SIGMA = {"distance": 0.1, "cosine": 25.0}
# of a cloud model: with less from all others together a client is on its own
NOTHING = 1e-3
TINY = 1e-300  # keeps a divisor from being 0


class Server(NamedTuple):
    """What the server remembers."""

    first: Annotated[Params, Doc("what a client begins with")]
    w: Annotated[
        dict[int, Params], Doc("the last model of every client that has replied")
    ]
    xi: Annotated[
        Tensor,
        Doc(
            "shares of the models (columns) in the cloud models (rows), in the order of clients"
        ),
    ]


class Down(NamedTuple):
    """What a client is sent."""

    u: Annotated[Params, Doc("u_k, this client's cloud model")]


class Keep(NamedTuple):
    """What a client remembers."""

    w: Annotated[Params, Doc("w_k, its personal model")]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[Params, Doc("w_k, the whole personal model")]


@dataclass(frozen=True)
class FedAMP(Method[Server, Down, Keep, Up]):
    """The server knows every personal model and sends each client a mix of similar ones."""

    also_sent: ClassVar[tuple[str, ...]] = ("w",)

    lam: NonNegative = hyper(
        1.0,
        "lambda: the pull towards the cloud model is lambda / alpha; 1 (like alpha)",
    )
    alpha: Positive = hyper(
        1000.0,
        "alpha_k, step of the server; 1000 (scripts of the comparisons in FedCP and GPFL)",
    )
    sigma: Positive | None = hyper(
        None,
        "of A(x) = 1 - exp(-x / sigma): 0.1 (like alpha); of exp(sigma cos): 25 (our choice)",
    )
    attention: Literal["distance", "cosine"] = hyper(
        "distance",
        "FedAMP or HeurFedAMP",
    )
    relative: bool = hyper(
        False,
        "sigma counts in medians of the distances between models; absolute (Eq. 4)",
    )
    own: Share | None = hyper(
        None,
        "xi_kk of HeurFedAMP; 1 / number of clients (our choice: the paper tunes it)",
    )
    start: Literal["cloud", "own"] = hyper(
        "cloud",
        "what a client trains from: u_k or its own w_k",
    )

    def with_defaults_for(self, backbone: Backbone) -> Self:
        if self.sigma:
            return self
        return replace(self, sigma=SIGMA[self.attention])

    def warnings(self) -> list[str]:
        if self.lam == 0 and self.start == "own":
            return [
                "lam=0 and start=own: no client of FedAMP ever hears of another, it is Local"
            ]
        return []

    def init(self, new: New, clients: int) -> Server:
        return Server(
            first=new(0),
            w={},
            xi=torch.zeros(0, 0, dtype=torch.float64),
        )

    def send(self, server: Server, k: int) -> Down:
        """The client's cloud model, u_k = sum_j xi_kj w_j."""
        if k not in server.w:
            return Down(server.first)
        clients = sorted(server.w)
        row = server.xi[clients.index(k)].tolist()
        models = []
        shares = []
        for j, share in zip(clients, row, strict=True):
            if share > 0:
                models.append(server.w[j])
                shares.append(share)
        return Down(average(models, shares))

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(down.u)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Train on Eq. (3): F_k(w) + lambda / (2 alpha) ||w - u_k||^2."""
        strength = self.lam / self.alpha
        pulled = pull(c.optimiser, down.u, strength)
        start = down.u if self.start == "cloud" else keep.w
        w = c.train(c.loss, start, opt=pulled)
        return Up(w), Keep(w)

    def expected_upload(self, down: Tree, t: int) -> dict[str, Tree]:
        return {"w": down.u}

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        """Attention between the newest models of all clients."""
        new = {k: up.w for k, up in ups.by_client().items()}
        w = server.w | new
        models = [w[k] for k in sorted(w)]
        return Server(
            first=server.first,
            w=w,
            xi=self.attend(models),
        )

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return keep.w

    def closing_remarks(self, server: Server) -> list[str]:
        if len(server.w) < 2:
            return []
        own = server.xi.diagonal()
        of_others = server.xi - torch.diag(own)
        most = float(of_others.sum(1).max())
        if most >= NOTHING:
            return []
        return [
            "FedAMP's clients attend to nobody but themselves: distances are far above sigma; "
            "try attention=cosine"
        ]

    def attend(self, models: list[Params]) -> Tensor:
        """xi, a row for every model's cloud model; rows add up to 1."""
        if self.attention == "distance":
            return add_own_share(self.attend_by_distance(models))
        return add_own_share(self.attend_by_cosine(models))

    def attend_by_distance(self, models: list[Params]) -> Tensor:
        """Eq. (4): xi_ij = alpha A'(||w_i - w_j||^2) for every two models."""
        sigma = self.sigma or SIGMA["distance"]
        others = find_others(models)
        products = multiply_pairs(models, centred=True)
        square = products.diagonal()
        distance = square[:, None] + square[None] - 2 * products
        distance = distance.clamp(min=0)
        if self.relative and len(models) > 1:
            median = distance[others > 0].median()
            distance = distance / median.clamp(min=TINY)
        xi = others * self.alpha / sigma * torch.exp(-distance / sigma)
        total = xi.sum(1, keepdim=True)
        return xi / total.clamp(min=1)

    def attend_by_cosine(self, models: list[Params]) -> Tensor:
        """HeurFedAMP: xi_ij ~ exp(sigma cos(w_i, w_j)) for every two models."""
        sigma = self.sigma or SIGMA["cosine"]
        own = 1 / len(models) if self.own is None else self.own
        products = multiply_pairs(models, centred=False)
        square = products.diagonal()
        cosine = products / (square[:, None] * square[None]).sqrt()
        xi = find_others(models) * torch.exp(sigma * (cosine - 1))
        total = xi.sum(1, keepdim=True)
        return (1 - own) * xi / total.clamp(min=TINY)


def add_own_share(xi: Tensor) -> Tensor:
    """xi with what is left of every row as the share of a model in its own cloud model."""
    own = 1 - xi.sum(1)
    return xi + torch.diag(own).clamp(min=0)


def find_others(models: list[Params]) -> Tensor:
    """1 for every pair of different models, 0 for a model and itself."""
    return 1 - torch.eye(len(models), dtype=torch.float64)


def multiply_pairs(models: list[Params], *, centred: bool) -> Tensor:
    """Inner products of all pairs of models; about their mean, distances lose no digits in them."""
    n = len(models)
    products = torch.zeros(n, n, dtype=torch.float64)
    for name in learned(models[0]):
        values = [w[name].flatten() for w in models]
        rows = torch.stack(values).double()
        if centred:
            rows = rows - rows.mean(0)
        products += (rows @ rows.T).cpu()
    return products
