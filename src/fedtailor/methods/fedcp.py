"""FedCP: a policy divides every feature vector between a personal head and a frozen global one.

Zhang et al., FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy, KDD 2023, Algorithm 1.

Where the paper is unclear, or the authors' code does something else:

* Minimising Eq. (7) as printed would push features apart. As in the code, the second loss is the
  squared MMD between a batch's features and those of the frozen global extractor.
* The code adds Gumbel noise in Eq. (4), even at test time: see ``gate``.
* v_i as printed says nothing about the client if the head is one linear layer: the gradient of
  cross entropy is zero when summed over the head's rows, so training moves their sum nowhere (with
  momentum, too; weight decay only shortens it). All heads start alike, so that v_i / ||v_i|| is the
  same at all clients in all rounds, and leaving ``ss`` out is the same design with ``cs`` and
  without. Heads of several layers (HAR) do not have this flaw. ``vector=class_weighted`` and
  ``vector=norms`` are vectors that tell clients apart.
* Personal heads start from W^hd,0, as line 1 says, also at clients that are first selected later.
* App. D gives lambda for three networks: 5 for the CNN of four layers, 1 for ResNet-18 and
  fastText. For all others it is our choice, made on validation data of digits
  (``experiments/studies/fedcp_lambda.py``).
* BatchNorm statistics follow ``--bn`` (the authors' code keeps them local). The frozen extractor
  normalises with the statistics of the batch.
* Eq. (6) does not protect privacy, as Sec. 3.3 claims: the server, which knows W^hd, can compute
  the personal head from an upload, W_i^hd = 2 Ŵ_i^hd - W^hd.

The personalisation ratio PIR and the distribution of s (Fig. 5) are recorded at every evaluation
(``--evaluate-every``).
"""

import copy
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.client import Batch, Client
from fedtailor.core.errors import Unsupported, UserError
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, lerp, part, rename
from fedtailor.maths.mmd import mmd
from fedtailor.method import Count, Doc, Method, New, NonNegative, Uploads, hyper
from fedtailor.models.backbone import Backbone

LAM_OF_CNN = 5.0  # lambda in App. D, for the CNN of four layers
LAM_OF_DEEP = 1.0  # lambda in App. D, for ResNet-18 and fastText
LAM_OF_OTHERS = 0.1  # ours, the best of a study: experiments/records/fedcp-lambda.json
DEEP = ("resnet18", "fasttext")
CNN_FEATURES = 512  # of the paper's CNN; ours for 8 x 8 images has fewer
BINS = 20  # of the recorded distribution of s

Ablation = Literal["cs", "ss", "gfm", "cpn", "gh"]  # what Table 1 leaves out
Vector = Literal["sum", "class_weighted", "norms"]


# ---------------------------------------------------------------- the network
class Separated(NamedTuple):
    """What the network gives for a batch."""

    logits: Tensor
    h: Tensor  # features
    s: Tensor  # the personal share of every feature


class SeparatingNetwork(nn.Module):
    """An extractor, two heads, and the policy that divides the features between the heads."""

    def __init__(
        self,
        backbone: Backbone,
        policy: nn.Module,
        without: frozenset[Ablation],
    ) -> None:
        super().__init__()
        self.base = backbone.base
        self.head = backbone.head  # personal
        self.shared = None  # the global head
        if "gh" not in without:
            self.shared = copy.deepcopy(backbone.head)
        self.policy = None
        if "cpn" not in without:
            self.policy = policy
        self.without = without

    def forward(self, x: Tensor, v: Tensor, rng: Rng | None) -> Separated:
        """Classify a batch.

        Args:
            x: the inputs.
            v: v_i / ||v_i||, the client's vector.
            rng: for Gumbel noise in the policy; no noise if None.
        """
        h = self.base(x)  # Eq. (2)
        r, s = self.separate(h, v, rng)
        logits = self.head(s * h)
        if self.shared is not None:
            logits = self.shared(r * h) + logits
        return Separated(logits, h, s)

    def separate(self, h: Tensor, v: Tensor, rng: Rng | None) -> tuple[Tensor, Tensor]:
        """r and s, the global and the personal share of every feature; both 1 without a policy."""
        if self.policy is None:
            ones = torch.ones_like(h)
            return ones, ones
        context = v.expand_as(h) if "ss" in self.without else v * h
        a = self.policy(context)  # Eq. (3)
        if rng is not None:
            a = a + rng.gumbel(*a.shape)
        r, s = a.softmax(-2).unbind(-2)  # Eq. (4)
        return r, s


