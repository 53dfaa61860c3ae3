"""What the loop of a run remembers from round to round, what it looks at and keeps, and what a run is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.tree import Tree
from fedtailor.evaluation.summary import Evaluation
from fedtailor.executors.world import World
from fedtailor.experiment.config import Experiment
from fedtailor.experiment.prepare import Setup

LARGE = 512 << 20  # bytes of personal models above which only the last ones are kept
# what a checkpoint holds beside the states
WRITTEN = ("seen", "silent", "up", "down", "calls", "seconds", "total", "owed")


@dataclass
class Course:
    """What the loop remembers from round to round."""

    t: int = 0
    server: Tree = None
    history: list[tuple[int, Evaluation]] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)  # clients that setup has asked
    silent: int = 0  # rounds in a row without a reply
    up: int = 0
    down: int = 0
    calls: int = 0  # exchanges one after another
    seconds: float = 0.0  # of rounds
    total: float = 0.0  # with evaluation and saving
    owed: dict[str, Any] | None = (
        None  # record of a round whose evaluation rides on the next round's messages
    )

    def about(self) -> dict[str, Any]:
        """As a checkpoint holds it."""
        return {name: getattr(self, name) for name in WRITTEN}

    @classmethod
    def read(
        cls, t: int, server: Tree, history: list[tuple[int, Evaluation]], about: dict[str, Any]
    ) -> Course:
        """From a checkpoint."""
        return cls(t, server, history, **{name: about[name] for name in WRITTEN if name in about})


def choose_whom(options: Experiment, trained: Sequence[int], cohort: Sequence[int]) -> list[int]:
    """Whose models are looked at after a round."""
    which = options.evaluate_clients
    if not which.isdigit():
        return list(cohort if which == "cohort" else trained)
    chosen = (
        Rng.seed(options.seed, Purpose.EVALUATE).permutation(len(trained))[: int(which)].tolist()
    )
    return sorted(trained[i] for i in chosen)


def choose_models(options: Experiment, world: World) -> str:
    """Which personal models are kept: the best, unless they are very large or there is no validation data."""
    if options.save == "none":
        return "none"
    if options.validation == 0:
        return "last"
    return options.save or ("best" if _light(world) else "last")


def portable(world: World, whom: Sequence[int]) -> bool:
    """Whether the models of a round can be kept in mind until it is known whether they are the best."""
    return len(whom) == world.federation.clients and _light(world)


def _light(world: World) -> bool:
    """Whether all personal models fit in memory beside everything else."""
    return (
        sum(p.numel() for p in world.backbone.parameters()) * 4 * world.federation.clients < LARGE
    )


def identity_of(setup: Setup, deployed: bool = False) -> str:
    """A digest of all that decides a run's results: options, data, and its length where the method reads that."""
    options, data = setup.options, setup.world.federation.hash
    if deployed:  # sites may join while it runs
        options, data = options.model_copy(update={"clients": None}), "sites"
    length = f"/{setup.options.rounds}" if setup.world.method.depends_on_rounds else ""
    return f"{options.identity}/{data}{length}"


def title(setup: Setup) -> str:
    """What a run is called on the screen."""
    return f"{setup.options.method} on {setup.options.data}, seed {setup.options.seed}"
