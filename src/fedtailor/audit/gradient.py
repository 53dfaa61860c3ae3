"""Gradient leakage: images whose simulated upload is like the victim's.

Three attacks, all on the same views (``audit/views.py``):

* DLG (Zhu et al., 2019): squared distance, L-BFGS, labels are searched for as well.
* iDLG (Zhao et al., 2020): the same with labels inferred first.
* Inverting gradients (Geiping et al., 2020): 1 - cosine plus total variation, Adam on the signs of
  the gradient, labels inferred first, best of several restarts.

Of several attempts the attacker takes the one that matches best; it cannot see the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from scipy.optimize import nnls
from torch import Tensor

from fedtailor.audit.images import pair_up, psnr, ssim, to_unit, total_variation
from fedtailor.audit.views import STREAM, View
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params

Kind = Literal["dlg", "idlg", "inverting"]
KINDS: tuple[Kind, ...] = ("inverting", "idlg", "dlg")
LBFGS_STEPS = 20  # evaluations in one of its steps, as in DLG
SHORT = 4  # a trial search is so many times shorter
DECAYS = (3 / 8, 5 / 8, 7 / 8)  # of the iterations, where Adam's step shrinks tenfold


@dataclass(frozen=True)
class Search:
    """How hard an attacker tries."""

    iterations: int = 400
    restarts: int = 6
    step: float = 0.1  # Adam's
    smoothness: float = 1e-3  # weight of the total variation
    seed: int = 0


@dataclass(frozen=True)
class Task:
    """What is searched for."""

    shape: tuple[int, ...]  # of one input
    n: int  # inputs
    classes: int
    low: float  # the range of the values
    high: float

    @property
    def middle(self) -> float:
        """Grey."""
        return (self.low + self.high) / 2


@dataclass(frozen=True)
class Attempt:
    """What one search found."""

    x: Tensor
    labels: Tensor
    loss: float  # between the two uploads; what the attacker sees


# ---------------------------------------------------------------- distances
def flatten(change: Params) -> Tensor:
    """All values as one vector."""
    return torch.cat([value.flatten() for value in change.values()])


def cosine_distance(found: Params, target: Params) -> Tensor:
    """1 - cosine: blind to the length, which the number of steps changes."""
    a = flatten(found)
    b = flatten(target)
    lengths: Tensor = a.norm() * b.norm()
    return 1 - (a @ b) / lengths.clamp(min=1e-30)


def square_distance(found: Params, target: Params) -> Tensor:
    """Squared distance relative to the target's squared length."""
    a = flatten(found)
    b = flatten(target)
    return (a - b).square().sum() / b.square().sum().clamp(min=1e-30)


# ---------------------------------------------------------------- labels
def infer_class_shares(view: View, inputs: list[Tensor]) -> Tensor:
    """Shares of the classes, by taking the upload for a mixture of one-class uploads.

    For every class the training is simulated with all inputs labelled so; the non-negative mixture
    that fits the upload best gives the shares. With one example this is iDLG's rule: its class is
    the one whose row of the last layer moves the right way. Layers with a row for every class say
    most; without such layers all count.

    Args:
        view: the upload.
        inputs: for every class, as many inputs as the victim has: noise, or public data.
    """
    classes = len(inputs)
    names = [n for n, value in view.target.items() if value.shape[:1] == (classes,)]
    names = names or list(view.target)
    columns = []
    for label, x in enumerate(inputs):
        labels = torch.full((len(x),), label, dtype=torch.int64)
        change = view.simulate(x, labels)
        columns.append(flatten({name: change[name].detach() for name in names}))
    target = flatten({name: view.target[name] for name in names})
    weights, _ = nnls(torch.stack(columns, 1).double().numpy(), target.double().numpy())
    total = weights.sum()
    if not total > 0:
        return torch.full((classes,), 1 / classes)
    return torch.tensor(weights / total)


def labels_from_shares(shares: Tensor, n: int) -> Tensor:
    """n labels with about these shares (largest remainders)."""
    exact = shares.double() * n
    counts = exact.floor()
    missing = n - int(counts.sum())
    order = torch.argsort(exact - counts, descending=True, stable=True)
    counts[order[:missing]] += 1
    return torch.repeat_interleave(torch.arange(len(shares)), counts.long())


def infer_labels(view: View, task: Task, rng: Rng) -> Tensor:
    """The labels that the upload suggests, with noise for inputs."""
    inputs = [draw_noise(task, rng.fold(label)) for label in range(task.classes)]
    return labels_from_shares(infer_class_shares(view, inputs), task.n)


def draw_noise(task: Task, rng: Rng) -> Tensor:
    """Where a search begins: a grey with noise."""
    noise = rng.normal(task.n, *task.shape)
    spread = (task.high - task.low) / 4
    return (task.middle + spread * noise).clamp(task.low, task.high)


