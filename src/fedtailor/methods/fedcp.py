"""FedCP: a conditional policy splits every feature vector between a personal head and a frozen global one.

Zhang et al., FedCP: Separating Feature Information for Personalized Federated Learning via Conditional Policy,
KDD 2023, Algorithm 1.

Eq. (6) hides nothing, whatever Sec. 3.3 says: who knows W^hd has W_i^hd = 2 Ŵ_i^hd - W^hd from an upload. Minimising
Eq. (7) as printed would push features apart; it is a batch's squared MMD, as in the authors' code, which also adds
Gumbel noise in Eq. (4), even at test time (``gate``). With lambda = 5 high learning rates make features collapse: only
CNNs like the paper's have it, others its other value, 1. BatchNorm statistics go the way of ``--bn`` (the authors' stay
at home: local), the frozen extractor's are a batch's. PIR and s are told whenever models are evaluated
(``--evaluate-every``).
"""

import copy
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.client import Batch, Client
from fedtailor.core.errors import Unsupported, UserError, unknown
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, lerp, part, rename
from fedtailor.maths.mmd import mmd
from fedtailor.method import Count, Doc, Method, New, NonNegative, Uploads, hyper
from fedtailor.models.backbone import Backbone

LAM = dict.fromkeys(
    ("cnn", "lenet5", "lenet_mgda", "convnet2", "convnet3", "har_cnn"), 5.0
)  # App. D; others 1
PARTS = ("cs", "ss", "gfm", "cpn", "gh")  # what Table 1 leaves out


def make_policy(
    k: int, depth: int = 1, norm: str = "layer", activation: str = "relu"
) -> nn.Sequential:
    """CPN: from a context to a_1, a_2 of every feature; further FC layers have no norm, hence the sizes of Table 10."""
    act = {"relu": nn.ReLU(), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid()}[activation]
    norms = {
        "layer": nn.LayerNorm(2 * k),
        "batch": nn.BatchNorm1d(2 * k),
        "group": nn.GroupNorm(2, 2 * k),
    }
    hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(k, k), act)]
    return nn.Sequential(*hidden, nn.Linear(k, 2 * k), norms[norm], act, nn.Unflatten(-1, (2, k)))


