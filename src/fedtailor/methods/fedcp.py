"""FedCP: a conditional policy splits every feature vector between a personal head and a frozen global one.

Zhang et al., FedCP: Separating Feature Information for Personalized Federated Learning via Conditional Policy,
KDD 2023, Algorithm 1.

Eq. (6) hides nothing, whatever Sec. 3.3 says: who knows W^hd has W_i^hd = 2 Ŵ_i^hd - W^hd from an upload.

Minimising Eq. (7) as printed would push features apart; it is the batch's squared MMD, as in the authors' code. That
code also adds Gumbel noise in Eq. (4), even at test time: see ``gate``. A head of several layers gives v_i by the
product of their weights. More FC layers in the policy have an activation each and no norm, so that Table 10's sizes
hold. Backbones that the paper does not name take lambda from the nearest: ResNets from ResNet-18, others from the CNN.
"""

import copy
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.client import Batch, Client
from fedtailor.errors import Unsupported, UserError, unknown
from fedtailor.method import Count, Method, New, NonNegative, Uploads
from fedtailor.mmd import mmd
from fedtailor.models.backbone import Backbone
from fedtailor.rng import Rng
from fedtailor.tree import Params, average, lerp, part, rename

LAM = {"resnet18": 1.0, "resnet34": 1.0, "resnet32": 1.0, "fasttext": 1.0}  # App. D; any other 5
PARTS = ("cs", "ss", "gfm", "cpn", "gh")  # what Table 1 leaves out
BINS = 20  # of the distribution of s_i


def make_policy(k: int, depth: int = 1, norm: str = "layer", activation: str = "relu") -> nn.Sequential:
    """CPN: from a context of k numbers to the two intermediates a_1, a_2 of every feature."""
    act = {"relu": nn.ReLU(), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid()}[activation]
    norms = {"layer": nn.LayerNorm(2 * k), "batch": nn.BatchNorm1d(2 * k), "group": nn.GroupNorm(2, 2 * k)}
    hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(k, k), act)]
    return nn.Sequential(*hidden, nn.Linear(k, 2 * k), norms[norm], act, nn.Unflatten(-1, (2, k)))


