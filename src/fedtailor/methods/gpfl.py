"""GPFL: features learn from global category embeddings on one route, from own data on another.

Zhang et al., GPFL: Simultaneously Learning Global and Personalized Feature Information for
Personalized Federated Learning, ICCV 2023, Algorithm 1.

Where the paper's text and the authors' code differ, the code's form is an option, or the default
if the constants were tuned for it:

* p_i is not divided by the number of classes (Eq. 7): with many classes it would vanish.
* Eq. (9) is one norm of a whole batch.
* mu ||V|| + mu ||C|| in Eq. (11) is a weight decay of V and C. ``penalty=norm`` is the printed
  form, whose pull does not grow with V and C.
* Eq. (4) writes CoV(f_i, .). As in the code, gamma and beta depend on the condition alone.
* ``condition_source="previous_local"`` takes g and p_i from the C that the client trained last,
  zeros before its first training. (In the authors' code, clients that did not train take the
  previous global C.)
* Without ``pci`` (Table 6) the two constant conditions are vectors of 1 and of -1.

Sec. 3.3 counts on alpha_i, the shares of the classes in a client's data, staying private. They do
not: within a round V_i changes on the span of g and p_i only, so that the server, which knows C,
computes p_i = alpha_i C and with it alpha_i from one upload, exactly if the client lacks a class
(``fedtailor.audit.algebra.recover_class_shares``; a test does it).

ResNets that the paper does not name have the constants of ResNet-18, other networks those of the
CNN. All clients are given the same first head, once. The authors' code keeps BatchNorm statistics
local, which is ``--bn local`` here.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, part, tmap
from fedtailor.maths.subspace import train_in_span
from fedtailor.method import (
    Doc,
    Method,
    New,
    NonNegative,
    Positive,
    Uploads,
    hyper,
)
from fedtailor.models.backbone import Backbone
from fedtailor.training.optim import Groups, Optimiser, add_weight_decay

Ablation = Literal["pci", "cov", "mlg", "gce"]  # what Table 6 leaves out


class Constants(NamedTuple):
    """lambda and mu of a network, as in the authors' scripts."""

    lam: float
    mu: float


CNN = Constants(lam=0.01, mu=0.1)  # also for amazon_mlp
DEEP = Constants(lam=1e-4, mu=0.0)
CONSTANTS = {
    "resnet18": DEEP,
    "resnet34": DEEP,
    "resnet32": DEEP,
    "fasttext": DEEP,
    "har_cnn": Constants(lam=0.01, mu=1.0),
}


# ---------------------------------------------------------------- the network
class Valve(nn.Module):
    """The conditional valve, CoV: an affine map of the features for each condition."""

    def __init__(self, features: int, on: bool = True) -> None:
        super().__init__()
        self.two = nn.ModuleList()  # CoV_gamma and CoV_beta; none if switched off
        if on:
            self.two.append(make_submodule(features))
            self.two.append(make_submodule(features))

    def forward(self, f: Tensor, *conditions: Tensor) -> list[Tensor]:
        """The features under each condition; unchanged if the valve is switched off."""
        if not self.two:
            return [f] * len(conditions)
        rows = torch.stack(conditions)
        gammas = self.two[0](rows)  # Eq. (4)
        betas = self.two[1](rows)
        transformed = []
        for gamma, beta in zip(gammas.unbind(), betas.unbind(), strict=True):
            transformed.append(F.relu((gamma + 1) * f + beta))  # Eq. (3)
        return transformed


def make_submodule(features: int) -> nn.Module:
    """CoV_gamma or CoV_beta."""
    return nn.Sequential(
        nn.Linear(features, features),
        nn.ReLU(),
        nn.LayerNorm(features),
    )


def make_embedding(classes: int, features: int) -> nn.Embedding:
    """The global category embeddings, GCE, without values: drawing them would load a compiler."""
    return nn.Embedding(classes, features, _weight=torch.empty(classes, features))


# ---------------------------------------------------------------- states and messages
class Server(NamedTuple):
    """What the server remembers."""

    base: Annotated[Params, Doc("W^fe, extractor")]
    valve: Annotated[Params, Doc("V")]
    embed: Annotated[Params, Doc("C, global category embeddings")]
    head: Annotated[Params, Doc("every client's first")]


class Keep(NamedTuple):
    """What stays with the client."""

    head: Annotated[Params, Doc("W_i^h")]
    embed: Annotated[
        Params,
        Doc(
            'C_i as trained last, zeros at first; only for condition_source="previous_local"'
        ),
    ]
    earlier: Annotated[
        Params,
        Doc('C_i before that; only for condition_source="previous_local"'),
    ]


