"""GPFL: features learn from global category embeddings on one route and from the client's own task on another.

Zhang et al., GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized Federated
Learning, ICCV 2023, Algorithm 1.

Where the authors' code differs from the paper's text its form is an option, or the default if the constants were
tuned for it: p_i is not divided by U (Eq. 7 would let it vanish with many classes), the magnitude-level guidance is
one norm of the whole batch, and mu is a weight decay, i.e. mu/2 times the squared norms in Eq. (11). Backbones that
the authors do not name take the constants of the nearest: ResNets those of ResNet-18, others those of the CNN.

All clients start with one head, which is sent with every download; it never comes back.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.client import Batch, Client
from fedtailor.errors import unknown
from fedtailor.method import Method, New, NonNegative, Positive, Uploads
from fedtailor.models.backbone import Backbone
from fedtailor.optim import Groups
from fedtailor.tree import Params, average, part, tmap

DEEP, CNN = (1e-4, 0.0), (0.01, 0.1)  # lambda and mu in the authors' scripts; the CNN's also for amazon_mlp
CONSTANTS = {"resnet18": DEEP, "resnet34": DEEP, "resnet32": DEEP, "fasttext": DEEP, "har_cnn": (0.01, 1.0)}
PARTS = ("pci", "cov", "mlg", "gce")  # what Table 6 leaves out


class Valve(nn.Module):
    """CoV: an affine map of the features, given a condition."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.gamma, self.beta = (nn.Sequential(nn.Linear(k, k), nn.ReLU(), nn.LayerNorm(k)) for _ in range(2))

    def forward(self, f: Tensor, condition: Tensor) -> Tensor:
        return F.relu((self.gamma(condition) + 1) * f + self.beta(condition))  # Eq. (3), (4)


class Routes(nn.Module):
    """The parts of a client's model; ``local`` says how they meet."""

    def __init__(self, backbone: Backbone, out: set[str]) -> None:
        super().__init__()
        self.base, self.head = backbone.base, backbone.head
        with torch.device("meta"):  # no values here: the run draws them
            self.valve = None if "cov" in out else Valve(backbone.features)
            self.embed = None if "gce" in out else nn.Embedding(backbone.classes, backbone.features)  # C
            self.constant = nn.Embedding(2, backbone.features) if out & {"pci", "gce"} else None  # for g and p_i


class Server(NamedTuple):
    """What the server remembers, and sends."""

    base: Params  # W^fe, extractor
    valve: Params  # V
    embed: Params  # C, global category embeddings
    fixed: Params  # every client's first head; for ablations, constant conditions


Down = Server


class Keep(NamedTuple):
    """What never leaves the client."""

    head: Params  # W_i^h
    embed: Params  # C_i as trained last, zeros at first; only for condition_source="previous_local"


class Up(NamedTuple):
    """What goes up."""

    base: Params  # W_i^fe
    valve: Params  # V_i
    embed: Params  # C_i


