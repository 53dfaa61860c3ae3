"""FedCP Table 9 and GPFL Table 5 in the papers' own procedure, and what their numbers mean.

The procedure is that of PFLlib, by the same authors; the papers' own code for it was never
published. Per client: the difference between the global and the uploaded parameters, which is the
sum of all steps of an epoch, is taken for one gradient. Dummy inputs (through a sigmoid) and dummy
outputs start as normal noise, and L-BFGS (learning rate 1, no line search) moves the gradient of
their mean squared error, at the uploaded parameters, towards the difference. The targets are the
client's first two batches of ten. The PSNR is 20 log10(1 / sqrt(MSE / 3)): the 3 adds 4.77 dB, and
the peak is 1 although images lie in [-1, 1], half of which no sigmoid can reach.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.audit.algebra import recover_personal_head
from fedtailor.audit.gradient import Search
from fedtailor.audit.record import Recording, Say, Upload, record, training_images
from fedtailor.audit.views import STREAM
from fedtailor.core.errors import writing
from fedtailor.core.rng import Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare
from fedtailor.storage.files import write_bytes

BATCH = 10
BATCHES = 2
EVALUATIONS = 20  # of a step of torch's L-BFGS

Model = Callable[[Params, Tensor], Tensor]  # parameters and inputs to outputs


class Attacked(NamedTuple):
    """What is attacked of an upload."""

    before: Params  # what the client was sent
    after: Params  # what it sent back
    model: Model


class Row(NamedTuple):
    """One entry of a table."""

    name: str  # as the paper has it
    method: str
    theirs: float | None  # dB
    select: Callable[[Recording, Upload], Attacked]


@dataclass(frozen=True)
class Measured:
    """Our numbers for one entry, in the papers' measure (dB)."""

    name: str
    theirs: float | None
    ours: float
    start: float  # of the noise that the same search began with
    grey: float  # of plain grey, without any attack
    white: float  # of constant 0.5
    limit: float  # the best that any picture within the sigmoid's range can have
    distance_before: float
    distance_after: float


# ---------------------------------------------------------------- what is attacked
def extractor(recording: Recording, upload: Upload) -> Attacked:
    """The feature extractor alone ("-fe")."""
    net = recording.runner.settings.net
    return Attacked(
        before=take(upload.down, "base."),
        after=take(upload.up, "base."),
        model=lambda w, x: net.base(w, x),
    )


def whole_model(recording: Recording, upload: Upload) -> Attacked:
    """Extractor and head, as FedAvg and FedRoD send them."""
    net = recording.runner.settings.net
    return Attacked(
        before=take(upload.down, "base.", "head."),
        after=take(upload.up, "base.", "head."),
        model=lambda w, x: net.head(w, net.base(w, x)),
    )


def blended_head(recording: Recording, upload: Upload) -> Attacked:
    """FedCP's extractor and blended head, Eq. (6)."""
    net = recording.runner.settings.net
    return Attacked(
        before=take(upload.down, "base.", "shared."),
        after=take(upload.up, "base.", "shared."),
        model=lambda w, x: net.shared(w, net.base(w, x)),
    )


def recovered_head(recording: Recording, upload: Upload) -> Attacked:
    """FedCP's extractor and the personal head computed from the blended one."""
    net = recording.runner.settings.net
    head = recover_personal_head(upload.down, upload.up)
    before = take(upload.down, "base.", "shared.")
    renamed = {name.replace("shared.", "head."): x for name, x in before.items()}
    return Attacked(
        before=renamed,
        after=take(upload.up, "base.") | head,
        model=lambda w, x: net.head(w, net.base(w, x)),
    )


def pseudo_extractor(recording: Recording, upload: Upload) -> Attacked:
    """GPFL's extractor and valve on the global route ("-sfe")."""
    net = recording.runner.settings.net
    g = upload.up.embed["embed.weight"].mean(0)

    def model(w: Params, x: Tensor) -> Tensor:
        (features,) = net.valve(w, net.base(w, x), g)
        found: Tensor = features
        return found

    return Attacked(
        before=take(upload.down, "base.", "valve."),
        after=take(upload.up, "base.", "valve."),
        model=model,
    )


