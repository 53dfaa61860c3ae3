"""FedMA: hidden units that do the same are found and averaged, layer by layer, wherever they stand in a network.

Wang et al., Federated Learning with Matched Averaging, ICLR 2020, Algorithm 1.

One round takes as many calls as the network has layers, and trains in each of them. Clients train their networks and
send the first layer; the server matches its units by BBP-MAP and sends their means; clients reorder what reads these
units, train the layers behind with all others frozen, and send the next. Last layers are averaged class by class,
weighted by the examples a client has of the class, so the server learns how many these are. A round begins as in the
authors' version with communication: a client gets its own units of the matched network or, if it has none there, those
that most clients have; so its network has the same size in every round. All clients begin with the same network.

A matched unit is the mean over the clients that have it, as in the paper. The authors' code takes the MAP estimate
(``estimate=map``), in which the prior counts like one client more: every round shrinks the weights of a unit that all J
clients have by J / (J + 1), and draws its bias to 0.1.

Networks with additions (ResNets) and normalisation are our extension. All layers that are added up share one order of
units, found where the first of them is made. BatchNorm's scales and shifts go with their units, its statistics are
averaged at the end of a round. Units under GroupNorm keep to their groups. A layer grows only in a network without
additions, and where no normalisation follows it.
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
class FedMA(Method[Server, Down, Keep, Up]):
    """One network for all, in which equal units have been averaged."""

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
        return down.w

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return keep.w

    def shared(self, server: Server) -> Params:
        return server.w
