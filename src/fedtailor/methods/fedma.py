"""FedMA: hidden units that do the same are found and averaged, layer by layer.

Wang et al., Federated Learning with Matched Averaging, ICLR 2020, Algorithm 1.

One round takes as many calls as the network has layers, and trains in each of them. Clients train
their networks and send the first layer; the server matches its units by BBP-MAP and sends their
means; clients reorder what reads these units, train the layers behind with all others frozen, and
send the next layer. Last layers are averaged class by class, weighted by the examples a client has
of the class, so the server learns how many these are. A round begins as in the authors' version
with communication: a client gets its own units of the matched network or, if it has none there,
those that most clients have; so its network has the same size in every round. All clients begin
with the same network.

A matched unit is the mean over the clients that have it, as in the paper. The authors' code takes
the MAP estimate (``estimate=map``), in which the prior counts like one client more: every round
shrinks the weights of a unit that all J clients have by J / (J + 1), and draws its bias to 0.1.

Networks with additions (ResNets) and normalisation are our extension. All layers that are added up
share one order of units, found where the first of them is made. BatchNorm's scales and shifts go
with their units, its statistics are averaged at the end of a round. Units under GroupNorm keep to
their groups. A layer grows only in a network without additions, and where no normalisation follows.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from fedtailor.client import Client
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, learned
from fedtailor.maths.matching import (
    Prior,
    Step,
    Wiring,
    average_classes,
    average_layers,
    count_owners,
    match_layer,
    place_units,
    shrink_layers,
    take_layers,
    take_statistics,
    take_units,
    trace_wiring,
)
from fedtailor.method import (
    Cohort,
    Count,
    Doc,
    Method,
    New,
    Positive,
    Uploads,
    hyper,
    one_by_one,
)
from fedtailor.models.backbone import Backbone


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[
        Params, Doc("the matched network, whose layers may be wider than the clients'")
    ]
    picks: Annotated[
        dict[int, Params],
        Doc("by client, which units of a wider layer are its own, in order"),
    ]
    usual: Annotated[
        Params, Doc("those of a client without: the units that most clients have")
    ]


class Down(NamedTuple):
    """What goes down at the beginning of a round, and to evaluate."""

    w: Annotated[
        Params, Doc("the client's units of the matched network; to evaluate, all")
    ]
    picks: Annotated[
        Params,
        Doc("which units of wider layers are the client's, where they are not alone"),
    ]


class Keep(NamedTuple):
    """What a client keeps during a round; its layers go up one by one."""

    w: Annotated[Params, Doc("W_j, the client's network; nothing between rounds")]


class Up(NamedTuple):
    """What goes up: the layer that is matched next."""

    layer: Annotated[Params, Doc("W_j,n, in the order of the client's units")]


class Matched(NamedTuple):
    """What goes down once a layer is matched."""

    step: Annotated[int, Doc("n, which layer it is")]
    layer: Annotated[Params, Doc("W_n, averaged")]
    places: Annotated[Tensor, Doc("Pi_j, the places of the client's units in it")]
    width: Annotated[int, Doc("how many units it has")]
    sizes: Annotated[dict[str, tuple[int, ...]], Doc("of what is to come back")]


class Last(NamedTuple):
    """What goes up in the end."""

    layer: Annotated[Params, Doc("W_j,L, the last layer")]
    counts: Annotated[
        Tensor, Doc("examples of every class, by which last layers are averaged")
    ]
    statistics: Annotated[Params, Doc("BatchNorm's, of all layers")]


class MatchedLayer(NamedTuple):
    """A layer whose units have been matched."""

    layer: Params  # W_n, averaged
    places: dict[int, Tensor]  # Pi_j by client, the places of its units
    width: int  # how many places there are

    def make_downs(self, n: int, next_layer: Params) -> dict[int, Matched]:
        """What every client is sent; ``next_layer`` has the shapes of what is to come back."""
        sizes = {name: tuple(x.shape) for name, x in next_layer.items()}
        downs: dict[int, Matched] = {}
        for k, places in self.places.items():
            downs[k] = Matched(n, self.layer, places, self.width, sizes)
        return downs

    def list_usual_units(self) -> Tensor:
        """The units that most clients have, as many as a client has."""
        places = list(self.places.values())
        owners = count_owners(places, self.width)
        order = owners.argsort(descending=True, stable=True)
        usual = order[: len(places[0])]
        return usual.sort()[0]


@dataclass(frozen=True)
class FedMA(Method[Server, Down, Keep, Up]):
    """One network for all, in which equal units have been averaged."""

    needs_classes: ClassVar[str] = "last layers are averaged class by class"

    also_sent: ClassVar[tuple[str, ...]] = ("w",)  # a client's layers go up one by one

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
        True,
        "whether the matched network may have more units than a client's; Sec. 2.2",
    )
    last: Literal["classes", "samples"] = hyper(
        "classes", "whose examples weigh last layers: a class's, or all; Alg. 1"
    )
    estimate: Literal["mean", "map"] = hyper(
        "mean", "of a unit: the mean of its owners' (Alg. 1) or the MAP (authors' code)"
    )
    finetune: int = hyper(
        0,
        "epochs on the client's own data that make the matched network a personal one; 0 (Alg. 1)",
    )

    # ---------------------------------------------------------------- before the first round
    def with_defaults_for(self, backbone: Backbone) -> Self:
        method = replace(self)
        vars(method)["_wiring"] = trace_wiring(backbone, grow=self.grow)
        return method

    @property
    def wiring(self) -> Wiring:
        """How the network's layers are connected; ``with_defaults_for`` finds it.

        It is not a field of the dataclass, as it is not a hyper-parameter.
        """
        wiring: Wiring = vars(self)["_wiring"]
        return wiring

    def net(self, backbone: Backbone) -> nn.Module:
        trace_wiring(backbone)
        return backbone

    def init(self, new: New, clients: int) -> Server:
        usual: Params = {}
        for name, stream in self.wiring.streams.items():
            if stream.grows:
                usual[name] = torch.arange(stream.width)
        return Server(new(0), {}, usual)

    # ---------------------------------------------------------------- a round, Algorithm 1
    def round(self, server: Server, cohort: Cohort) -> Server:
        """Match a layer, average it, let clients train the layers behind it; then the next.

        A client that does not answer is left out of the rest of the round.
        """
        steps = self.wiring.steps
        # shaped like clients' networks
        like = take_units(server.w, self.wiring, server.usual)
        matched: list[MatchedLayer] = []
        ups = cohort.run(self.local, lambda k: self.send_own_units(server, k))
        for n, step in enumerate(steps[:-1]):
            found = self.match(ups, step, cohort.rng.fold(n))
            matched.append(found)
            if step.decides:
                first = found.places[ups.clients[0]]
                like = place_units(like, self.wiring, step.stream, first, found.width)
            downs = found.make_downs(n, take_layers(like, steps[n + 1]))
            is_last = n + 2 == len(steps)
            train = self.finish if is_last else self.retrain
            ups = cohort.only(downs).run(train, downs.__getitem__)
        return self.assemble(server, matched, ups)

    def match(self, ups: Uploads[Up], step: Step, rng: Rng) -> MatchedLayer:
        """Find equal units by BBP-MAP, and average them."""
        prior = Prior(self.gamma, self.sigma, self.sigma0, self.sweeps)
        places, width = match_layer(ups.layer, step, self.wiring, prior, rng)
        layer = average_layers(ups.layer, places, width)
        if self.estimate == "map":
            owners = count_owners(places, width)
            layer = shrink_layers(layer, step, owners, prior)
        by_client = dict(zip(ups.clients, places, strict=True))
        return MatchedLayer(layer, by_client, width)

    def assemble(
        self, server: Server, matched: list[MatchedLayer], ups: Uploads[Last]
    ) -> Server:
        """The matched network, with its last layer averaged, and which units are whose."""
        w: Params = {}
        usual: Params = {}
        picks: dict[int, Params] = {k: {} for k in ups.clients}
        for step, found in zip(self.wiring.steps[:-1], matched, strict=True):
            w |= found.layer
            if step.decides and self.wiring.streams[step.stream].grows:
                usual[step.stream] = found.list_usual_units()
                for k in ups.clients:
                    picks[k][step.stream] = found.places[k].sort()[0]
        w |= self.average_last_layers(ups)
        w |= ups.mean("statistics")
        in_order = {name: w[name] for name in server.w if name in w}
        return Server(in_order, picks, usual)

    def average_last_layers(self, ups: Uploads[Last]) -> Params:
        """The mean of the last layers, class by class or by all examples."""
        if self.last == "classes":
            return average_classes(ups.layer, ups.counts, ups.n)
        mean: Params = ups.mean("layer")
        return mean

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w, server.picks.get(k, server.usual))

    def send_own_units(self, server: Server, k: int) -> Down:
        """At the beginning of a round a client is sent its own units alone."""
        w, picks = self.send(server, k)
        return Down(take_units(w, self.wiring, picks), {})

    def expected_upload(self, down: Down | Matched, t: int) -> dict[str, Params]:
        if isinstance(down, Down):
            own = take_units(down.w, self.wiring, down.picks)
            return {"layer": take_layers(own, self.wiring.steps[0])}
        like = next(iter(down.layer.values()))
        expected = {name: like.new_zeros(size) for name, size in down.sizes.items()}
        return {"layer": expected}

    # ---------------------------------------------------------------- what clients do
    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep({})

    @one_by_one
    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Train the client's network, of the size that all clients' have; send its first layer."""
        own = take_units(down.w, self.wiring, down.picks)
        w = c.train(c.loss, own)
        first = self.wiring.steps[0]
        return Up(take_layers(w, first)), Keep(w)

    @one_by_one
    def retrain(self, c: Client, down: Matched, keep: Keep) -> tuple[Up, Keep]:
        """Train the layers behind the matched ones; send the next."""
        w = self.train_layers_behind(c, down, keep)
        following = self.wiring.steps[down.step + 1]
        return Up(take_layers(w, following)), Keep(w)

    @one_by_one
    def finish(self, c: Client, down: Matched, keep: Keep) -> tuple[Last, Keep]:
        """Train the last layer, and send it."""
        w = self.train_layers_behind(c, down, keep)
        last = take_layers(w, self.wiring.steps[-1])
        return Last(last, c.counts, take_statistics(w)), Keep({})

    def train_layers_behind(self, c: Client, down: Matched, keep: Keep) -> Params:
        """Put the matched layer in, reorder what reads its units, and train the layers behind."""
        w = keep.w
        step = self.wiring.steps[down.step]
        if step.decides:
            w = place_units(w, self.wiring, step.stream, down.places, down.width)
        behind = self.wiring.layers_after(down.step)
        return c.train(c.loss, w | learned(down.layer), only=behind)

    # ---------------------------------------------------------------- the models
    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        if self.finetune:
            return c.train(c.loss, down.w, epochs=self.finetune)
        return down.w

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return keep.w

    def shared(self, server: Server) -> Params:
        return server.w