class Separating(nn.Module):
    """An extractor under two heads, and the policy that divides the features between them."""

    def __init__(self, backbone: Backbone, policy: nn.Module, out: set[str]) -> None:
        super().__init__()
        self.base, self.head, self.out = backbone.base, backbone.head, out
        self.shared = None if "gh" in out else copy.deepcopy(backbone.head)
        self.policy = None if "cpn" in out else policy

    def forward(self, x: Tensor, v: Tensor, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, features h and their personal shares s; with Gumbel noise if there is an ``rng``."""
        h = self.base(x)
        r = s = torch.ones_like(h)
        if self.policy is not None:
            a = self.policy(v.expand_as(h) if "ss" in self.out else v * h)  # Eq. (3)
            r, s = (
                (a if rng is None else a + rng.gumbel(*a.shape)).softmax(-2).unbind(-2)
            )  # Eq. (4)
        own = self.head(s * h)
        return own if self.shared is None else self.shared(r * h) + own, h, s


def derive_vector(head: Params) -> Tensor:
    """v_i / ||v_i||, with v_i the column sums of the head's weight matrix, or of the product where it has several."""
    *before, last = (w for w in head.values() if w.dim() == 2)
    v = last.sum(0)
    for w in reversed(before):
        v = v @ w
    return F.normalize(v, dim=0)


class Server(NamedTuple):
    """What the server remembers, and sends."""

    base: Annotated[Params, Doc("W^fe, global extractor")]
    shared: Annotated[Params, Doc("W^hd, global head")]
    policy: Annotated[Params, Doc("Theta")]
    fixed: Annotated[
        Params,
        Doc("empty but for ablations: the first head without gh, a random v without cs and ss"),
    ]


Down = Server


class Keep(NamedTuple):
    """What stays with the client."""

    head: Annotated[Params, Doc("W_i^hd, personal head")]
    v: Annotated[Tensor, Doc("v_i / ||v_i||, as it was in the last local training")]


class Up(NamedTuple):
    """What goes up."""

    base: Annotated[Params, Doc("W_i^fe")]
    shared: Annotated[Params, Doc("Ŵ_i^hd, the mean of global and personal head")]
    policy: Annotated[Params, Doc("Theta_i")]


@dataclass(frozen=True)
class FedCP(Method[Server, Down, Keep, Up]):
    """Extractor, policy and the heads' blends are averaged; the personal heads go on at home."""

    lam: NonNegative | None = hyper(
        None, "lambda, weight of the MMD; CNNs 5, ResNet-18, fastText (App. D) and others 1"
    )
    gate: Literal["softmax", "gumbel", "gumbel_always"] = hyper(
        "softmax", "Eq. (4), or with noise in training (and after)"
    )
    depth: Count = hyper(1, "FC layers of the policy (Sec. 3.2.1; Table 10 has 1 .. 4)")
    norm: Literal["layer", "batch", "group"] = hyper(
        "layer", "the policy's normalisation (Sec. 3.2.1; Table 10)"
    )
    activation: Literal["relu", "tanh", "sigmoid"] = hyper(
        "relu", "the policy's activation (Sec. 3.2.1; Table 10)"
    )
    vector: Literal["latest", "fresh"] = hyper(
        "latest", "v_i at inference: the last training's (Sec. 3.2.1), or today's"
    )
    without: str = hyper(
        "",
        "parts left out as in Table 1: cs, ss, gfm, cpn, gh, with commas between; the paper leaves none",
    )

    @property
    def out(self) -> set[str]:
        return {p.strip() for p in self.without.split(",")} - {""}  # the parts left out

    def with_defaults_for(self, backbone: Backbone) -> Self:
        for name in sorted(self.out.difference(PARTS)):
            raise unknown("part of FedCP", name, PARTS)
        if "gh" in self.out and "cpn" not in self.out:
            raise UserError(
                f"without='{self.without}': FedCP's policy needs both heads, so write 'cpn,{self.without}'"
            )
        tiny = (
            backbone.kind == "cnn" and backbone.features < 512
        )  # for 8 x 8 images: not the paper's
        return (
            replace(self, lam=1.0 if tiny else LAM.get(backbone.kind, 1.0))
            if self.lam is None
            else self
        )

    def warnings(self) -> list[str]:
        found = (
            ["FedCP without cpn, gfm and gh is FedPer"] if {"cpn", "gfm", "gh"} <= self.out else []
        )
        return (
            [*found, "lam=0: FedCP's features drift freely, as without='gfm'"]
            if self.lam == 0
            else found
        )

    def net(self, backbone: Backbone) -> nn.Module:
        linear = [m for m in backbone.head.modules() if isinstance(m, nn.Linear)]
        if [m.in_features for m in linear] != [
            backbone.features,
            *(m.out_features for m in linear[:-1]),
        ]:
            raise Unsupported(
                "FedCP takes v_i from the head, whose linear layers must follow one another"
            )
        with torch.device("meta"):  # no values here: the run draws them
            policy = make_policy(backbone.features, self.depth, self.norm, self.activation)
        return Separating(backbone, policy, self.out)

    def init(self, new: New, clients: int) -> Server:
        w, both = new(0), "gh" not in self.out
        v = {"v": derive_vector(part(new(1), "head"))} if {"cs", "ss"} <= self.out else {}
        shared = rename(w, "head", "shared") if both else {}  # the two heads start alike
        return Server(
            part(w, "base"), shared, part(w, "policy"), v if both else v | part(w, "head")
        )

    def send(self, server: Server, k: int) -> Down:
        return server

    def describe(
        self, head: Params, down: Down
    ) -> Tensor:  # what the policy is told of the client; 1: nothing
        return down.fixed.get("v", torch.ones(())) if "cs" in self.out else derive_vector(head)

    def first_keep(self, c: Client, down: Down) -> Keep:
        head = rename(down.shared, "shared", "head") or part(down.fixed, "head")
        return Keep(head, self.describe(head, down))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        v, lam = (
            self.describe(keep.head, down),
            0.0 if "gfm" in self.out else self.lam,
        )  # constants while training

        def loss(w: Params, batch: Batch) -> Tensor:  # Eq. (8)
            logits, h, _ = c.model(w, batch.x, v, None if self.gate == "softmax" else batch.rng)
            task = c.task.loss(logits, batch.y)
            return task + lam * mmd(h, c.model.base(down.base, batch.x)) if lam else task

        w = c.train(loss, self.personal(c, down, keep), only=("base", "policy", "head"))
        blend = lerp(down.shared, rename(w, "head", "shared"), 0.5)  # Eq. (6)
        return Up(part(w, "base"), blend, part(w, "policy")), Keep(part(w, "head"), v)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return server._replace(**{f: ups.mean(f) for f in Up._fields})

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        v = keep.v if self.vector == "latest" else self.describe(keep.head, down)
        return down.base | down.shared | down.policy | keep.head | {"v": v}

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return self.personal(c, down, keep) | up.base | up.policy

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        logits: Tensor = c.model(w, x, w["v"], c.rng if self.gate == "gumbel_always" else None)[0]
        return logits

    def diagnostics(self, c: Client, w: Params, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        if "cpn" in self.out:
            return {}
        s: Tensor = c.model(w, x, w["v"], c.rng if self.gate == "gumbel_always" else None)[2]
        at = (s * 20).floor().clamp(max=19)  # the distribution in 20 bins
        return {
            "PIR": s.mean(-1),
            "s": torch.stack([(at == i).to(s.dtype).mean(-1) for i in range(20)], -1),
        }  # Fig. 5