def pseudo_model(recording: Recording, upload: Upload) -> Attacked:
    """The same with logits by Eq. (13), the cosine to the embeddings ("-sm")."""
    route = pseudo_extractor(recording, upload).model

    def model(w: Params, x: Tensor) -> Tensor:
        features = F.normalize(route(w, x), dim=-1)
        return features @ F.normalize(w["embed.weight"], dim=-1).T

    names = ("base.", "valve.", "embed.")
    return Attacked(take(upload.down, *names), take(upload.up, *names), model)


def take(message: object, *prefixes: str) -> Params:
    """The parameters in a message whose names begin so."""
    found: Params = {}
    for value in message:  # type: ignore[attr-defined]
        if isinstance(value, dict):
            chosen = {n: x for n, x in value.items() if n.startswith(prefixes)}
            found |= chosen
    return found


TABLES: dict[str, tuple[Row, ...]] = {
    "fedcp/t9": (
        Row("FedAvg", "fedavg", 7.30, whole_model),
        Row("FedPer", "fedper", 7.94, extractor),
        Row("FedCP (blended head)", "fedcp", 6.94, blended_head),
        Row("FedCP (head recovered)", "fedcp", None, recovered_head),
    ),
    "gpfl/t5": (
        Row("Per-fe", "fedper", 7.94, extractor),
        Row("Rep-fe", "fedrep", 7.73, extractor),
        Row("Avg-fe", "fedavg", 6.92, extractor),
        Row("Avg", "fedavg", 7.30, whole_model),
        Row("RoD-fe", "fedrod", 6.82, extractor),
        Row("RoD", "fedrod", 7.48, whole_model),
        Row("GPFL-fe", "gpfl", 6.56, extractor),
        Row("GPFL-sfe", "gpfl", 6.41, pseudo_extractor),
        Row("GPFL-sm", "gpfl", 6.71, pseudo_model),
    ),
}


# ---------------------------------------------------------------- the papers' measure and attack
def papers_psnr(found: Tensor, original: Tensor) -> float:
    """20 log10(1 / sqrt(MSE / 3)), as in PFLlib."""
    error = float(F.mse_loss(found, original))
    return 20 * math.log10(1 / math.sqrt(max(error, 1e-30) / 3))


class Found(NamedTuple):
    """What one search gave."""

    start: Tensor
    end: Tensor
    distance_before: float
    distance_after: float


