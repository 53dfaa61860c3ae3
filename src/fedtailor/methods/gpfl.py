"""GPFL: features learn from global category embeddings on one route and from the client's own task on another.

Zhang et al., GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized Federated
Learning, ICCV 2023, Algorithm 1.

Where the authors' code and the paper's text differ the code's form is an option, or the default if the constants were
tuned for it: p_i undivided (with many classes it would vanish), one norm of a batch in Eq. (9), mu as a weight decay.
Unnamed ResNets have ResNet-18's constants, others the CNN's. All clients get one first head, once. ``previous_local``
is the C trained last, zeros before (the authors' idle clients overhear the global one); their BatchNorm is --bn local.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.client import Batch, Client
from fedtailor.core.errors import unknown
from fedtailor.core.tree import Params, average, part, tmap
from fedtailor.maths.subspace import Span
from fedtailor.method import Cohort, Method, New, NonNegative, NoReplies, Positive, Uploads
from fedtailor.models.backbone import Backbone
from fedtailor.training.optim import Groups

DEEP, CNN = (
    (1e-4, 0.0),
    (0.01, 0.1),
)  # lambda and mu in the authors' scripts; the CNN's also for amazon_mlp
CONSTANTS = {
    "resnet18": DEEP,
    "resnet34": DEEP,
    "resnet32": DEEP,
    "fasttext": DEEP,
    "har_cnn": (0.01, 1.0),
}
PARTS = ("pci", "cov", "mlg", "gce")  # what Table 6 leaves out


class Valve(nn.Module):
    """CoV: affine maps of the features, one for each condition; switched off, the features as they are."""

    def __init__(self, k: int, on: bool = True) -> None:
        super().__init__()
        self.two = nn.ModuleList(
            nn.Sequential(nn.Linear(k, k), nn.ReLU(), nn.LayerNorm(k)) for _ in range(2 * on)
        )

    def forward(self, f: Tensor, *conditions: Tensor) -> list[Tensor]:
        if not self.two:
            return [f] * len(conditions)
        maps = zip(
            *(layers(torch.stack(conditions)).unbind() for layers in self.two), strict=True
        )  # Eq. (4)
        return [F.relu((gamma + 1) * f + beta) for gamma, beta in maps]  # Eq. (3)


class Server(NamedTuple):
    """What the server remembers."""

    base: Params  # W^fe, extractor
    valve: Params  # V
    embed: Params  # C, global category embeddings
    head: Params  # every client's first


class First(NamedTuple):
    """What a newcomer is given once."""

    head: Params  # W_i^h at first
    embed: Params  # C, only for condition_source="previous_local"


class Nothing(NamedTuple):
    """What a newcomer answers."""


class Keep(NamedTuple):
    """What stays with the client."""

    head: Params  # W_i^h
    embed: Params  # C_i as trained last, zeros at first; only for condition_source="previous_local"


class Up(NamedTuple):
    """What goes down and, trained, up."""

    base: Params  # W^fe; W_i^fe
    valve: Params  # V; V_i
    embed: Params  # C, kept frozen beside the trained one; C_i


Down = Up


@dataclass(frozen=True)
class GPFL(Method[Server, Down, Keep, Up]):
    """Extractor, valve and embeddings are averaged; heads are private."""

    also_sent = ("embed",)  # C_i
    setup_calls = ("begin",)
    lam: NonNegative | None = (
        None  # lambda, magnitude-level guidance; 0.01, for ResNets and fastText 1e-4 (code)
    )
    mu: NonNegative | None = (
        None  # mu, decay of V and C; 0.1, for har_cnn 1, for ResNets and fastText 0 (code)
    )
    tau: Positive = 1.0  # temperature of the angle-level guidance; Eq. (8) has none
    divide_p: bool = False  # whether p_i is divided by U, as Eq. (7) says and the code does not
    condition_source: Literal["received", "previous_local"] = (
        "received"  # C of g and p_i: Algorithm 1's, or the code's
    )
    mlg_reduction: Literal["batch_fro", "sample_mean"] = (
        "batch_fro"  # norm of a batch (code), or mean norm of Eq. (9)
    )
    without: str = ""  # parts left out as in Table 6: pci, cov, mlg, gce, with commas between; the paper leaves none

    @property
    def out(self) -> set[str]:
        return {p.strip() for p in self.without.split(",")} - {""}  # the parts left out

    def with_defaults_for(self, backbone: Backbone) -> Self:
        for name in sorted(self.out.difference(PARTS)):
            raise unknown("part of GPFL", name, PARTS)
        lam, mu = CONSTANTS.get(backbone.kind, CNN)
        return replace(
            self, lam=lam if self.lam is None else self.lam, mu=mu if self.mu is None else self.mu
        )

    def warnings(self) -> list[str]:
        found = ["GPFL without cov and gce is FedPer"] if {"cov", "gce"} <= self.out else []
        return (
            [*found, "lam=0: GPFL's embeddings guide angles only, as without='mlg'"]
            if self.lam == 0
            else found
        )

    def net(self, backbone: Backbone) -> nn.Module:
        parts = nn.ModuleDict({"base": backbone.base, "head": backbone.head})
        with torch.device(
            "meta"
        ):  # no values here: the run draws them, and drawing here would load torch's compiler
            parts["valve"] = Valve(backbone.features, on="cov" not in self.out)
            if "gce" not in self.out:
                parts["embed"] = nn.Embedding(
                    *(dim := (backbone.classes, backbone.features)), _weight=torch.empty(dim)
                )
        return parts

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        return Server(*(part(w, f) for f in Server._fields))

    def setup(self, server: Server, cohort: Cohort) -> Server:
        with suppress(NoReplies):  # an answer says nothing
            cohort.run(self.begin, First(server.head, self.recall(server.embed)))
        return server

    def begin(self, c: Client, down: First, keep: Keep) -> tuple[Nothing, Keep]:
        return Nothing(), keep  # it has joined

    def first_keep(self, c: Client, down: First | Down) -> Keep:
        first = down.head if isinstance(down, First) else c.fresh("head")
        return Keep(first, self.recall(tmap(torch.zeros_like, down.embed)))

    def recall(self, embed: Params) -> Params:
        return (
            embed if self.condition_source == "previous_local" else {}
        )  # what a client remembers of C

    def send(self, server: Server, k: int) -> Down:
        return Down(server.base, server.valve, server.embed)

    def conditions(
        self, c: Client, down: Down, keep: Keep
    ) -> tuple[Tensor, Tensor]:  # g and p_i, or else constants
        if self.out & {"pci", "gce"}:
            return (one := torch.ones_like(down.valve.get("valve.two.0.0.bias", c.counts))), -one
        embed = (keep.embed or down.embed)["embed.weight"]
        p = c.counts / c.counts.sum().clamp(min=1) @ embed  # Eq. (6), (7)
        return embed.mean(0), p / c.classes if self.divide_p else p  # Eq. (5)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        span = Span(
            *self.conditions(c, down, keep)
        )  # g and p_i stay as they are: V learns in their span alone

        def loss(w: Params, batch: Batch) -> Tensor:  # Eq. (11); mu is the optimiser's
            f, own = c.model.valve(w, c.model.base(w, batch.x), *span.inputs)
            task = F.cross_entropy(c.model.head(w, own), batch.y)  # Eq. (10)
            if "gce" in self.out:
                return task
            cosine = F.normalize(f, dim=-1) @ F.normalize(w["embed.weight"], dim=-1).T
            angle = F.cross_entropy(cosine / self.tau, batch.y)  # Eq. (8)
            gap = f - down.embed["embed.weight"][batch.y]
            length = (
                gap.norm() if self.mlg_reduction == "batch_fro" else gap.norm(dim=-1).mean()
            )  # Eq. (9)
            return (
                task + angle + self.lam * length
                if self.lam and "mlg" not in self.out
                else task + angle
            )

        decayed = replace(c.optimiser, weight_decay=c.optimiser.weight_decay + (self.mu or 0.0))
        opt = Groups({"base": c.optimiser, "head": c.optimiser, "valve": decayed, "embed": decayed})
        w = c.train(
            loss, down.base | span.narrow("valve", down.valve) | down.embed | keep.head, opt=opt
        )
        up = Up(part(w, "base"), span.widen("valve", down.valve, w), part(w, "embed"))
        return up, Keep(part(w, "head"), self.recall(up.embed))

    def merge(self, server: Server, ups: Uploads) -> Server:
        return server._replace(**{f: average(getattr(ups, f), ups.n) for f in Up._fields})

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return down.base | down.valve | keep.head | {"p": self.conditions(c, down, keep)[1]}

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return self.personal(c, down, keep) | up.base | up.valve

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        logits: Tensor = c.model.head(w, *c.model.valve(w, c.model.base(w, x), w["p"]))
        return logits
