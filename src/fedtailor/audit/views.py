"""What an attacker compares: the victim's upload, and what candidate images would have uploaded.

The attacker knows the method's code, the network, the plan of local training (learning rate, steps,
batch) and the number of examples. So it runs the method's own client function on candidate images,
step for step, through ``torch.func``: the simulated upload has a gradient by the images. The order
of the examples does not matter in one epoch; of later epochs the attacker has to guess it.

What the attacker does not know is the private state of the client. A view says what it takes
instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.audit.algebra import recover_personal_head
from fedtailor.audit.record import Recording, Upload, change_of, compare_upload
from fedtailor.client import Client, Examples
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, Tree, part, tensors
from fedtailor.methods.fedcp import FedCP
from fedtailor.methods.gpfl import GPFL

STREAM = 99  # of the attacker's randomness, apart from the run's

Candidate = Callable[
    [Tensor, Tensor], Params
]  # images and labels to a simulated change


@dataclass(frozen=True)
class View:
    """One way to look at an upload."""

    name: str
    about: str  # what the attacker takes for what it does not know
    target: Params  # the victim's change, by name
    simulate: Candidate


def make_client(recording: Recording, x: Tensor, y: Tensor, t: int) -> Client:
    """A client that has the candidate images, and trains differentiably."""
    n = len(x)
    examples = Examples(
        all_x=x,
        all_y=y,
        row=None,
        index=torch.arange(n),
        n=n,
        classes=recording.world.federation.classes,
    )
    rng = Rng.seed(recording.world.seed, STREAM, recording.k)
    settings = recording.runner.settings
    return Client(settings, examples, examples, rng, t, vmapped=True)


def make_view(
    recording: Recording, upload: Upload, name: str, about: str, keep: Tree
) -> View:
    """The view of an attacker who takes ``keep`` for the private state."""
    method = recording.method
    function = getattr(method, upload.function)
    down = recording.received(upload)
    target = change_of(method, upload)

    def simulate(x: Tensor, y: Tensor) -> Params:
        client = make_client(recording, x, y, upload.t)
        up, _ = function(client, down, keep)
        change = compare_upload(method, upload.down, up, upload.t)
        return {name: change[name] for name in target}

    return View(name, about, target, simulate)


def list_views(recording: Recording, upload: Upload) -> list[View]:
    """All views of an upload that differ in what the attacker takes for the private state."""
    known = recording.state_before(upload).keep
    if known is None:
        about = "nothing is private: the training is simulated exactly"
        return [make_view(recording, upload, "simulated", about, None)]
    guess = guess_private_state(recording, upload)
    guesses = [Guess(*describe_guess(recording), guess)]
    if isinstance(recording.method, FedCP):
        guesses.append(guess_recovered_head(recording, upload))
    worst = "the worst case: the attacker knows the private part"
    guesses.append(Guess("private part known", worst, known))
    views = []
    for i, (name, about, keep) in enumerate(guesses):
        if not any(is_same(keep, other.keep) for other in guesses[:i]):
            views.append(make_view(recording, upload, name, about, keep))
    if isinstance(recording.method, GPFL):
        views += list_pseudo_views(recording, upload)
    return views


class Guess(NamedTuple):
    """What an attacker takes for the private state."""

    name: str
    about: str
    keep: Tree


def is_same(a: Tree, b: Tree) -> bool:
    """Whether two private states hold the same values."""
    ours = tensors(a)
    theirs = tensors(b)
    if len(ours) != len(theirs):
        return False
    return all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


def describe_guess(recording: Recording) -> tuple[str, str]:
    """Name and description of the attacker's first guess."""
    if isinstance(recording.method, FedCP):
        return "blended head", "the personal head is taken for the global one"
    return "private part guessed", "the private part is taken for a new client's"


def guess_private_state(recording: Recording, upload: Upload) -> Tree:
    """The first private state of a client that nobody has seen, from what the server has."""
    method = recording.method
    stranger = make_stranger(recording, upload)
    given = method.given(recording.server)
    if given is None or isinstance(method, FedCP):  # whose guess is the global head
        return method.first_keep(stranger, recording.received(upload))
    return method.keep_given(stranger, given)


def make_stranger(recording: Recording, upload: Upload) -> Client:
    """A client of which nothing is known."""
    x = torch.zeros(1, *recording.world.federation.shape)
    y = torch.zeros(1, dtype=torch.int64)
    return make_client(recording, x, y, upload.t)


# ---------------------------------------------------------------- FedCP
def guess_recovered_head(recording: Recording, upload: Upload) -> Guess:
    """FedCP: the head that training began with, from the upload before by Eq. (6).

    Before the first upload it is W^hd,0, which everybody was given.
    """
    method = recording.method
    assert isinstance(method, FedCP)
    head = part(method.given(recording.server), "head")
    calls = [old for old in recording.uploads if old.function == upload.function]
    earlier = [old for old in calls if old.t < upload.t]
    if earlier:
        head = recover_personal_head(earlier[-1].down, earlier[-1].up)
    keep = method.keep_head(make_stranger(recording, upload), head)
    about = "the personal head is computed from the upload before, Eq. (6)"
    return Guess("recovered head", about, keep)


# ---------------------------------------------------------------- GPFL
def list_pseudo_views(recording: Recording, upload: Upload) -> list[View]:
    """GPFL: the pseudo extractor and the pseudo model of Eq. (12) and (13).

    The change of the whole local training is taken for one gradient.
    """
    target = change_of(recording.method, upload)
    base = {name: value for name, value in target.items() if name.startswith("base/")}
    model = PseudoModel(recording, upload)
    return [
        View(
            "pseudo model",
            "the change is one gradient of Eq. (13), the cosine to the embeddings",
            target,
            model.gradient,
        ),
        View(
            "pseudo extractor",
            "as before, by the change of the extractor alone",
            base,
            model.gradient_of_base,
        ),
    ]


class PseudoModel:
    """GPFL's global route as a classifier: logit_u = sim(f^G, GCE(u)), Eq. (13)."""

    def __init__(self, recording: Recording, upload: Upload) -> None:
        self._model = recording.runner.settings.net
        self._down = recording.received(upload)
        self._method = recording.method

    def gradient(self, x: Tensor, y: Tensor) -> Params:
        """The descent direction of the angle-level loss on a batch."""
        down = self._down
        start = {**down.base, **down.valve, **down.embed}
        w = {name: value.detach().requires_grad_() for name, value in start.items()}
        embeddings = w["embed.weight"]
        g = down.embed["embed.weight"].mean(0)  # Eq. (5)
        f = self._model.base(w, x)
        (f_global,) = self._model.valve(w, f, g)
        cosine = F.normalize(f_global, dim=-1) @ F.normalize(embeddings, dim=-1).T
        loss = F.cross_entropy(cosine, y)
        found = torch.autograd.grad(loss, list(w.values()), create_graph=True)
        change: Params = {}
        for name, value in zip(w, found, strict=True):
            change[f"{name.split('.')[0]}/{name}"] = -value
        return change

    def gradient_of_base(self, x: Tensor, y: Tensor) -> Params:
        """The part of the extractor."""
        found = self.gradient(x, y)
        return {n: value for n, value in found.items() if n.startswith("base/")}
