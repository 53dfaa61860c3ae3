"""FedAMP: every client gets a cloud model of its own, a mix that attends to clients like it.

Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021, Algorithm 1.

``attention=cosine`` is the paper's HeurFedAMP, meant for deep networks, where distances say little and exp(-x / sigma)
soon vanishes; ``relative`` measures distances by their median instead, whatever the size of the network. Where the
others' shares would add up to more than 1, and xi_kk be negative, they are scaled down to 1 and xi_kk is 0. A client
trains from its cloud model, the point that the proximal term holds it to; ``start=own`` begins with its last model.
Nobody's attention depends on BatchNorm statistics; they are mixed like all else.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedtailor.client import Client
from fedtailor.core.tree import Params, Tree, average, is_statistic
from fedtailor.method import Doc, Method, New, NonNegative, Positive, Share, Uploads, hyper
from fedtailor.models.backbone import Backbone
from fedtailor.training.optim import pull

SIGMA = {"distance": 0.1, "cosine": 25.0}
NOTHING = 1e-3  # of a cloud model: with less from all others together a client is on its own


class Server(NamedTuple):
    """What the server remembers."""

    first: Annotated[Params, Doc("what a client begins with")]
    w: Annotated[dict[int, Params], Doc("the last model of every client heard of")]
    xi: Annotated[
        Tensor,
        Doc(
            "how much of whose model (columns) makes whose cloud model (rows), in order of clients"
        ),
    ]


class Down(NamedTuple):
    """What goes down."""

    u: Annotated[Params, Doc("u_k, this client's cloud model")]


class Keep(NamedTuple):
    """What the client remembers."""

    w: Annotated[Params, Doc("w_k, its personal model")]


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("w_k, the whole personal model")]


@dataclass(frozen=True)
class FedAMP(Method[Server, Down, Keep, Up]):
    """The server knows every personal model and sends each client a mix of those like its own."""

    also_sent: ClassVar[tuple[str, ...]] = ("w",)

    lam: NonNegative = hyper(
        1.0, "lambda: the pull towards the cloud model is lambda / alpha; 1 (like alpha)"
    )
    alpha: Positive = hyper(
        1000.0, "alpha_k, step of the server; 1000 (scripts of the comparisons in FedCP and GPFL)"
    )
    sigma: Positive | None = hyper(
        None, "of A(x) = 1 - exp(-x / sigma): 0.1 (like alpha); of exp(sigma cos): 25 (our choice)"
    )
    attention: Literal["distance", "cosine"] = hyper("distance", "FedAMP or HeurFedAMP")
    relative: bool = hyper(
        False, "sigma counts in medians of the distances between models; absolute (Eq. 4)"
    )
    own: Share | None = hyper(
        None, "xi_kk of HeurFedAMP; 1 / number of clients (our choice: the paper tunes it)"
    )
    start: Literal["cloud", "own"] = hyper("cloud", "what a client trains from: u_k or its own w_k")

    def with_defaults_for(self, backbone: Backbone) -> Self:
        return self if self.sigma else replace(self, sigma=SIGMA[self.attention])

    def warnings(self) -> list[str]:
        alone = self.lam == 0 and self.start == "own"
        return (
            ["lam=0 and start=own: no client of FedAMP ever hears of another, it is Local"]
            if alone
            else []
        )

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0), {}, torch.zeros(0, 0, dtype=torch.float64))

    def send(self, server: Server, k: int) -> Down:
        if k not in server.w:
            return Down(server.first)
        ids = sorted(server.w)
        shares = {j: x for j, x in zip(ids, server.xi[ids.index(k)].tolist(), strict=True) if x > 0}
        return Down(average([server.w[j] for j in shares], list(shares.values())))

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(down.u)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        pulled = pull(
            c.optimiser, down.u, self.lam / self.alpha
        )  # Eq. (3): F_k(w) + lambda / (2 alpha) ||w - u_k||^2
        w = c.train(c.loss, down.u if self.start == "cloud" else keep.w, opt=pulled)
        return Up(w), Keep(w)

    def expected_upload(self, down: Tree, t: int) -> dict[str, Tree]:
        return {"w": down.u}

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        w = server.w | dict(zip(ups.clients, ups.w, strict=True))
        return Server(server.first, w, self.attend([w[k] for k in sorted(w)]))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return keep.w

    def closing_remarks(self, server: Server) -> list[str]:
        told = "FedAMP's clients attend to nobody but themselves: distances are far above sigma; try attention=cosine"
        attention = server.xi - torch.diag(server.xi.diagonal())
        return [told] if len(server.w) > 1 and float(attention.sum(1).max()) < NOTHING else []

    def attend(self, models: list[Params]) -> Tensor:
        """xi, a row for every model's cloud model; rows add up to 1."""
        sigma = self.sigma or SIGMA[self.attention]
        others = 1 - torch.eye(len(models), dtype=torch.float64)
        products = _products(models, centred=self.attention == "distance")
        square = products.diagonal()
        if self.attention == "distance":  # Eq. (4): alpha A'(||w_i - w_j||^2)
            distance = (square[:, None] + square[None] - 2 * products).clamp(min=0)
            if self.relative and len(models) > 1:
                distance = distance / distance[others > 0].median().clamp(min=1e-300)
            xi = others * self.alpha / sigma * torch.exp(-distance / sigma)
            xi = xi / xi.sum(1, keepdim=True).clamp(min=1)
        else:
            cosine = products / (square[:, None] * square[None]).sqrt()
            xi = others * torch.exp(sigma * (cosine - 1))
            own = 1 / len(models) if self.own is None else self.own
            xi = (1 - own) * xi / xi.sum(1, keepdim=True).clamp(min=1e-300)
        return xi + torch.diag(1 - xi.sum(1)).clamp(min=0)


def _products(models: list[Params], *, centred: bool) -> Tensor:
    """Inner products of all pairs of models; about their mean, distances lose no digits in them."""
    out = torch.zeros(len(models), len(models), dtype=torch.float64)
    for k in models[0]:
        if not is_statistic(k):
            x = torch.stack([w[k].flatten() for w in models]).double()
            x = x - x.mean(0) if centred else x
            out += (x @ x.T).cpu()
    return out
