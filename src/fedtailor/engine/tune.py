"""A search for hyper-parameters, on validation data only, with equal trials for every method.

The runs of a search have no test data at all. Every trial is a line of ``trials.jsonl``, from which
an interrupted search goes on: what it proposes next depends on these lines alone.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedtailor.core.errors import UserError, writing
from fedtailor.engine.compare import plan_runs
from fedtailor.engine.observer import ManyRuns, Observer, RoundRecord
from fedtailor.engine.sampler import PastTrial, Proposal, Sampler, import_optuna
from fedtailor.engine.start import run_experiment
from fedtailor.experiment.config import Experiment
from fedtailor.experiment.prepare import Setup
from fedtailor.experiment.run_folder import CONFIG, JOURNAL, RunFolder, read_journal
from fedtailor.experiment.search_space import (
    Over,
    Space,
    find_defaults,
    list_trials_at_the_edge,
    make_spaces,
    read_over,
    vary,
)
from fedtailor.experiment.variants import Variant, folder_stem
from fedtailor.experiment.winners import Winner, Winners, write_winners
from fedtailor.storage.files import write_bytes

TRIALS = "trials.jsonl"
SEARCH = "search.json"  # which search a folder holds
WINNERS = "winners.toml"
RUNS = "runs"  # of trials that are not over
FIRST_SEED = 1000  # far from those that comparisons take
COMPLETE = "complete"
PRUNED = "pruned"
FAILED = "failed"


@dataclass(frozen=True)
class Trial:
    """A line of ``trials.jsonl``."""

    method: str  # label of the variant
    trial: int
    state: str  # complete, pruned after the first seed's first rounds, or failed
    values: dict[str, Any]
    seeds: list[int]  # that were run to their end
    scores: list[float]  # the best on validation data of each of these
    score: float | None  # their mean
    rounds: int  # of the first seed
    seconds: float
    curve: dict[str, float] = field(default_factory=dict)  # of the first seed
    rungs: dict[str, float] = field(default_factory=dict)
    why: str = ""
    repeats: int | None = (
        None  # the trial with the same values, which was not run again
    )

    def for_sampler(self) -> PastTrial:
        """What the sampler learns from it."""
        curve = {int(t): score for t, score in self.curve.items()}
        return PastTrial(self.values, self.score, curve, self.rungs)


@dataclass(frozen=True)
class Search:
    """What is searched, and where."""

    variants: Sequence[Variant]
    over: dict[str, Any]  # as it was given
    spaces: dict[str, Space]
    options: dict[str, Any]  # of all runs
    seeds: list[int]
    trials: int  # of every variant
    out: Path
    own: Mapping[str, Any]  # data and network that were given in code

    def prepare(self, variant: Variant, seed: int) -> Setup:
        """A run without test data, ready to begin."""
        options = {**self.options, "seed": seed, "save": "none", "views": ""}
        (run,) = plan_runs([variant], options, 1)
        return without_test_data(run.prepare(self.own))


@dataclass
class Outcome:
    """How a trial ends."""

    state: str = COMPLETE
    scores: list[float] = field(default_factory=list)
    rounds: int = 0  # of the first seed
    why: str = ""

    def fail(self, why: str) -> None:
        """It ended without a score."""
        self.state = FAILED
        self.why = why


class GivenUp(Exception):
    """The trial is not worth going on."""


class Watch(Observer):
    """Keeps the best score on validation data, and gives hopeless trials up."""

    def __init__(self, proposal: Proposal | None, folder: RunFolder) -> None:
        self._proposal = proposal
        self._folder = folder
        self._sign = 1.0
        self._measure = "accuracy"
        self.best: float | None = None
        self.t = 0

    def set_measure(self, setup: Setup) -> None:
        """Which measure decides, and in which direction."""
        task = setup.world.task
        self._measure = task.primary
        self._sign = 1.0 if task.higher_is_better else -1.0

    def begin(self, config: Experiment, first_round: int) -> None:
        """Take in the rounds before the checkpoint."""
        path = self._folder.path / JOURNAL
        for line in read_journal(path) if path.exists() else []:
            self._take(RoundRecord.from_json(line))

    def round(self, record: RoundRecord) -> None:
        """Take in a round."""
        self._take(record)

    def _take(self, record: RoundRecord) -> None:
        self.t = record.t
        if record.evaluation is None:
            return
        score = record.evaluation.val.values.get(self._measure)
        if score is None:
            return
        if self.best is None or self._sign * score > self._sign * self.best:
            self.best = score
        if self._proposal and self._proposal.is_hopeless(record.t, self.best):
            raise GivenUp


# ---------------------------------------------------------------- the search
def tune(
    variants: Sequence[Variant],
    options: dict[str, Any],
    over: Over,
    *,
    trials: int,
    seeds: int,
    out: Path,
    progress: ManyRuns | None = None,
    own: Mapping[str, Any] | None = None,
) -> tuple[Winners, list[Trial]]:
    """Search, or go on with a search, and write the winners.

    Args:
        variants: what is tuned, each with as many trials as the others.
        options: common to all runs, as in ``fedtailor run``; ``seed`` is the first seed.
        over: what is varied.
        trials: of every variant, each with a run for every one of ``seeds``.
        out: folder of the search.
        own: data and network that were given in code.
    """
    import_optuna()
    first = int(options.get("seed", FIRST_SEED))
    search = Search(
        variants=variants,
        over=read_over(over),
        spaces=make_spaces(over, variants),
        options=options,
        seeds=list(range(first, first + seeds)),
        trials=trials,
        out=out,
        own=own or {},
    )
    check_search(search)
    past = claim_folder(search)
    run_search(search, past, progress or ManyRuns())
    winners = find_winners(search, past)
    write_winners(out / WINNERS, winners)
    return winners, past


def run_search(search: Search, past: list[Trial], progress: ManyRuns) -> None:
    """All trials that are not there yet; adds them to ``past``."""
    names = [
        name_trial(variant.label, number)
        for variant in search.variants
        for number in range(search.trials)
    ]
    there = {name_trial(trial.method, trial.trial) for trial in past}
    progress.begin(names, [name for name in names if name in there])
    try:
        for variant in search.variants:
            tune_variant(search, variant, past, progress)
    finally:
        progress.end()


def tune_variant(
    search: Search, variant: Variant, past: list[Trial], progress: ManyRuns
) -> None:
    """The trials of one variant that are not there yet."""
    usual = search.prepare(variant, search.seeds[0])
    defaults = find_defaults(search.spaces[variant.label], usual.options)
    for number in range(search.trials):
        mine = [trial for trial in past if trial.method == variant.label]
        if number < len(mine):
            continue
        sampler = Sampler(
            search.spaces[variant.label],
            seed=search.seeds[0],
            name=variant.label,
            rounds=usual.options.rounds,
            higher=usual.world.task.higher_is_better,
        )
        for trial in mine:
            sampler.add(trial.for_sampler())
        proposal = sampler.propose(number, None if number else defaults)
        trial = run_trial(search, variant, number, proposal, mine, progress)
        append_trial(search.out, trial)
        past.append(trial)
        tell_trial(progress, trial)


def run_trial(
    search: Search,
    variant: Variant,
    number: int,
    proposal: Proposal,
    mine: Sequence[Trial],
    progress: ManyRuns,
) -> Trial:
    """Run a trial, unless an earlier one had the same values."""
    for earlier in mine:
        if earlier.values == proposal.values:
            return replace(earlier, trial=number, repeats=earlier.trial, seconds=0.0)
    began = time.monotonic()
    name = name_trial(variant.label, number)
    outcome = Outcome()
    varied = vary(variant, proposal.values, f"trial {number}")
    run_seeds(search, varied, proposal, progress.watch(name), outcome)
    shutil.rmtree(search.out / RUNS, ignore_errors=True)
    is_whole = len(outcome.scores) == len(search.seeds)
    return Trial(
        method=variant.label,
        trial=number,
        state=outcome.state,
        values=proposal.values,
        seeds=search.seeds[: len(outcome.scores)],
        scores=outcome.scores,
        score=statistics.fmean(outcome.scores) if is_whole else None,
        rounds=outcome.rounds,
        seconds=round(time.monotonic() - began, 3),
        curve={str(t): score for t, score in proposal.curve.items()},
        rungs=proposal.rungs,
        why=outcome.why,
    )


def run_seeds(
    search: Search,
    variant: Variant,
    proposal: Proposal,
    following: Sequence[Observer],
    outcome: Outcome,
) -> None:
    """The first seed as long as it is promising, then the others."""
    for i, seed in enumerate(search.seeds):
        folder = RunFolder(search.out / RUNS / f"{folder_stem(variant.label)}-s{seed}")
        watch = Watch(None if i else proposal, folder)
        try:
            run_one(search, variant, seed, folder, [*following, watch])
        except GivenUp:
            outcome.state = PRUNED
        except UserError as error:
            outcome.fail(str(error))
        outcome.rounds = outcome.rounds or watch.t
        if outcome.state == COMPLETE and watch.best is None:
            outcome.fail("no score on validation data")
        if outcome.state != COMPLETE or watch.best is None:
            return
        outcome.scores.append(watch.best)


def run_one(
    search: Search,
    variant: Variant,
    seed: int,
    folder: RunFolder,
    observers: Sequence[Observer],
) -> None:
    """One run of a trial, which is continued where it was interrupted."""
    setup = search.prepare(variant, seed)
    for observer in observers:
        if isinstance(observer, Watch):
            observer.set_measure(setup)
    has_begun = (folder.path / CONFIG).exists()
    run_experiment(setup, folder, observers, resume=has_begun)


def without_test_data(setup: Setup) -> Setup:
    """The same run without any test data: what is not there cannot be looked at."""
    federation = setup.world.federation
    nothing = torch.empty(0, dtype=torch.long)
    blind = replace(
        federation,
        test=[nothing for _ in federation.test],
        common=None,
        external={},
    )
    return replace(setup, world=replace(setup.world, federation=blind))


# ---------------------------------------------------------------- before and after
def check_search(search: Search) -> None:
    """Refuse mistakes before hours of work: every end and choice is prepared once."""
    for variant in search.variants:
        usual = search.prepare(variant, search.seeds[0])
        if not any(len(indices) for indices in usual.world.federation.val):
            raise UserError("a search needs validation data; give --validation 0.2")
        for values in list_trials_at_the_edge(search.spaces[variant.label]):
            search.prepare(vary(variant, values, "trial"), search.seeds[0])


def claim_folder(search: Search) -> list[Trial]:
    """Refuse a folder with something else in it; gives the trials that are there."""
    out = search.out
    told = describe_search(search)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is no folder; choose another --out")
    if (out / SEARCH).exists():
        if json.loads((out / SEARCH).read_text()) != told:
            raise UserError(f"{out} holds another search; choose another --out")
    elif out.exists() and any(out.iterdir()):
        raise UserError(
            f"{out} holds something else than a search; choose another --out"
        )
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    write_bytes(out / SEARCH, json.dumps(told, indent=1).encode())
    path = out / TRIALS
    lines = read_journal(path) if path.exists() else []
    # a last line that was cut off is written again
    write_bytes(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
    return [Trial(**line) for line in lines]


def describe_search(search: Search) -> dict[str, Any]:
    """What must be the same where a search goes on; methods and trials may be added."""
    usual = search.prepare(search.variants[0], search.seeds[0])
    common = usual.options.model_dump(mode="json")
    for name in ("method", "set", "name", "lr", "seed", "model", "executor"):
        del common[name]
    return {
        "options": common,
        "partition": usual.world.federation.hash,
        "seeds": search.seeds,
        "over": {name: str(given) for name, given in search.over.items()},
    }


def append_trial(out: Path, trial: Trial) -> None:
    """Write a line."""
    path = out / TRIALS
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(trial)) + "\n")


def find_winners(search: Search, past: Sequence[Trial]) -> Winners:
    """The best trial of every variant, the earliest of ties."""
    winners = []
    for variant in search.variants:
        setup = search.prepare(variant, search.seeds[0])
        mine = [trial for trial in past if trial.method == variant.label]
        best = find_best(mine, setup.world.task.higher_is_better)
        if best is None or best.score is None:
            reason = mine[-1].why or "none came to its end"
            raise UserError(f"no trial of {variant.label} has a score: {reason}")
        winners.append(Winner(variant.written, best.trial, best.score, best.values))
    return Winners(search.seeds, search.trials, winners)


def find_best(trials: Sequence[Trial], higher: bool) -> Trial | None:
    """The trial with the best score, the earliest of ties."""
    sign = 1 if higher else -1
    scores = {
        trial.trial: sign * trial.score for trial in trials if trial.score is not None
    }
    if not scores:
        return None
    best = max(scores, key=lambda number: scores[number])
    (found,) = [trial for trial in trials if trial.trial == best]
    return found


def name_trial(label: str, number: int) -> str:
    """What a trial is called."""
    return f"{label} trial {number}"


def tell_trial(progress: ManyRuns, trial: Trial) -> None:
    """Say how a trial ended."""
    name = name_trial(trial.method, trial.trial)
    values = describe_values(trial.values)
    if trial.state == FAILED:
        progress.failed(f"{name} ({values})", trial.why)
        return
    told = f"given up after round {trial.rounds}"
    if trial.score is not None:
        told = f"{trial.score:.4f} on validation data"
    if trial.repeats is not None:
        told += f", as trial {trial.repeats}"
    progress.message(f"{name}: {told} ({values})")
    progress.done(name)


def describe_values(values: Mapping[str, Any]) -> str:
    """``lr=0.0123, activation=relu``."""
    texts = []
    for name, value in values.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        texts.append(f"{name}={text}")
    return ", ".join(texts)
