"""FedCP: a policy divides every feature vector between a personal head and a frozen global one.

Zhang et al., FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy, KDD 2023, Algorithm 1.

Where the paper is unclear, or the authors' code does something else:

* Minimising Eq. (7) as printed would push features apart. As in the code, the second loss is the
  squared MMD between a batch's features and those of the frozen global extractor.
* The code adds Gumbel noise in Eq. (4), even at test time: see ``gate``.
* With lambda = 5 and a high learning rate, features collapse. Only CNNs like the paper's have it
  by default; other networks have the paper's other value, 1.
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

LAM_OF_CNNS = 5.0  # lambda in App. D
LAM_OF_OTHERS = 1.0
CNNS = ("cnn", "lenet5", "lenet_mgda", "convnet2", "convnet3", "har_cnn")
BINS = 20  # of the recorded distribution of s

Ablation = Literal["cs", "ss", "gfm", "cpn", "gh"]  # what Table 1 leaves out


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


def derive_vector(head: Params) -> Tensor:
    """v_i / ||v_i||, where v_i sums the columns of the head's weight matrix (Sec. 3.2.1).

    Of a head with several layers, it sums the columns of the product of their matrices.
    """
    matrices = [value for value in head.values() if value.dim() == 2]
    v = matrices[-1].sum(0)
    for matrix in reversed(matrices[:-1]):
        v = v @ matrix
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
    """lambda for a network: App. D has one value for CNNs and one for ResNet-18 and fastText."""
    # for 8 x 8 images, not the paper's
    is_tiny = backbone.kind == "cnn" and backbone.features < 512
    if backbone.kind in CNNS and not is_tiny:
        return LAM_OF_CNNS
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
    """What the server remembers, and sends."""

    base: Annotated[Params, Doc("W^fe, global extractor")]
    shared: Annotated[Params, Doc("W^hd, global head")]
    policy: Annotated[Params, Doc("Theta")]
    fixed: Annotated[
        Params,
        Doc(
            "empty but for ablations: the first head without gh, a random v without cs and ss"
        ),
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


# ---------------------------------------------------------------- the method
@dataclass(frozen=True)
class FedCP(Method[Server, Down, Keep, Up]):
    """Extractors, policies and blends of both heads are averaged; personal heads stay private."""

    reveals: ClassVar[dict[str, str]] = {
        "personal head": "W_i^hd = 2 Ŵ_i^hd - W^hd, Eq. (6) solved",
    }

    lam: NonNegative | None = hyper(
        None,
        "lambda, weight of the MMD; CNNs 5, ResNet-18, fastText (App. D) and others 1",
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
        shared: Params = {}
        fixed: Params = {}
        if {"cs", "ss"} <= self.without:
            fixed["v"] = derive_vector(part(new(1), "head"))
        if "gh" in self.without:
            fixed |= part(w, "head")
        else:
            shared = rename(w, "head", "shared")  # both heads start alike
        return Server(
            base=part(w, "base"),
            shared=shared,
            policy=part(w, "policy"),
            fixed=fixed,
        )

    def send(self, server: Server, k: int) -> Down:
        return server

    def first_keep(self, c: Client, down: Down) -> Keep:
        head = self.first_head(down)
        return Keep(head, self.client_vector(head, down))

    def first_head(self, down: Down) -> Params:
        """The personal head before the first training."""
        if "gh" in self.without:
            return part(down.fixed, "head")
        return rename(down.shared, "shared", "head")

    def client_vector(self, head: Params, down: Down) -> Tensor:
        """What the policy learns about the client: v_i / ||v_i||, or a constant without cs."""
        if "cs" not in self.without:
            return derive_vector(head)
        if "ss" in self.without:
            return down.fixed["v"]
        return torch.ones(())

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        v = self.client_vector(keep.head, down)  # constant while training
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
        w = c.train(loss, start, only=("base", "policy", "head"))
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
            fixed=server.fixed,
        )

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        v = keep.v
        if self.vector == "fresh":
            v = self.client_vector(keep.head, down)
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