class Up(NamedTuple):
    """What goes down and, trained, up."""

    base: Annotated[Params, Doc("W^fe; W_i^fe")]
    valve: Annotated[
        Params,
        Doc("V; V_i, from which the server can compute alpha_i, the shares of classes"),
    ]
    embed: Annotated[Params, Doc("C, kept frozen beside the trained one; C_i")]


Down = Up


class Conditions(NamedTuple):
    """What the valve is opened by."""

    g: Tensor  # on the route of global guidance
    p: Tensor  # p_i, on the route of the client's own task


# ---------------------------------------------------------------- the method
@dataclass(frozen=True)
class GPFL(Method[Server, Down, Keep, Up]):
    """Extractors, valves and embeddings are averaged; heads are private."""

    reveals: ClassVar[dict[str, str]] = {
        "class shares": "the valve changes on the span of g and p_i, and p_i = alpha_i C",
    }

    also_sent: ClassVar[tuple[str, ...]] = ("embed", "earlier")  # C_i

    lam: NonNegative | None = hyper(
        None,
        "lambda, magnitude-level guidance; 0.01, for ResNets and fastText 1e-4 (code)",
    )
    mu: NonNegative | None = hyper(
        None,
        "mu, decay of V and C; 0.1, for har_cnn 1, for ResNets and fastText 0 (code)",
    )
    tau: Positive = hyper(
        1.0, "temperature of the angle-level guidance; Eq. (8) has none"
    )
    divide_p: bool = hyper(
        False, "whether p_i is divided by U, as Eq. (7) says and the code does not"
    )
    condition_source: Literal["received", "previous_local"] = hyper(
        "received", "C of g and p_i: Algorithm 1's, or the code's"
    )
    mlg_reduction: Literal["batch_fro", "sample_mean"] = hyper(
        "batch_fro", "norm of a batch (code), or mean norm of Eq. (9)"
    )
    penalty: Literal["decay", "norm"] = hyper(
        "decay", "what mu weighs: a decay of V and C (code), or their norms (Eq. 11)"
    )
    without: frozenset[Ablation] = hyper(
        frozenset(),
        "parts left out as in Table 6, separated by commas; the paper leaves none out",
    )

    def with_defaults_for(self, backbone: Backbone) -> Self:
        usual = CONSTANTS.get(backbone.kind, CNN)
        return replace(
            self,
            lam=usual.lam if self.lam is None else self.lam,
            mu=usual.mu if self.mu is None else self.mu,
        )

    def warnings(self) -> list[str]:
        found = []
        if {"cov", "gce"} <= self.without:
            found.append("GPFL without cov and gce is FedPer")
        if self.lam == 0:
            found.append("lam=0: GPFL's embeddings guide angles only, as without='mlg'")
        return found

    def net(self, backbone: Backbone) -> nn.Module:
        parts = nn.ModuleDict()
        parts["base"] = backbone.base
        parts["head"] = backbone.head
        with torch.device("meta"):  # the run draws the first values, not the modules
            parts["valve"] = Valve(backbone.features, on="cov" not in self.without)
            if "gce" not in self.without:
                parts["embed"] = make_embedding(backbone.classes, backbone.features)
        return parts

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        return Server(
            base=part(w, "base"),
            valve=part(w, "valve"),
            embed=part(w, "embed"),
            head=part(w, "head"),
        )

    def given(self, server: Server) -> Params:
        return server.head | self.remember(server.embed)

    def keep_given(self, c: Client, given: Params) -> Keep:
        zeros = tmap(torch.zeros_like, part(given, "embed"))
        return Keep(part(given, "head"), embed=zeros, earlier=zeros)

    def first_keep(self, c: Client, down: Down) -> Keep:
        zeros = self.remember(tmap(torch.zeros_like, down.embed))
        return Keep(c.fresh("head"), embed=zeros, earlier=zeros)

    def remember(self, embed: Params) -> Params:
        """What a client keeps of its embeddings for the next round: nothing in Algorithm 1."""
        return embed if self.condition_source == "previous_local" else {}

    def send(self, server: Server, k: int) -> Down:
        return Down(server.base, server.valve, server.embed)

    def conditions(self, c: Client, down: Down, keep: Keep) -> Conditions:
        """g and p_i, from the client's class counts and embeddings that stay as they are."""
        if self.without & {"pci", "gce"}:
            return self.constant_conditions(c, down)
        embed = keep.embed or down.embed
        embeddings = embed["embed.weight"]
        g = embeddings.mean(0)  # Eq. (5)
        alpha = c.counts / c.counts.sum().clamp(min=1)  # Eq. (6)
        p = alpha @ embeddings  # Eq. (7)
        if self.divide_p:
            p = p / c.classes
        return Conditions(g, p)

    def constant_conditions(self, c: Client, down: Down) -> Conditions:
        """Two different constants, the same at all clients, for ablations."""
        # without a valve nothing reads them, whatever their shape
        like = down.valve.get("valve.two.0.0.bias", c.counts)
        ones = torch.ones_like(like)
        return Conditions(ones, -ones)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        def loss(w: Params, batch: Batch, g: Tensor, p: Tensor) -> Tensor:
            return self.loss(c, down, w, batch, Conditions(g, p))

        start = down.base | down.valve | down.embed | keep.head
        conditions = self.conditions(c, down, keep)
        if self.penalty == "norm":

            def whole_loss(w: Params, batch: Batch) -> Tensor:
                return loss(w, batch, *conditions) + self.norms(w, down)

            w = c.train(whole_loss, start)
        else:
            train = partial(c.train, opt=self.make_optimiser(c))
            # constant during training, so that V learns on their span alone
            w = train_in_span(train, loss, start, "valve", conditions)
        up = Up(
            base=part(w, "base"),
            valve=part(w, "valve"),
            embed=part(w, "embed"),
        )
        embed = self.remember(up.embed)
        return up, Keep(part(w, "head"), embed=embed, earlier=keep.embed)

    def loss(
        self, c: Client, down: Down, w: Params, batch: Batch, conditions: Conditions
    ) -> Tensor:
        """Eq. (11), without what mu weighs."""
        f = c.model.base(w, batch.x)
        f_global, f_personal = c.model.valve(w, f, *conditions)  # Eq. (3), (4)
        logits = c.model.head(w, f_personal)
        task_loss = c.task.loss(logits, batch.y)  # Eq. (10)
        if "gce" in self.without:
            return task_loss
        embeddings = w["embed.weight"]
        angle_loss = self.angle_loss(f_global, embeddings, batch.y)  # Eq. (8)
        if not self.lam or "mlg" in self.without:
            return task_loss + angle_loss
        frozen = down.embed["embed.weight"]
        magnitude_loss = self.magnitude_loss(f_global, frozen, batch.y)  # Eq. (9)
        return task_loss + angle_loss + self.lam * magnitude_loss

    def norms(self, w: Params, down: Down) -> Tensor:
        """mu ||V|| + mu ||C||, not squared."""
        total = torch.zeros(())
        for names in (down.valve, down.embed):
            squares = [w[name].square().sum() for name in names]
            if squares:
                total = total + torch.stack(squares).sum().sqrt()
        return (self.mu or 0.0) * total

    def angle_loss(self, f: Tensor, embeddings: Tensor, y: Tensor) -> Tensor:
        """Eq. (8): draws features to the direction of their class, away from the other classes."""
        directions = F.normalize(embeddings, dim=-1)
        cosine = F.normalize(f, dim=-1) @ directions.T
        return F.cross_entropy(cosine / self.tau, y)

    def magnitude_loss(self, f: Tensor, frozen: Tensor, y: Tensor) -> Tensor:
        """Eq. (9): keeps features near the frozen embedding of their class."""
        gap = f - frozen[y]
        if self.mlg_reduction == "batch_fro":
            length: Tensor = gap.norm()
        else:
            length = gap.norm(dim=-1).mean()
        return length

    def make_optimiser(self, c: Client) -> Optimiser:
        """The client's optimiser, with mu as a weight decay of V and C."""
        decayed = add_weight_decay(c.optimiser, self.mu or 0.0)
        return Groups(
            {
                "base": c.optimiser,
                "head": c.optimiser,
                "valve": decayed,
                "embed": decayed,
            }
        )

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return Server(
            base=ups.mean("base"),
            valve=ups.mean("valve"),
            embed=ups.mean("embed"),
            head=server.head,
        )

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        p = self.conditions(c, down, keep).p
        return down.base | down.valve | keep.head | {"p": p}

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        # with the p_i of this training, not with the next one's
        trained_with = keep._replace(embed=keep.earlier)
        return self.personal(c, down, trained_with) | up.base | up.valve

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        f = c.model.base(w, x)
        (f_personal,) = c.model.valve(w, f, w["p"])
        logits: Tensor = c.model.head(w, f_personal)
        return logits
