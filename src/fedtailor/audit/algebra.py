"""What an upload gives away by algebra alone: no search, no training, a few lines each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedtailor.audit.record import Recording
from fedtailor.core.tree import Params, add, rename
from fedtailor.executors.world import AnyMethod
from fedtailor.methods.fed3p2p import Fed3p2p
from fedtailor.methods.fedcp import Down as FedCPDown
from fedtailor.methods.fedcp import FedCP
from fedtailor.methods.fedcp import Up as FedCPUp
from fedtailor.methods.fedproto import FedProto
from fedtailor.methods.gpfl import GPFL
from fedtailor.methods.gpfl import Down as GPFLDown
from fedtailor.methods.pacfl import PACFL
from fedtailor.methods.pfedc import PFedC

FITS = 50  # of the decay and the rank-2 change in turn; it settles after a few


@dataclass(frozen=True)
class Finding:
    """Something private that the server can compute."""

    name: str  # as the method's ``reveals`` names it
    how: str
    error: float  # the measure says of what
    measure: str
    is_found: bool
    recovered: list[float] = field(default_factory=list)  # where it is a short list
    truth: list[float] = field(default_factory=list)


def find_by_algebra(recording: Recording) -> list[Finding]:
    """All that is known to follow from the victim's uploads."""
    found = []
    for kind, recover in RECOVERIES:
        if isinstance(recording.method, kind):
            found.append(recover(recording))
    return found


def true_shares(recording: Recording) -> Tensor:
    """Shares of the classes in the victim's training data."""
    counts = recording.runner.client(recording.k, 1).counts
    return counts / counts.sum().clamp(min=1)


# ---------------------------------------------------------------- FedCP
def recover_personal_head(down: FedCPDown, up: FedCPUp) -> Params:
    """Eq. (6) solved for the personal head: W_i^hd = 2 Ŵ_i^hd - W^hd."""
    head = add(up.shared, down.shared, -1.0)
    doubled = add(up.shared, head)
    return rename(doubled, "shared", "head")


def find_personal_head(recording: Recording) -> Finding:
    """FedCP's personal head."""
    upload = recording.last("local")
    head = recover_personal_head(upload.down, upload.up)
    true_head = recording.runner.load(recording.k).keep.head
    gaps = [float((head[name] - true_head[name]).abs().max()) for name in head]
    error = max(gaps, default=0.0)
    return Finding(
        name="personal head",
        how=recording.method.reveals["personal head"],
        error=error,
        measure="largest difference of a weight",
        is_found=bool(head) and error < 1e-5,
    )


# ---------------------------------------------------------------- GPFL
def recover_class_shares(down: GPFLDown, up: GPFLDown) -> Tensor:
    """alpha_i, from how the valve changed.

    The valve sees two inputs only, g and p_i, so its matrices and biases change on the span of
    (g, 1) and (p_i, 1), and decay elsewhere. In it, what has a 0 at the end is a multiple of p_i -
    g, which is (alpha_i - 1/U) C. Its length is fixed by the rarest class, of which the client is
    taken to have none, and its sign by the embeddings: those of frequent classes change most.
    """
    embeddings = down.embed["embed.weight"].double()
    classes = len(embeddings)
    change, decay = valve_change(down.valve, up.valve)
    _, _, axes = torch.linalg.svd(change, full_matrices=False)
    first, second = axes[:2]
    direction = second[-1] * first - first[-1] * second
    coefficients = direction[:-1] @ torch.linalg.pinv(embeddings)
    coefficients = coefficients - coefficients.mean()
    moved = up.embed["embed.weight"].double() - decay * embeddings
    activity = moved.norm(dim=1)
    best = torch.zeros(classes, dtype=torch.float64)
    agreement = float("-inf")
    for sign in (1.0, -1.0):
        shares = shares_along(sign * coefficients)
        fit = float(torch.corrcoef(torch.stack([shares, activity]))[0, 1])
        if fit > agreement:
            best = shares
            agreement = fit
    return best


def shares_along(direction: Tensor) -> Tensor:
    """1/U plus the multiple of a direction for which the smallest share is 0."""
    uniform = 1 / len(direction)
    length = uniform / (-direction.min()).clamp(min=1e-300)
    return uniform + length * direction