def make_policy(
    features: int,
    depth: int = 1,
    norm: str = "layer",
    activation: str = "relu",
) -> nn.Sequential:
    """The conditional policy network (CPN): from a context to a_1 and a_2 of every feature.

    Only the last layer is normalised, which gives the sizes of Table 10.
    """
    activations = {
        "relu": nn.ReLU(),
        "tanh": nn.Tanh(),
        "sigmoid": nn.Sigmoid(),
    }
    norms = {
        "layer": nn.LayerNorm(2 * features),
        "batch": nn.BatchNorm1d(2 * features),
        "group": nn.GroupNorm(2, 2 * features),
    }
    layers: list[nn.Module] = []
    for _ in range(depth - 1):
        layers.append(nn.Linear(features, features))
        layers.append(activations[activation])
    layers.append(nn.Linear(features, 2 * features))
    layers.append(norms[norm])
    layers.append(activations[activation])
    layers.append(nn.Unflatten(-1, (2, features)))
    return nn.Sequential(*layers)


def derive_vector(
    head: Params, kind: Vector = "sum", shares: Tensor | None = None
) -> Tensor:
    """v_i / ||v_i||, one number a feature, from the weight matrix of the personal head.

    Of a head with several layers, it is taken from the product of their matrices.

    Args:
        head: the personal head.
        kind: how a column becomes a number. ``sum``: the sum over classes (Sec. 3.2.1), which
            training a head of one layer does not change. ``class_weighted``: the sum over classes,
            each times its share of the client's examples. ``norms``: the column's length.
        shares: of the classes, for ``class_weighted``.
    """
    matrices = [value for value in head.values() if value.dim() == 2]
    rows = matrices[-1]
    if kind == "class_weighted":
        assert shares is not None
        rows = shares @ rows
    elif kind == "sum":
        rows = rows.sum(0)
    for matrix in reversed(matrices[:-1]):
        rows = rows @ matrix
    v = rows.norm(dim=0) if kind == "norms" else rows
    return F.normalize(v, dim=0)


def has_chained_layers(backbone: Backbone) -> bool:
    """Whether the linear layers of the head follow one another, so that their product exists."""
    width = backbone.features
    for module in backbone.head.modules():
        if not isinstance(module, nn.Linear):
            continue
        if module.in_features != width:
            return False
        width = module.out_features
    return True


def find_default_lam(backbone: Backbone) -> float:
    """lambda for a network: App. D's for the three it names, else ours."""
    if backbone.kind in DEEP:
        return LAM_OF_DEEP
    if backbone.kind == "cnn" and backbone.features == CNN_FEATURES:
        return LAM_OF_CNN
    return LAM_OF_OTHERS


def count_in_bins(s: Tensor) -> Tensor:
    """What share of every row of ``s`` lies in each of the bins from 0 to 1."""
    bin_of = (s * BINS).floor().clamp(max=BINS - 1)
    shares = []
    for i in range(BINS):
        is_inside = (bin_of == i).to(s.dtype)
        shares.append(is_inside.mean(-1))
    return torch.stack(shares, -1)


# ---------------------------------------------------------------- states and messages
class Server(NamedTuple):
    """What the server remembers."""

    base: Annotated[Params, Doc("W^fe, global extractor")]
    shared: Annotated[Params, Doc("W^hd, global head")]
    policy: Annotated[Params, Doc("Theta")]
    first: Annotated[
        Params,
        Doc("W^hd,0, every client's first; for ablations without cs and ss a random v"),
    ]


class Down(NamedTuple):
    """What a client is sent."""

    base: Annotated[Params, Doc("W^fe, global extractor")]
    shared: Annotated[Params, Doc("W^hd, global head")]
    policy: Annotated[Params, Doc("Theta")]


class Keep(NamedTuple):
    """What stays with the client."""

    head: Annotated[
        Params,
        Doc("W_i^hd, personal head; the server can compute it from what goes up"),
    ]
    v: Annotated[Tensor, Doc("v_i / ||v_i||, as it was in the last local training")]


class Up(NamedTuple):
    """What goes up."""

    base: Annotated[Params, Doc("W_i^fe")]
    shared: Annotated[Params, Doc("Ŵ_i^hd, the mean of global and personal head")]
    policy: Annotated[Params, Doc("Theta_i")]


