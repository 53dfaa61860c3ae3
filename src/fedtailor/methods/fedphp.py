"""FedPHP: what a client learned in earlier rounds is inherited, the more the longer training lasts.

Li et al., FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021, Algorithm 1.

Two readings. ``inherit=start``, which FedCP and GPFL compare with: a client starts from a mix of the global model and
its own old one, trained while its features stay near the global model's; the mix is the personal model.
``inherit=end``, the authors' code: it starts from the global model, trained while its features stay near those of an
inherited model, into which the trained one is then mixed; the inherited model is the personal one. Closeness is the
squared MMD (the authors' code also offers distillation). mu grows with the round, in their code with the number of
rounds the client took part in.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor
from torch.nn import functional as F

from fedtailor.client import Batch, Client
from fedtailor.method import Method, New, Share, Uploads
from fedtailor.mmd import mmd
from fedtailor.tree import Params, average, lerp


class Server(NamedTuple):
    """What the server remembers."""

    w: Params  # global model


class Down(NamedTuple):
    """What goes down."""

    w: Params


class Keep(NamedTuple):
    """What the client remembers."""

    old: Params  # its last model; with inherit=end the inherited one


class Up(NamedTuple):
    """What goes up."""

    w: Params  # locally trained model


@dataclass(frozen=True)
class FedPHP(Method[Server, Down, Keep, Up]):
    """The global model is FedAvg's of models that remember."""

    reads_rounds: ClassVar[bool] = True
    also_sent: ClassVar[tuple[str, ...]] = ("old",)  # with inherit=start it is what went up last

    mu: Share = 0.9  # mu, share of the old model in the last round; it grows as mu t / T (0.9 in the authors' code)
    lam: Share = 0.1  # lambda, weight of the MMD, 1 - lambda that of the task; as in common scripts
    inherit: Literal["start", "end"] = "start"  # when the old model is mixed in: before or after local training

    def doubts(self) -> list[str]:
        return ["mu=0: FedPHP inherits nothing"] if self.mu == 0 else []

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def join(self, c: Client, down: Down) -> Keep:
        return Keep(down.w)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        early = self.inherit == "start"
        teacher = down.w if early else keep.old

        def loss(w: Params, batch: Batch) -> Tensor:
            h = c.model.base(w, batch.x)
            task = F.cross_entropy(c.model.head(w, h), batch.y)
            if self.lam == 0:
                return task
            return (1 - self.lam) * task + self.lam * mmd(h, c.model.base(teacher, batch.x))

        w = c.train(loss, self.mix(c, down.w, keep.old) if early else down.w)
        return Up(w), Keep(w if early else self.mix(c, w, keep.old))

    def mix(self, c: Client, new: Params, old: Params) -> Params:
        """(1 - mu_t) new + mu_t old, mu_t = mu t / T."""
        mixed: Params = lerp(new, old, self.mu * min(1.0, c.t / max(c.rounds, 1)))
        return mixed

    def merge(self, server: Server, ups: Uploads) -> Server:
        return Server(average(ups.w, ups.n))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return self.mix(c, down.w, keep.old) if self.inherit == "start" else keep.old

    def after(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return up.w if self.inherit == "start" else keep.old

    def shared(self, server: Server) -> Params:
        return server.w