class Separating(nn.Module):
    """An extractor under two heads, and the policy that divides the features between them."""

    def __init__(self, backbone: Backbone, shared: nn.Module | None, policy: nn.Module | None, by_sample: bool) -> None:
        super().__init__()
        self.base, self.head, self.by_sample = backbone.base, backbone.head, by_sample
        self.shared, self.policy = shared, policy

    def forward(self, x: Tensor, v: Tensor, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, features h and their personal shares s; with Gumbel noise if there is an ``rng``."""
        h = self.base(x)
        r = s = torch.ones_like(h)
        if self.policy is not None:
            a = self.policy(v * h if self.by_sample else v.expand_as(h))  # Eq. (3)
            r, s = (a if rng is None else a + rng.gumbel(*a.shape)).softmax(-2).unbind(-2)  # Eq. (4)
        own = self.head(s * h)
        return own if self.shared is None else self.shared(r * h) + own, h, s


def derive_vector(head: Params) -> Tensor:
    """v_i / ||v_i||, with v_i the column sums of the head's weight matrix."""
    *before, last = (w for w in head.values() if w.dim() == 2)
    v = last.sum(0)
    for w in reversed(before):
        v = v @ w
    return F.normalize(v, dim=0)


class Server(NamedTuple):
    """What the server remembers, and sends."""

    base: Params  # W^fe, global extractor
    shared: Params  # W^hd, global head
    policy: Params  # Theta
    fixed: Params  # empty but for ablations: the first head without gh, a random v without cs and ss


Down = Server


class Keep(NamedTuple):
    """What stays with the client."""

    head: Params  # W_i^hd, personal head
    v: Tensor  # v_i / ||v_i||, as it was in the last local training


class Up(NamedTuple):
    """What goes up."""

    base: Params  # W_i^fe
    shared: Params  # Ŵ_i^hd, the mean of global and personal head
    policy: Params  # Theta_i


@dataclass(frozen=True)
class FedCP(Method[Server, Down, Keep, Up]):
    """Extractor, policy and the heads' blends are averaged; the personal heads go on at home."""

    lam: NonNegative | None = None  # lambda, weight of the MMD; 5, for ResNets and fastText 1 (App. D)
    gate: Literal["softmax", "gumbel", "gumbel_always"] = "softmax"  # Eq. (4), or with noise in training (and after)
    depth: Count = 1  # FC layers of the policy (Sec. 3.2.1; Table 10 has 1 .. 4)
    norm: Literal["layer", "batch", "group"] = "layer"  # the policy's normalisation (Sec. 3.2.1; Table 10)
    activation: Literal["relu", "tanh", "sigmoid"] = "relu"  # the policy's activation (Sec. 3.2.1; Table 10)
    vector: Literal["latest", "fresh"] = "latest"  # v_i at inference: the last training's (Sec. 3.2.1), or today's
    without: str = ""  # parts left out as in Table 1: cs, ss, gfm, cpn, gh, with commas between; the paper leaves none

    @property
    def out(self) -> set[str]:
        """The parts left out."""
        return {p.strip() for p in self.without.split(",")} - {""}

    def resolve(self, backbone: Backbone) -> Self:
        for name in sorted(self.out.difference(PARTS)):
            raise unknown("part of FedCP", name, PARTS)
        if "gh" in self.out and "cpn" not in self.out:
            raise UserError(f"without='{self.without}': FedCP's policy needs both heads, so write 'cpn,{self.without}'")
        return replace(self, lam=LAM.get(backbone.kind, 5.0)) if self.lam is None else self

    def doubts(self) -> list[str]:
        odd = {
            "lam=0: nothing holds FedCP's features to the global head, as without='gfm'": self.lam == 0,
            "without='cpn' leaves no policy, so cs and ss change nothing": "cpn" in self.out
            and self.out & {"cs", "ss"},
            "without='cpn,gfm,gh': what is left of FedCP is FedPer": {"cpn", "gfm", "gh"} <= self.out,
        }
        return [line for line, applies in odd.items() if applies]

    def net(self, backbone: Backbone) -> nn.Module:
        linear = [m for m in backbone.head.modules() if isinstance(m, nn.Linear)]
        if [m.in_features for m in linear] != [backbone.features, *(m.out_features for m in linear[:-1])]:
            raise Unsupported("FedCP takes v_i from the head, whose linear layers must follow one another")
        with torch.device("meta"):  # no values here: the run draws them
            cpn = None if "cpn" in self.out else make_policy(backbone.features, self.depth, self.norm, self.activation)
        shared = None if "gh" in self.out else copy.deepcopy(backbone.head)
        return Separating(backbone, shared, cpn, by_sample="ss" not in self.out)

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        head, v = part(w, "head"), {"v": derive_vector(part(new(1), "head"))}
        fixed = (head if "gh" in self.out else {}) | (v if {"cs", "ss"} <= self.out else {})
        shared = {} if "gh" in self.out else rename(head, "head", "shared")  # both heads start alike
        return Server(part(w, "base"), shared, part(w, "policy"), fixed)

    def send(self, server: Server, k: int) -> Down:
        return server

    def describe(self, head: Params, down: Down) -> Tensor:
        """What the policy is told of the client; ones tell nothing."""
        v = derive_vector(head)
        return down.fixed.get("v", torch.ones_like(v)) if "cs" in self.out else v

    def join(self, c: Client, down: Down) -> Keep:
        head = rename(down.shared, "shared", "head") or part(down.fixed, "head")
        return Keep(head, self.describe(head, down))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        v = self.describe(keep.head, down)  # constant while training
        lam = 0.0 if "gfm" in self.out else self.lam

        def loss(w: Params, batch: Batch) -> Tensor:  # Eq. (8)
            logits, h, _ = c.model(w, batch.x, v, None if self.gate == "softmax" else batch.rng)
            task = F.cross_entropy(logits, batch.y)
            return task + lam * mmd(h, c.model.base(down.base, batch.x)) if lam else task

        w = c.train(loss, self.personal(c, down, keep), only=("base", "policy", "head"))
        head = part(w, "head")
        blend = lerp(down.shared, rename(head, "head", "shared"), 0.5)  # Eq. (6)
        return Up(part(w, "base"), blend, part(w, "policy")), Keep(head, v)

    def merge(self, server: Server, ups: Uploads) -> Server:
        base, shared, policy = (average(x, ups.n) for x in (ups.base, ups.shared, ups.policy))
        return Server(base, shared, policy, server.fixed)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        v = keep.v if self.vector == "latest" else self.describe(keep.head, down)
        return down.base | down.shared | down.policy | keep.head | {"v": v}

    def after(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return self.personal(c, down, keep) | up.base | up.policy

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        logits: Tensor = c.model(w, x, w["v"], c.rng if self.gate == "gumbel_always" else None)[0]
        return logits

    def notes(self, c: Client, w: Params, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        if "cpn" in self.out:
            return {}
        s: Tensor = c.model(w, x, w["v"], c.rng if self.gate == "gumbel_always" else None)[2]
        at = (s * BINS).floor().clamp(max=BINS - 1)
        shares = torch.stack([(at == i).to(s.dtype).mean(-1) for i in range(BINS)], -1)
        return {"PIR": s.mean(-1), "s": shares}  # Sec. 8 and Fig. 5