# ---------------------------------------------------------------- the method
@dataclass(frozen=True)
class FedCP(Method[Server, Down, Keep, Up]):
    """Extractors, policies and blends of both heads are averaged; personal heads stay private."""

    reveals: ClassVar[dict[str, str]] = {
        "personal head": "W_i^hd = 2 Ŵ_i^hd - W^hd, Eq. (6) solved",
    }
    moved: ClassVar[dict[str, str]] = {
        "vector=latest": "vector_time=latest",
        "vector=fresh": "vector_time=fresh",
    }

    lam: NonNegative | None = hyper(
        None,
        "lambda, weight of the MMD; the paper's CNN 5, ResNet-18 and fastText 1 (App. D); "
        "others 0.1, our choice on validation data of digits",
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
    vector: Vector = hyper(
        "sum",
        "v_i of the head's columns: sums (Sec. 3.2.1), which training a head of one layer does "
        "not change, sums weighted by the client's class shares, or lengths",
    )
    vector_time: Literal["latest", "fresh"] = hyper(
        "latest", "v_i at inference: the last training's (Sec. 3.2.1), or today's"
    )
    without: frozenset[Ablation] = hyper(
        frozenset(),
        "parts left out as in Table 1, separated by commas; the paper leaves none out",
    )

    def with_defaults_for(self, backbone: Backbone) -> Self:
        if "gh" in self.without and "cpn" not in self.without:
            names = ",".join(sorted(self.without))
            raise UserError(
                f"without='{names}': FedCP's policy needs both heads, so write 'cpn,{names}'"
            )
        if self.lam is not None:
            return self
        return replace(self, lam=find_default_lam(backbone))

    def warnings(self) -> list[str]:
        found = []
        if {"cpn", "gfm", "gh"} <= self.without:
            found.append("FedCP without cpn, gfm and gh is FedPer")
        if self.lam == 0:
            found.append("lam=0: FedCP's features drift freely, as without='gfm'")
        return found

    def net(self, backbone: Backbone) -> nn.Module:
        if not has_chained_layers(backbone):
            raise Unsupported(
                "FedCP takes v_i from the head, whose linear layers must follow one another"
            )
        with torch.device("meta"):  # the run draws the first values, not the module
            policy = make_policy(
                backbone.features, self.depth, self.norm, self.activation
            )
        return SeparatingNetwork(backbone, policy, self.without)

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        head = part(w, "head")
        shared: Params = {}
        if "gh" not in self.without:
            shared = rename(head, "head", "shared")  # line 1: both heads start alike
        first = dict(head)
        if {"cs", "ss"} <= self.without:
            first["v"] = derive_vector(part(new(1), "head"))
        return Server(
            base=part(w, "base"),
            shared=shared,
            policy=part(w, "policy"),
            first=first,
        )

    def given(self, server: Server) -> Params:
        return server.first

    def keep_given(self, c: Client, given: Params) -> Keep:
        head = part(given, "head")
        if "v" in given:
            return Keep(head, given["v"])
        return self.keep_head(c, head)

    def send(self, server: Server, k: int) -> Down:
        return Down(server.base, server.shared, server.policy)

    def first_keep(self, c: Client, down: Down) -> Keep:
        """A client that was given nothing, as it never was in a round: from the head of today."""
        if down.shared:
            return self.keep_head(c, rename(down.shared, "shared", "head"))
        return self.keep_head(c, c.fresh("head"))

    def keep_head(self, c: Client, head: Params) -> Keep:
        """A private state with this head, before any training."""
        nothing = Keep(head, torch.ones(()))
        return Keep(head, self.client_vector(c, nothing))

    def client_vector(self, c: Client, keep: Keep) -> Tensor:
        """What the policy learns about the client: v_i / ||v_i||, or a constant without cs."""
        if "cs" in self.without:
            return keep.v
        shares = torch.ones(())  # of classes; only one kind of vector looks at them
        if self.vector == "class_weighted":
            shares = c.counts / c.counts.sum().clamp(min=1)
        return derive_vector(keep.head, self.vector, shares)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        v = self.client_vector(c, keep)  # constant while training
        lam = self.weight_of_mmd()

        def loss(w: Params, batch: Batch) -> Tensor:  # Eq. (8)
            noise = None if self.gate == "softmax" else batch.rng
            logits, h, _ = c.model(w, batch.x, v, noise)
            task_loss = c.task.loss(logits, batch.y)  # Eq. (5)
            if lam == 0:
                return task_loss
            frozen = c.model.base(down.base, batch.x)
            return task_loss + lam * mmd(h, frozen)  # Eq. (7)

        start = self.personal(c, down, keep)
        trained = ["base", "head"]
        if "cpn" not in self.without:
            trained.append("policy")
        w = c.train(loss, start, only=trained)
        head = part(w, "head")
        up = Up(
            base=part(w, "base"),
            shared=lerp(down.shared, rename(head, "head", "shared"), 0.5),  # Eq. (6)
            policy=part(w, "policy"),
        )
        return up, Keep(head, v)

    def weight_of_mmd(self) -> float:
        """lambda; 0 without GFM, the frozen global extractor and its MMD."""
        if self.lam is None or "gfm" in self.without:
            return 0.0
        return self.lam

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return Server(
            base=ups.mean("base"),
            shared=ups.mean("shared"),
            policy=ups.mean("policy"),
            first=server.first,
        )

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        v = keep.v
        if self.vector_time == "fresh":
            v = self.client_vector(c, keep)
        return down.base | down.shared | down.policy | keep.head | {"v": v}

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return self.personal(c, down, keep) | up.base | up.policy

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        return self.separate(c, w, x).logits

    def diagnostics(
        self, c: Client, w: Params, x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        if "cpn" in self.without:
            return {}
        s = self.separate(c, w, x).s
        return {"PIR": s.mean(-1), "s": count_in_bins(s)}  # Fig. 5

    def separate(self, c: Client, w: Params, x: Tensor) -> Separated:
        """What the network gives at inference."""
        noise = c.rng if self.gate == "gumbel_always" else None
        output: Separated = c.model(w, x, w["v"], noise)
        return output