@dataclass(frozen=True)
class GPFL(Method[Server, Down, Keep, Up]):
    """Extractor, valve and embeddings are averaged; heads are private."""

    lam: NonNegative | None = None  # lambda, magnitude-level guidance; 0.01, for ResNets and fastText 1e-4 (code)
    mu: NonNegative | None = None  # mu, decay of V and C; 0.1, for har_cnn 1, for ResNets and fastText 0 (code)
    tau: Positive = 1.0  # temperature of the angle-level guidance; Eq. (8) has none
    divide_p: bool = False  # whether p_i is divided by U, as Eq. (7) says and the code does not
    condition_source: Literal["received", "previous_local"] = "received"  # C of g and p_i: Algorithm 1's, or the code's
    mlg_reduction: Literal["batch_fro", "sample_mean"] = "batch_fro"  # norm of a batch (code), or mean norm of Eq. (9)
    without: str = ""  # parts left out as in Table 6: pci, cov, mlg, gce, with commas between; the paper leaves none

    @property
    def out(self) -> set[str]:
        """The parts left out."""
        return {p.strip() for p in self.without.split(",")} - {""}

    def resolve(self, backbone: Backbone) -> Self:
        for name in sorted(self.out.difference(PARTS)):
            raise unknown("part of GPFL", name, PARTS)
        lam, mu = CONSTANTS.get(backbone.kind, CNN)
        return replace(self, lam=lam if self.lam is None else self.lam, mu=mu if self.mu is None else self.mu)

    def doubts(self) -> list[str]:
        odd = {
            "lam=0: GPFL's embeddings guide angles only, as without='mlg'": self.lam == 0,
            "without='cov,gce': what is left of GPFL is FedPer": {"cov", "gce"} <= self.out,
        }
        return [line for line, applies in odd.items() if applies]

    def net(self, backbone: Backbone) -> nn.Module:
        return Routes(backbone, self.out)

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        return Server(part(w, "base"), part(w, "valve"), part(w, "embed"), part(w, "head", "constant"))

    def send(self, server: Server, k: int) -> Down:
        return server

    def join(self, c: Client, down: Down) -> Keep:
        return Keep(part(down.fixed, "head"), self.recall(tmap(torch.zeros_like, down.embed)))

    def recall(self, embed: Params) -> Params:
        """What the client remembers of its embeddings."""
        return embed if self.condition_source == "previous_local" else {}

    def conditions(self, c: Client, down: Down, keep: Keep) -> tuple[Tensor, Tensor]:
        """g and p_i."""
        if "constant.weight" in down.fixed:
            return down.fixed["constant.weight"][0], down.fixed["constant.weight"][1]
        embed = (keep.embed or down.embed)["embed.weight"]
        p = c.counts / c.counts.sum().clamp(min=1) @ embed  # Eq. (6), (7)
        return embed.mean(0), p / c.classes if self.divide_p else p  # Eq. (5)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        g, p = self.conditions(c, down, keep)
        lam = 0.0 if "mlg" in self.out else self.lam

        def loss(w: Params, batch: Batch) -> Tensor:  # Eq. (11); mu is the optimiser's
            f = c.model.base(w, batch.x)
            total = F.cross_entropy(c.model.head(w, self.route(c, w, f, p)), batch.y)  # Eq. (10)
            if "gce" in self.out:
                return total
            f = self.route(c, w, f, g)
            cosine = F.normalize(f, dim=-1) @ F.normalize(w["embed.weight"], dim=-1).T
            total = total + F.cross_entropy(cosine / self.tau, batch.y)  # Eq. (8)
            gap = f - down.embed["embed.weight"][batch.y]
            length = gap.norm() if self.mlg_reduction == "batch_fro" else gap.norm(dim=-1).mean()
            return total + lam * length if lam else total  # Eq. (9)

        decayed = replace(c.sgd, weight_decay=c.sgd.weight_decay + (self.mu or 0.0))
        opt = Groups({"base": c.sgd, "head": c.sgd, "valve": decayed, "embed": decayed})
        w = c.train(loss, down.base | down.valve | down.embed | keep.head, opt=opt)
        up = Up(part(w, "base"), part(w, "valve"), part(w, "embed"))
        return up, Keep(part(w, "head"), self.recall(up.embed))

    def route(self, c: Client, w: Params, f: Tensor, condition: Tensor) -> Tensor:
        """f^G or f^P; f itself without CoV."""
        out: Tensor = f if "cov" in self.out else c.model.valve(w, f, condition)
        return out

    def merge(self, server: Server, ups: Uploads) -> Server:
        base, valve, embed = (average(x, ups.n) for x in (ups.base, ups.valve, ups.embed))
        return Server(base, valve, embed, server.fixed)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return down.base | down.valve | keep.head | {"p": self.conditions(c, down, keep)[1]}

    def after(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return self.personal(c, down, keep) | up.base | up.valve

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        logits: Tensor = c.model.head(w, self.route(c, w, c.model.base(w, x), w["p"]))
        return logits