def valve_change(before: Params, after: Params) -> tuple[Tensor, float]:
    """How the first layers of the valve changed beside weight decay: [matrix | bias], stacked.

    Also gives what decay left of every weight.
    """
    start = torch.cat([first_layer(before, i) for i in (0, 1)])
    end = torch.cat([first_layer(after, i) for i in (0, 1)])
    decay = 1.0
    change = end - start
    for _ in range(FITS):
        u, s, v = torch.linalg.svd(end - decay * start, full_matrices=False)
        change = (u[:, :2] * s[:2]) @ v[:2]
        decay = float(((end - change) * start).sum() / start.square().sum())
    return change, decay


def first_layer(valve: Params, i: int) -> Tensor:
    """Matrix and bias of CoV_gamma (0) or CoV_beta (1)."""
    weight = valve[f"valve.two.{i}.0.weight"].double()
    bias = valve[f"valve.two.{i}.0.bias"].double()
    return torch.cat([weight, bias[:, None]], 1)


def find_class_shares(recording: Recording) -> Finding:
    """GPFL's alpha_i."""
    method = recording.method
    assert isinstance(method, GPFL)
    truth = true_shares(recording)
    if method.without & {"pci", "gce", "cov"}:
        shares = torch.full_like(truth, 1 / len(truth)).double()
    else:
        upload = recording.last("local")
        shares = recover_class_shares(upload.down, upload.up)
    error = float((shares - truth).abs().max())
    return Finding(
        name="class shares",
        how=method.reveals["class shares"],
        error=error,
        measure="largest difference of a share",
        is_found=error < 0.05,
        recovered=to_list(shares),
        truth=to_list(truth),
    )


# ---------------------------------------------------------------- what is sent as it is
def find_owned_tasks(recording: Recording) -> Finding:
    """pFedC's pi_i: which tasks (classes) the client has."""
    method = recording.method
    assert isinstance(method, PFedC)
    upload = recording.last("local")
    recovered = (upload.up.weight > 0).float()
    client = recording.runner.client(recording.k, upload.t)
    _, examples = method.survey(client)
    truth = (examples > 0).float()
    return Finding(
        name="owned tasks",
        how=method.reveals["owned tasks"],
        error=float((recovered != truth).float().mean()),
        measure="share of tasks that are told wrongly",
        is_found=bool(torch.equal(recovered, truth)),
        recovered=to_list(recovered),
        truth=to_list(truth),
    )


def find_class_counts(recording: Recording) -> Finding:
    """Fed3+2p's label counts."""
    upload = next(old for old in recording.uploads if hasattr(old.up, "labels"))
    return compare_counts(recording, upload.up.labels)


def find_prototype_counts(recording: Recording) -> Finding:
    """FedProto's numbers of examples behind its class means."""
    upload = recording.last("local")
    return compare_counts(recording, upload.up.weight)


def compare_counts(recording: Recording, counts: Tensor) -> Finding:
    """Counts that were sent, against the true ones."""
    truth = recording.runner.client(recording.k, 1).counts
    error = float((counts - truth).abs().max())
    return Finding(
        name="class counts",
        how=recording.method.reveals["class counts"],
        error=error,
        measure="largest difference of a count",
        is_found=error < 0.5,
        recovered=to_list(counts),
        truth=to_list(truth),
    )


# ---------------------------------------------------------------- PACFL
def find_directions_of_data(recording: Recording) -> Finding:
    """PACFL's principal directions: the first of a class looks like its mean image."""
    upload = recording.last("span")
    closeness = []
    for image in mean_images(recording):
        cosines = upload.up.basis @ (image / image.norm().clamp(min=1e-12))
        closeness.append(float(cosines.abs().max()))
    error = 1 - sum(closeness) / max(len(closeness), 1)
    return Finding(
        name="class images",
        how=recording.method.reveals["class images"],
        error=error,
        measure="1 - cosine between a class's mean image and the nearest direction",
        is_found=error < 0.1,
        recovered=closeness,
    )


def mean_images(recording: Recording) -> list[Tensor]:
    """The mean of every class that the victim has, as brightness above black."""
    client = recording.runner.client(recording.k, 1)
    x = client.x.flatten(1)
    if client.x.dim() == 4:
        x = x + 1
    return [x[client.y == y].mean(0) for y in torch.unique(client.y).tolist()]


def to_list(values: Tensor) -> list[float]:
    """Numbers for a report."""
    return [round(float(value), 6) for value in values]


Recover = Callable[[Recording], Finding]
RECOVERIES: Sequence[tuple[type[AnyMethod], Recover]] = (
    (FedCP, find_personal_head),
    (GPFL, find_class_shares),
    (PFedC, find_owned_tasks),
    (Fed3p2p, find_class_counts),
    (FedProto, find_prototype_counts),
    (PACFL, find_directions_of_data),
)
