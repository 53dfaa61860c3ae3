"""pFedMA: FedMA, after which every client trains the matched network on its own data.

Wang et al., Federated Learning with Matched Averaging, ICLR 2020, Algorithm 1.

The fine-tuning is that of the baseline FedMA+FT in the paper of pFedC (Disentangled Knowledge Transfer: A New
Perspective for Personalized Federated Learning, Table 6), which does not say how long it takes. All else is FedMA, bit
for bit, and what its file says holds here too. The whole network is trained, wider layers included, with the
experiment's optimiser.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from torch import nn

from fedtailor.client import Client
from fedtailor.core.tree import Params
from fedtailor.maths.matching import Prior, read_wiring, trace_wiring
from fedtailor.maths.matching import rounds as course
from fedtailor.maths.matching.rounds import Down, Keep, Last, Matched, Server, Up
from fedtailor.method import Cohort, Count, Method, New, Positive, hyper, one_by_one
from fedtailor.models.backbone import Backbone


@dataclass(frozen=True)
class PFedMA(Method[Server, Down, Keep, Up]):
    """FedMA's network, fine-tuned at home."""

    also_sent: ClassVar[tuple[str, ...]] = (
        "w",
    )  # the layers of a client's network go up one by one

    gamma: Positive = hyper(
        7.0,
        "gamma_0, mass of the process that makes new units: more lets layers grow; authors' code",
    )
    sigma: Positive = hyper(
        1.0, "sigma^2, variance of clients' units around the global one; authors' code"
    )
    sigma0: Positive = hyper(
        1.0, "sigma_0^2, variance of global units around the prior mean; authors' code"
    )
    sweeps: Count = hyper(5, "times that all clients are matched anew; authors' code")
    grow: bool = hyper(
        True, "whether the matched network may have more units than a client's; Sec. 2.2"
    )
    last: Literal["classes", "samples"] = hyper(
        "classes", "whose examples weigh last layers: a class's, or all; Alg. 1"
    )
    estimate: Literal["mean", "map"] = hyper(
        "mean", "of a unit: the mean of its owners' (Alg. 1) or the MAP (authors' code)"
    )
    finetune: Count = hyper(
        5, "epochs of training on the client's own data; not said, 5 to 10 are usual"
    )
    wiring: str = hyper("", "how the layers hang together; always read from the network")

    def with_defaults_for(self, backbone: Backbone) -> Self:
        return replace(self, wiring=str(trace_wiring(backbone, grow=self.grow)))

    def net(self, backbone: Backbone) -> nn.Module:
        trace_wiring(backbone)
        return backbone

    def init(self, new: New, clients: int) -> Server:
        return course.start(new(0), read_wiring(self.wiring))

    def send(self, server: Server, k: int) -> Down:
        return course.send(server, k)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep({})

    @one_by_one
    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        return course.train_own(c, read_wiring(self.wiring), down)

    @one_by_one
    def retrain(self, c: Client, down: Matched, keep: Keep) -> tuple[Up, Keep]:
        """Train the layers behind the matched ones."""
        return course.train_rest(c, read_wiring(self.wiring), down, keep)

    @one_by_one
    def finish(self, c: Client, down: Matched, keep: Keep) -> tuple[Last, Keep]:
        """Train the last layer."""
        return course.train_last(c, read_wiring(self.wiring), down, keep)

    def expected_upload(self, down: Down | Matched, t: int) -> dict[str, Params]:
        return course.expect(read_wiring(self.wiring), down)

    def round(self, server: Server, cohort: Cohort) -> Server:
        prior = Prior(self.gamma, self.sigma, self.sigma0, self.sweeps)
        wiring, functions = read_wiring(self.wiring), (self.local, self.retrain, self.finish)
        by_class, shrink = self.last == "classes", self.estimate == "map"
        return course.run_round(
            server, cohort, wiring, prior, functions, by_class=by_class, shrink=shrink
        )

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return c.train(c.loss, down.w, epochs=self.finetune)

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return keep.w

    def shared(self, server: Server) -> Params:
        return server.w