def match_epoch(attacked: Attacked, like: Tensor, evaluations: int, rng: Rng) -> Found:
    """The papers' attack: one gradient for the difference of a whole epoch, Eq. (12)."""
    w = {n: x.detach().clone().requires_grad_() for n, x in attacked.after.items()}
    difference = {n: attacked.before[n] - attacked.after[n] for n in w}
    with torch.no_grad():
        outputs = attacked.model(w, like)
    dummy = rng.normal(*like.shape).requires_grad_()
    answer = rng.fold(1).normal(*outputs.shape).requires_grad_()
    optimiser = torch.optim.LBFGS([dummy, answer])
    distances: list[float] = []
    start = dummy.detach().sigmoid()
    ends = [start]

    def evaluate() -> Tensor:
        loss = F.mse_loss(attacked.model(w, dummy.sigmoid()), answer)
        gradient = torch.autograd.grad(
            loss, list(w.values()), create_graph=True, materialize_grads=True
        )
        gaps = [
            (g - difference[name]).square().sum()
            for name, g in zip(w, gradient, strict=True)
        ]
        distance = torch.stack(gaps).sum()
        variables = [dummy, answer]
        slopes = torch.autograd.grad(distance, variables, materialize_grads=True)
        for variable, slope in zip(variables, slopes, strict=True):
            variable.grad = slope
        distances.append(distance.item())
        return distance.detach()

    for _ in range(max(1, evaluations // EVALUATIONS)):
        optimiser.step(evaluate)  # type: ignore[no-untyped-call]
        picture = dummy.detach().sigmoid()
        if bool(picture.isfinite().all()):  # PFLlib skips NaN as well
            ends.append(picture)
    return Found(start, ends[-1], distances[0], distances[-1])


def measure_row(row: Row, recording: Recording, search: Search) -> Measured:
    """Our number for one entry, and the levels that say what it means."""
    upload = recording.last_trained()
    images, _ = training_images(recording)
    attacked = row.select(recording, upload)
    rng = Rng.seed(search.seed, STREAM, recording.k)
    found: list[Found] = []
    targets = []
    for i in range(BATCHES):
        batch = images[i * BATCH : (i + 1) * BATCH]
        if not len(batch):
            break
        targets.append(batch)
        found.append(match_epoch(attacked, batch, search.iterations, rng.fold(i)))
    truth = torch.cat(targets)
    return Measured(
        name=row.name,
        theirs=row.theirs,
        ours=papers_psnr(torch.cat([f.end for f in found]), truth),
        start=papers_psnr(torch.cat([f.start for f in found]), truth),
        grey=papers_psnr(torch.zeros_like(truth), truth),
        white=papers_psnr(torch.full_like(truth, 0.5), truth),
        limit=papers_psnr(truth.clamp(0, 1), truth),
        distance_before=sum(f.distance_before for f in found) / len(found),
        distance_after=sum(f.distance_after for f in found) / len(found),
    )


# ---------------------------------------------------------------- the table
def repeat_table(
    name: str, k: int, search: Search, folder: Path, data_dir: Path | None, say: Say
) -> list[Path]:
    """Repeat a paper's table for client k after the first round; writes JSON and Markdown."""
    rows = []
    recordings: dict[str, Recording] = {}
    for row in TABLES[name]:
        if row.method not in recordings:
            say(f"{name}: {row.method} on cifar100")
            recordings[row.method] = play(row.method, k, data_dir)
        recording = recordings[row.method]
        with torch_settings():
            measured = measure_row(row, recording, search)
        rows.append(measured)
        say(f"  {row.name}: {measured.ours:.2f} dB, noise {measured.start:.2f} dB")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = {
        folder / "table.json": json.dumps([asdict(row) for row in rows], indent=1),
        folder / "table.md": compose_table(name, k, search, rows),
    }
    for path, text in files.items():
        write_bytes(path, text.encode())
    return list(files)


def play(method: str, k: int, data_dir: Path | None) -> Recording:
    """The first round of the papers' setting: Cifar100, Dir(0.1), 20 clients, batches of ten."""
    options = {
        "method": method,
        "data": "cifar100",
        "partition": "dirichlet:0.1",
        "clients": 20,
        "batch": BATCH,
        "data_dir": data_dir,
        "rounds": 2000,
    }
    return record(prepare(make_experiment(options)), k, 1, lambda _: None)


def compose_table(name: str, k: int, search: Search, rows: list[Measured]) -> str:
    """The table in Markdown, with a plain statement of what it means."""
    start = sum(row.start for row in rows) / len(rows)
    grey = sum(row.grey for row in rows) / len(rows)
    lines = [
        f"# {name}, the papers' procedure: client {k}, {search.iterations} evaluations",
        "",
        "| | paper, dB | ours, dB | its starting noise | plain grey | constant 0.5 | best possible"
        " | distance before | after |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        theirs = "" if row.theirs is None else f"{row.theirs:.2f}"
        lines.append(
            f"| {row.name} | {theirs} | {row.ours:.2f} | {row.start:.2f} | {row.grey:.2f}"
            f" | {row.white:.2f} | {row.limit:.2f} | {row.distance_before:.3g}"
            f" | {row.distance_after:.3g} |"
        )
    lines += [
        "",
        f"What it means: the search begins with noise, which has {start:.2f} dB in this"
        f" measure, and a grey card has {grey:.2f} dB.",
        "Numbers near the starting noise say that nothing was recovered; differences between"
        " methods of such a size",
        "rank noise, not privacy. That this attack fails does not make a method private: the real"
        " audit",
        "(`fedtailor audit RUN`) gives back the image of a client that trains on one.",
        "",
    ]
    return "\n".join(lines)