# ---------------------------------------------------------------- searches
def invert(
    view: View, task: Task, search: Search, labels: Tensor, x: Tensor
) -> Attempt:
    """Inverting gradients: cosine and total variation, Adam on signs, values kept in range."""
    x = x.clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=search.step * (task.high - task.low) / 2)
    milestones = [int(share * search.iterations) for share in DECAYS]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones)
    best = Attempt(x.detach().clone(), labels, float("inf"))
    for _ in range(search.iterations):
        distance = cosine_distance(view.simulate(x, labels), view.target)
        if distance.item() < best.loss:
            best = Attempt(x.detach().clone(), labels, distance.item())
        loss = distance + search.smoothness * total_variation(x)
        (gradient,) = torch.autograd.grad(loss, [x])
        x.grad = gradient.sign()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(task.low, task.high)
    return best


def invert_from_best_start(
    view: View, task: Task, search: Search, labels: Tensor, rng: Rng
) -> Attempt:
    """A short search from every start, and a long one from where the best of them ended."""
    short = replace(search, iterations=max(1, search.iterations // SHORT))
    attempts = []
    for i in range(search.restarts):
        start = draw_noise(task, rng.fold(i))
        attempts.append(invert(view, task, short, labels, start))
    best = min(attempts, key=loss_of)
    return min(best, invert(view, task, search, labels, best.x), key=loss_of)


def loss_of(attempt: Attempt) -> float:
    """What the attacker sees of an attempt."""
    return attempt.loss


def match(
    view: View, task: Task, search: Search, labels: Tensor | None, rng: Rng
) -> Attempt:
    """DLG, or iDLG where labels are given: squared distance, L-BFGS."""
    x = draw_noise(task, rng).requires_grad_()
    logits = rng.fold(1).normal(task.n, task.classes).requires_grad_()
    variables = [x] if labels is not None else [x, logits]
    optimiser = torch.optim.LBFGS(
        variables,
        max_iter=LBFGS_STEPS,
        history_size=LBFGS_STEPS,
        line_search_fn="strong_wolfe",
    )
    best = [Attempt(x.detach().clone(), logits.argmax(-1), float("inf"))]

    def evaluate() -> Tensor:
        target = logits.softmax(-1) if labels is None else labels
        distance = square_distance(view.simulate(x, target), view.target)
        if distance.item() < best[0].loss:
            found = logits.argmax(-1) if labels is None else labels
            best[0] = Attempt(x.detach().clone(), found.detach(), distance.item())
        gradients = torch.autograd.grad(distance, variables, retain_graph=False)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.grad = gradient
        return distance.detach()

    for _ in range(max(1, search.iterations // LBFGS_STEPS)):
        optimiser.step(evaluate)  # type: ignore[no-untyped-call]
    found = best[0]
    return Attempt(found.x.clamp(task.low, task.high), found.labels, found.loss)


def attack(kind: Kind, view: View, task: Task, search: Search) -> Attempt:
    """The best of several restarts."""
    rng = Rng.seed(search.seed, STREAM)
    if kind == "inverting":
        labels = infer_labels(view, task, rng)
        return invert_from_best_start(view, task, search, labels, rng.fold(1))
    known = None if kind == "dlg" else infer_labels(view, task, rng)
    attempts = []
    for i in range(search.restarts):
        attempts.append(match(view, task, search, known, rng.fold(1000 + i)))
    return min(attempts, key=loss_of)


# ---------------------------------------------------------------- how well it did
@dataclass(frozen=True)
class Outcome:
    """An attempt beside the truth."""

    attack: str
    view: str
    about: str
    loss: float
    psnr: float  # mean over the originals
    ssim: float | None  # of images
    best_psnr: float
    labels_right: float  # share of the labels, as counts
    pictures: Tensor  # for every original, what is taken for it


def judge(
    kind: str, view: View, task: Task, attempt: Attempt, truth: tuple[Tensor, Tensor]
) -> Outcome:
    """Compare what was found with the originals."""
    originals, labels = truth
    chosen = attempt.x[pair_up(attempt.x, originals)]
    ours = to_unit(chosen, task.low, task.high)
    theirs = to_unit(originals, task.low, task.high)
    pairs = list(zip(ours, theirs, strict=True))
    quality = [psnr(a, b) for a, b in pairs]
    is_image = originals.dim() == 4
    likeness = [ssim(a, b) for a, b in pairs] if is_image else []
    return Outcome(
        attack=kind,
        view=view.name,
        about=view.about,
        loss=attempt.loss,
        psnr=mean(quality),
        ssim=mean(likeness) if likeness else None,
        best_psnr=max(quality),
        labels_right=agreement_of_labels(attempt.labels, labels, task.classes),
        pictures=chosen,
    )


def agreement_of_labels(found: Tensor, truth: Tensor, classes: int) -> float:
    """The share of labels that are right, whatever their order."""
    ours = torch.bincount(found, minlength=classes)
    theirs = torch.bincount(truth, minlength=classes)
    return float(torch.minimum(ours, theirs).sum()) / max(len(truth), 1)


def mean(values: list[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)
