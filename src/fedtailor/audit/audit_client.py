"""The whole audit of one client: play its run again, attack what left, and measure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedtailor.audit.algebra import Finding, find_by_algebra
from fedtailor.audit.gradient import (
    KINDS,
    Kind,
    Outcome,
    Search,
    Task,
    attack,
    draw_noise,
    judge,
)
from fedtailor.audit.images import psnr, to_unit
from fedtailor.audit.membership import MembershipScore, infer_members
from fedtailor.audit.properties import PropertyScore, infer_shares
from fedtailor.audit.record import (
    SEALED,
    Recording,
    Say,
    Upload,
    cut_training_data,
    record,
    training_images,
)
from fedtailor.audit.views import STREAM, View, list_views
from fedtailor.core.errors import UserError, unknown
from fedtailor.core.rng import Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.experiment.prepare import Setup

ATTACKS = ("gradient", "algebra", "membership", "property")
ROUNDS = (
    2  # played unless asked otherwise: FedCP's recovered head needs an earlier upload
)
ROUNDS_OF_MODELS = 10  # after which models are tested for what they remember
LARGE = 20  # examples from which on a search is ten times shorter


@dataclass(frozen=True)
class Plan:
    """What is tried, and how hard."""

    attacks: tuple[str, ...] = ATTACKS
    search: Search = Search()
    shadows: int = 8
    rounds: int | None = None  # that are played; by attack unless given

    def __post_init__(self) -> None:
        for name in self.attacks:
            if name not in ATTACKS:
                raise unknown("attack", name, ATTACKS)


@dataclass(frozen=True)
class Leak:
    """The gradient attacks on one upload."""

    victim: str
    examples: int
    t: int
    originals: Tensor
    limits: tuple[float, float]
    noise: float  # PSNR of a search's start
    grey: float  # PSNR of a plain grey picture
    iterations: int  # of a search
    restarts: int
    outcomes: list[Outcome]
    skipped: list[str]  # attacks that do not apply, with the reason


@dataclass
class Audit:
    """All that was found about one client."""

    method: str
    data: str
    client: int
    seed: int
    leaks: list[Leak] = field(default_factory=list)
    findings: list[Finding] | None = None
    membership: list[MembershipScore] | None = None
    rounds_of_models: int = 0
    shares: PropertyScore | None = None
    not_applicable: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def audit_client(setup: Setup, k: int, plan: Plan, say: Say = print) -> Audit:
    """Run the attacks of a plan on client k."""
    options = setup.options
    audit = Audit(options.method, options.data, k, options.seed)
    parts: dict[str, Callable[[], None]] = {
        "gradient": lambda: audit_gradients(audit, setup, plan, say),
        "algebra": lambda: audit_algebra(audit, setup, plan, say),
        "property": lambda: audit_properties(audit, setup, plan, say),
        "membership": lambda: audit_membership(audit, setup, plan, say),
    }
    for name, run in parts.items():
        if name not in plan.attacks:
            continue
        began = time.monotonic()
        try:
            run()
        except NotApplicable as reason:
            if plan.attacks == (name,):
                raise
            audit.not_applicable[name] = str(reason)
        audit.seconds[name] = round(time.monotonic() - began, 1)
    return audit


class NotApplicable(UserError):
    """An attack cannot be made on this method or these data."""


def rounds_to_play(setup: Setup, plan: Plan, usual: int) -> int:
    """As asked, or the usual number if the run has so many."""
    if plan.rounds is not None:
        return plan.rounds
    return min(usual, setup.options.rounds)


# ---------------------------------------------------------------- gradient leakage
def audit_gradients(audit: Audit, setup: Setup, plan: Plan, say: Say) -> None:
    """Attack the upload of a client with one example, and the one of the real run."""
    if not setup.world.federation.x.dtype.is_floating_point and is_text(setup):
        raise NotApplicable(
            "a gradient attack needs inputs that are numbers, not words"
        )
    rounds = rounds_to_play(setup, plan, ROUNDS)
    single = cut_training_data(setup, audit.client, 1)
    victims = [
        ("with one training example, first round", single, 1),
        (f"with one training example, round {rounds}", single, rounds),
        (f"as it is, round {rounds}", setup, rounds),
    ]
    if rounds == 1:
        victims.pop(1)
    for victim, experiment, t in victims:
        say(f"gradient leakage: client {audit.client} {victim}")
        recording = record(experiment, audit.client, t, lambda _: None)
        audit.leaks.append(attack_upload(recording, victim, plan.search, say))


def is_text(setup: Setup) -> bool:
    """Whether inputs are words by number."""
    return setup.world.federation.kind == "text"


def attack_upload(recording: Recording, victim: str, search: Search, say: Say) -> Leak:
    """All gradient attacks on the victim's newest upload."""
    upload = last_trained(recording)
    truth = training_images(recording)
    task = describe_task(recording, truth[0])
    kinds: tuple[Kind, ...] = KINDS
    if task.n > LARGE:
        kinds = ("inverting",)
        shorter = max(1, search.iterations // 10)
        search = replace(search, iterations=shorter, restarts=1)
    outcomes = []
    skipped = []
    world = recording.world
    with torch_settings(world.dtype, world.device):
        for view in list_views(recording, upload):
            for kind in kinds:
                outcome = try_attack(kind, view, task, search, truth)
                if isinstance(outcome, str):
                    skipped.append(outcome)
                    continue
                outcomes.append(outcome)
                say(describe_outcome(outcome))
        noise = draw_noise(task, Rng.seed(search.seed, STREAM).fold(1))
    started = compare(task, noise, truth[0])
    grey = compare(task, torch.full_like(truth[0], task.middle), truth[0])
    say(describe_levels(started, grey))
    return Leak(
        victim=victim,
        examples=task.n,
        t=upload.t,
        originals=truth[0],
        limits=(task.low, task.high),
        noise=started,
        grey=grey,
        iterations=search.iterations,
        restarts=search.restarts,
        outcomes=outcomes,
        skipped=skipped,
    )


def last_trained(recording: Recording) -> Upload:
    """The upload to attack."""
    try:
        return recording.last_trained()
    except UserError as error:
        raise NotApplicable(str(error)) from None


def describe_task(recording: Recording, originals: Tensor) -> Task:
    """What the attacker knows of the inputs: their number, shape and range."""
    federation = recording.world.federation
    low = -1.0
    high = 1.0
    if federation.kind != "image":
        low = float(federation.x.min())
        high = float(federation.x.max())
    return Task(
        shape=tuple(originals.shape[1:]),
        n=len(originals),
        classes=federation.classes,
        low=low,
        high=high,
    )


def try_attack(
    kind: Kind, view: View, task: Task, search: Search, truth: tuple[Tensor, Tensor]
) -> Outcome | str:
    """The outcome, or why the attack does not apply."""
    try:
        found = attack(kind, view, task, search)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if kind == "dlg":
            return f"dlg, {view.name}: the method's loss takes no soft labels"
        text = " ".join(str(error).split())[:100]
        return f"{kind}, {view.name}: the training has no derivative by inputs ({text})"
    return judge(kind, view, task, found, truth)


def describe_outcome(outcome: Outcome) -> str:
    """One line."""
    likeness = "" if outcome.ssim is None else f", SSIM {outcome.ssim:.2f}"
    return (
        f"  {outcome.attack}, {outcome.view}: PSNR {outcome.psnr:.1f} dB{likeness},"
        f" labels {100 * outcome.labels_right:.0f} % right"
    )


def describe_levels(noise: float, grey: float) -> str:
    """What PSNR means here."""
    return (
        f"  (noise, where a search begins, has {noise:.1f} dB and plain grey {grey:.1f}:"
        " about as much is nothing recovered; above 20 an image is recognised)"
    )


def compare(task: Task, x: Tensor, originals: Tensor) -> float:
    """Mean PSNR of some pictures."""
    ours = to_unit(x, task.low, task.high)
    theirs = to_unit(originals, task.low, task.high)
    values = [psnr(a, b) for a, b in zip(ours, theirs, strict=True)]
    return sum(values) / len(values)


# ---------------------------------------------------------------- the other parts
def audit_algebra(audit: Audit, setup: Setup, plan: Plan, say: Say) -> None:
    """What uploads give away without any search."""
    rounds = rounds_to_play(setup, plan, ROUNDS)
    recording = record(setup, audit.client, rounds, lambda _: None)
    if recording.is_sealed:
        raise NotApplicable(SEALED)
    with torch_settings(setup.world.dtype, setup.world.device):
        audit.findings = find_by_algebra(recording)
    for finding in audit.findings:
        say(f"algebra: {finding.name}, {finding.measure} {finding.error:.2g}")


def audit_properties(audit: Audit, setup: Setup, plan: Plan, say: Say) -> None:
    """Class shares from the upload of the last round that is played."""
    if is_text(setup):
        raise NotApplicable(
            "a property attack needs inputs that are numbers, not words"
        )
    rounds = rounds_to_play(setup, plan, ROUNDS)
    recording = record(setup, audit.client, rounds, lambda _: None)
    upload = last_trained(recording)
    with torch_settings(setup.world.dtype, setup.world.device):
        found = infer_shares(recording, upload)
    audit.shares = found
    say(
        f"property: class shares, {100 * found.error:.0f} % misplaced"
        f" (a blind guess: {100 * found.blind_error:.0f} %)"
    )


def audit_membership(audit: Audit, setup: Setup, plan: Plan, say: Say) -> None:
    """Which examples the models were trained on."""
    rounds = rounds_to_play(setup, plan, ROUNDS_OF_MODELS)
    recording = record(setup, audit.client, rounds, lambda _: None)
    audit.rounds_of_models = rounds
    audit.membership = infer_members(setup, recording, plan.shadows, say)
    for score in audit.membership:
        say(f"membership: {score.model} model, {score.attack}: AUC {score.auc:.3f}")
