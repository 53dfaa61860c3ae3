"""The one door to Optuna: it proposes values and says which trials are not worth going on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedtailor.core.errors import UserError
from fedtailor.experiment.search_space import Range, Space

REDUCTION = 3  # successive halving keeps a third at every rung
RUNGS = 2  # below the last round
STARTUP_TRIALS = 5  # drawn at random before the sampler has learnt something


class PastTrial(NamedTuple):
    """What the sampler and the pruner must know of a trial that is over."""

    values: dict[str, Any]
    score: float | None  # None where it was given up
    curve: dict[int, float]  # the best score until each evaluated round
    rungs: dict[str, float]  # what successive halving compared


class Sampler:
    """The search for one method's values: TPE, and successive halving by rounds.

    Every proposal depends on the seed, the number of the trial and the trials before it,
    and on nothing else: a search that is interrupted proposes the same again.
    """

    def __init__(
        self, space: Space, *, seed: int, name: str, rounds: int, higher: bool
    ) -> None:
        self._optuna = import_optuna()
        self._seed = seed
        self._name = name
        pruners = self._optuna.pruners
        self._study = self._optuna.create_study(
            direction="maximize" if higher else "minimize",
            pruner=pruners.SuccessiveHalvingPruner(
                min_resource=max(1, rounds // REDUCTION**RUNGS),
                reduction_factor=REDUCTION,
            ),
        )
        self._distributions = self._make_distributions(space)

    def add(self, past: PastTrial) -> None:
        """Learn from a trial that is over."""
        states = self._optuna.trial.TrialState
        state = states.PRUNED if past.score is None else states.COMPLETE
        trial = self._optuna.trial.create_trial(
            state=state,
            value=past.score,
            params=past.values,
            distributions=self._distributions,
            intermediate_values=past.curve,
            system_attrs=past.rungs,
        )
        self._study.add_trial(trial)

    def propose(self, number: int, first: Mapping[str, Any] | None) -> Proposal:
        """The values of a trial; ``first`` are tried in any case."""
        text = f"{self._seed}/{self._name}/{number}"
        digest = hashlib.sha256(text.encode()).digest()
        self._study.sampler = self._optuna.samplers.TPESampler(
            seed=int.from_bytes(digest[:4], "big"),
            n_startup_trials=STARTUP_TRIALS,
        )
        if first is not None:
            self._study.enqueue_trial(dict(first))
        return Proposal(self._study, self._study.ask(self._distributions))

    def _make_distributions(self, space: Space) -> dict[str, Any]:
        kinds = self._optuna.distributions
        found: dict[str, Any] = {}
        for name, dimension in space.items():
            if not isinstance(dimension, Range):
                found[name] = kinds.CategoricalDistribution(dimension.values)
                continue
            kind = kinds.FloatDistribution
            if dimension.is_whole:
                kind = kinds.IntDistribution
            low, high = dimension.extremes()
            found[name] = kind(low, high, log=dimension.is_log)
        return found


class Proposal:
    """A trial that goes on."""

    def __init__(self, study: Any, trial: Any) -> None:
        self._study = study
        self._trial = trial
        self.values: dict[str, Any] = dict(trial.params)
        self.curve: dict[int, float] = {}

    def is_hopeless(self, t: int, score: float) -> bool:
        """Tell how it does after round t; whether it should be given up."""
        self.curve[t] = score
        self._trial.report(score, t)
        return bool(self._trial.should_prune())

    @property
    def rungs(self) -> dict[str, float]:
        """What successive halving compared so far."""
        attributes = self._study.trials[self._trial.number].system_attrs
        return {
            name: value
            for name, value in attributes.items()
            if name.startswith("completed_rung")
        }


def import_optuna() -> Any:
    """Optuna, which is an extra."""
    try:
        import optuna
    except ImportError:
        raise UserError(
            "a search needs Optuna: pip install 'fedtailor[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
