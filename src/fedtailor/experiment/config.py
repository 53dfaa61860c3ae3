"""The options of an experiment: each is a field, for the command line, TOML and Python alike."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tomli_w
from annotated_types import Ge, Gt, Le
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from fedtailor.core.errors import UserError, unknown
from fedtailor.data.partition.defaults import DEFAULT_SPLIT, DEFAULT_VALIDATION
from fedtailor.experiment.protocols import PROTOCOLS, add_protocol
from fedtailor.filters import filter_names, find_filter
from fedtailor.filters.by_option.attack import parse_attack
from fedtailor.maths.robust import RULES, parse_rule
from fedtailor.training.optim import OPTIMISERS

Count = Annotated[int, Ge(1)]
Whole = Annotated[int, Ge(0)]
Part = Literal[
    "method",
    "data",
    "model",
    "rounds",
    "training",
    "protection",
    "execution",
    "evaluation",
]

# Evaluations beyond the personal models on their clients' test data.
VIEWS = ("after", "global", "new", "external")

# Options that had other names in earlier versions.
RENAMED: dict[str, str] = {
    "join": "participation",
    "late": "late_clients",
    "new": "new_clients",
    "give_up": "max_silent_rounds",
    "every": "evaluate_every",
    "evaluate": "evaluate_clients",
}


class Tags(NamedTuple):
    """What the rest of the program must know of an option; see ``option``."""

    part: Part
    also_in: Part | None
    decides: bool
    simulation_only: bool


def option(
    default: Any,
    description: str,
    *,
    part: Part,
    also_in: Part | None = None,
    decides: bool = True,
    simulation_only: bool = False,
) -> Any:
    """A field of ``Experiment``, with tags that say where the option applies.

    Args:
        default: its value where none is given.
        description: its line in ``--help``.
        part: the part of a run that it belongs to.
        also_in: a second part that depends on it.
        decides: whether results depend on it. A run resumes only with the same values of
            such options; others (where, how fast and how long it runs) may change.
        simulation_only: whether it means nothing in a deployed run, whose clients are sites
            that bring their own data and machines.
    """
    tags = Tags(part, also_in, decides, simulation_only)
    return Field(default, description=description, json_schema_extra=tags._asdict())


class Experiment(BaseModel):
    """One run. What is ``None`` is decided once data and network are known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str = option(
        "fedavg", "a method's name, or a file that holds one", part="method"
    )
    set: dict[str, Any] = option(
        {},
        "a hyper-parameter of the method: lam=0.5 (may be given again)",
        part="method",
    )
    name: str | None = option(
        None,
        "what the run is called in tables, figures and records (its method)",
        part="method",
        decides=False,
    )

    protocol: str | None = option(
        None,
        "a paper's split, batches, optimiser and network, where you give none"
        f" (docs/data.md): {', '.join(PROTOCOLS)}",
        part="data",
        also_in="training",
        decides=False,  # the options that it sets do
    )
    data: str = option(
        "digits",
        "a data set's name, or a path to your own data",
        part="data",
        simulation_only=True,
    )
    data_dir: Path | None = option(
        None,
        "the folder of data sets (else $FEDTAILOR_DATA)",
        part="data",
        decides=False,
        simulation_only=True,
    )
    missing: Literal["median"] | None = option(
        None,
        "how to fill NaN in your own data",
        part="data",
        simulation_only=True,
    )
    partition: str | None = option(
        None,
        "how data are divided among clients: dirichlet:0.1, pathological:2, natural, ...",
        part="data",
        simulation_only=True,
    )
    clients: Count | None = option(
        None,
        "number of clients (20, or the data set's own)",
        part="data",
        simulation_only=True,
    )
    split: str = option(
        DEFAULT_SPLIT,
        "what trains: merged:0.75, official, ordered:0.75, block:0.75",
        part="data",
    )
    validation: Annotated[float, Ge(0), Le(0.5)] = option(
        DEFAULT_VALIDATION,
        "share of training data held out for validation",
        part="data",
    )
    limit: Count | None = option(
        None,
        "use only so many samples (seeded, stratified)",
        part="data",
        simulation_only=True,
    )
    stratify: bool = option(True, "split every class alike", part="data")

    model: str | None = option(
        None, "the backbone (one that fits the data)", part="model"
    )
    norm: Literal["batch", "group"] = option(
        "batch",
        "normalisation layers of ResNets",
        part="model",
    )

    rounds: Count = option(50, "communication rounds", part="rounds", decides=False)
    seed: Whole = option(
        0, "everything random follows from it", part="rounds", also_in="data"
    )
    participation: str = option(
        "1.0",
        "share of clients per round: 0.2, or drawn anew each round: 0.1..1",
        part="rounds",
    )
    drop: Annotated[float, Ge(0), Le(1)] = option(
        0.0,
        "probability that a reply gets lost after training",
        part="rounds",
    )
    late_clients: str | None = option(
        None,
        "5@10: five clients join only at round 10",
        part="rounds",
        simulation_only=True,
    )
    new_clients: Whole = option(
        0,
        "number of clients that never train and are evaluated at the end",
        part="rounds",
        simulation_only=True,
    )
    newcomer_epochs: Whole = option(
        1,
        "epochs that new clients train before they are scored; 0 scores what they are given",
        part="rounds",
        decides=False,
        simulation_only=True,
    )
    max_silent_rounds: Count = option(
        5,
        "stop after so many rounds in a row without any reply",
        part="rounds",
    )

    lr: Annotated[float, Gt(0)] | None = option(
        None,
        "learning rate (by backbone)",
        part="training",
    )
    lr_decay: Annotated[float, Gt(0), Le(1)] = option(
        1.0,
        "factor on the learning rate per round",
        part="training",
    )
    epochs: Count = option(1, "local epochs", part="training")
    batch: Count = option(10, "batch size", part="training", also_in="data")
    optimiser: str = option(
        "sgd",
        f"local optimiser: {', '.join(OPTIMISERS)}",
        part="training",
    )
    momentum: Annotated[float, Ge(0), Le(1)] = option(
        0.0,
        "momentum of local SGD",
        part="training",
    )
    nesterov: bool = option(
        False,
        "Nesterov's momentum in local SGD",
        part="training",
    )
    weight_decay: Annotated[float, Ge(0)] = option(
        0.0,
        "weight decay of local SGD",
        part="training",
    )
    batching: Literal["fill", "drop", "keep"] = option(
        "fill",
        "what to do with an epoch's last, short batch",
        part="training",
    )
    bn: Literal["average", "local"] = option(
        "average",
        "whether BatchNorm statistics are averaged or stay with the client",
        part="training",
    )
    filters: str = option(
        "",
        f"what every message passes, by commas: {', '.join(filter_names())}",
        part="training",
    )

    aggregate: str = option(
        "mean",
        f"how uploads are merged: {', '.join(RULES)}",
        part="protection",
    )
    encrypt: Literal["heads", "all"] | None = option(
        None,
        "clients encrypt heads (Privacy-pFedC), or all they send; the server only adds",
        part="protection",
    )
    he: Literal["bfv", "ckks", "plain"] = option(
        "bfv",
        "how: bfv (exact), ckks, or plain: the same sums in clear, to compare with",
        part="protection",
    )
    he_key: str | None = option(
        None,
        "id of the sites' key, where they have one (from he.pub)",
        part="protection",
        decides=False,
    )
    sum_range: Annotated[float, Gt(0)] = option(
        8.0,
        "exact sums: largest absolute value of a number; beyond, the client is left out",
        part="protection",
    )
    sum_clients: Count | None = option(
        None,
        "exact sums: room for so many clients (all that there are)",
        part="protection",
    )
    sum_weight: Count | None = option(
        None,
        "exact sums: most training examples of a client (the largest there is)",
        part="protection",
    )
    change_limit: Annotated[float, Gt(0)] | None = option(
        None,
        "largest norm of a client's change, checked by the client before it encrypts",
        part="protection",
    )
    secure_sum: bool = option(
        False,
        "clients mask what they send (SecAgg+); the server learns the sum alone",
        part="protection",
    )
    secure_threshold: Annotated[float, Gt(0.5), Le(1)] = option(
        0.6,
        "secure_sum: share of clients that must stay, or the round is skipped",
        part="protection",
    )
    secure_neighbours: Annotated[int, Ge(2)] | None = option(
        None,
        "secure_sum: with how many others a client masks (all, in small cohorts)",
        part="protection",
    )
    attack: str | None = option(
        None,
        "simulated malicious clients: sign_flip, scale:10, noise:10, label_flip, backdoor:1",
        part="protection",
        simulation_only=True,
    )
    attackers: Annotated[float, Ge(0), Le(0.5)] = option(
        0.2,
        "share of clients that attack, where there is an attack",
        part="protection",
        simulation_only=True,
    )
    sampling: Literal["fixed", "poisson"] = option(
        "fixed",
        "who takes part: a fixed number of clients, or each drawn by itself",
        part="protection",
    )
    dp: Literal["client", "sample"] | None = option(
        None,
        "differential privacy of whole clients, or of single samples",
        part="protection",
    )
    dp_clip: Annotated[float, Gt(0)] = option(
        1.0,
        "largest norm of a client's change, or of a sample's gradient",
        part="protection",
    )
    dp_noise: Annotated[float, Gt(0)] | None = option(
        None,
        "standard deviation of the noise, in units of dp_clip",
        part="protection",
    )
    dp_epsilon: Annotated[float, Gt(0)] | None = option(
        None,
        "epsilon that is not exceeded; decides the noise where none is given",
        part="protection",
    )
    dp_delta: Annotated[float, Gt(0), Le(0.1)] = option(
        1e-5,
        "delta of the guarantee; well below 1 / clients (or samples)",
        part="protection",
    )
    dp_where: Literal["server", "clients"] = option(
        "server",
        "who adds the noise of dp=client",
        part="protection",
    )
    dp_accountant: Literal["prv", "rdp"] = option(
        "prv",
        "how spending is counted",
        part="protection",
    )
    dp_passes: Count | None = option(
        None,
        "dp=sample: passes over its data that a client makes in a round (epochs)",
        part="protection",
    )

    executor: Literal["auto", "sequential", "processes", "vmap", "ray"] = option(
        "auto",
        "what runs the clients",
        part="execution",
        decides=False,
        simulation_only=True,
    )
    workers: Count | None = option(
        None,
        "number of worker processes (one per core)",
        part="execution",
        decides=False,
        simulation_only=True,
    )
    ray_address: str = option(
        "auto",
        "ray cluster: auto (one running here), HOST:PORT, local (a new one)",
        part="execution",
        decides=False,
    )
    state: Literal["memory", "disk"] = option(
        "memory",
        "where private state is kept",
        part="execution",
        decides=False,
        simulation_only=True,
    )
    device: str = option(
        "cpu",
        "cpu, cuda, cuda:1, ...",
        part="execution",
        decides=False,
        simulation_only=True,
    )
    dtype: Literal["float32", "float64"] = option(
        "float32",
        "precision of all arithmetic",
        part="execution",
    )

    evaluate_every: Count = option(
        1, "rounds from one evaluation to the next", part="evaluation"
    )
    evaluate_clients: str = option(
        "all",
        "whose models to evaluate: all, cohort, or a number of clients",
        part="evaluation",
    )
    views: str = option(
        "",
        f"further evaluations of every evaluated round: {','.join(VIEWS)}",
        part="evaluation",
        decides=False,
    )
    target: Annotated[float, Gt(0)] | None = option(
        None,
        "test accuracy to reach: rounds and seconds until then are told (0.9)",
        part="evaluation",
        decides=False,
    )
    save: Literal["best", "last", "none"] | None = option(
        None,
        "which personal models to keep",
        part="evaluation",
        decides=False,
        simulation_only=True,
    )
    checkpoint_every: Count = option(
        10,
        "rounds from one checkpoint to the next",
        part="evaluation",
        decides=False,
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str | None) -> str | None:
        if value is not None and not (value.strip() and value.isprintable()):
            raise ValueError("write a name of one line")
        return value

    @field_validator("participation")
    @classmethod
    def _check_participation(cls, value: str) -> str:
        parse_participation(value)
        return value

    @field_validator("late_clients")
    @classmethod
    def _check_late_clients(cls, value: str | None) -> str | None:
        parse_late_clients(value)
        return value

    @field_validator("evaluate_clients")
    @classmethod
    def _check_evaluate_clients(cls, value: str) -> str:
        is_number = value.isdigit() and int(value) > 0
        if value not in ("all", "cohort") and not is_number:
            raise ValueError(
                f"'{value}' is neither all, nor cohort, nor a number of clients"
            )
        return value

    @field_validator("optimiser")
    @classmethod
    def _check_optimiser(cls, value: str) -> str:
        if value not in OPTIMISERS:
            raise ValueError(str(unknown("optimiser", value, OPTIMISERS)))
        return value

    @field_validator("protocol")
    @classmethod
    def _check_protocol(cls, value: str | None) -> str | None:
        if value is not None and value not in PROTOCOLS:
            raise ValueError(str(unknown("protocol", value, PROTOCOLS)))
        return value

    @field_validator("nesterov")
    @classmethod
    def _check_nesterov(cls, value: bool, info: ValidationInfo) -> bool:
        if value and not info.data.get("momentum"):
            raise ValueError("it needs momentum; give momentum, 0.9 for example")
        return value

    @field_validator("aggregate")
    @classmethod
    def _check_aggregate(cls, value: str) -> str:
        try:
            parse_rule(value)
        except UserError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("attack")
    @classmethod
    def _check_attack(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                parse_attack(value)
        except UserError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("filters")
    @classmethod
    def _check_filters(cls, value: str) -> str:
        try:
            for name in filter(None, value.split(",")):
                find_filter(name)
        except UserError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("views")
    @classmethod
    def _check_views(cls, value: str) -> str:
        for name in filter(None, value.split(",")):
            if name not in VIEWS:
                raise ValueError(f"no view '{name}'; there are {', '.join(VIEWS)}")
        return value

    @field_validator("ray_address")
    @classmethod
    def _check_ray_address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        is_address = host and "/" not in host and port.isdigit()
        if value not in ("auto", "local") and not is_address:
            raise ValueError(f"'{value}' is neither auto, nor local, nor HOST:PORT")
        return value

    @property
    def title(self) -> str:
        """What the run is called: its name, or its method's, or that of the method's file."""
        if self.name is not None:
            return self.name
        return Path(self.method).stem if self.method.endswith(".py") else self.method

    @property
    def identity(self) -> str:
        """A digest of the options that decide a run's results."""
        values = self.model_dump(mode="json", include=options_that_decide())
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def to_toml(self) -> str:
        """The text of a file that ``fedtailor run FILE`` reads."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


# ---------------------------------------------------------------- tags of the options


def options_in(part: Part) -> set[str]:
    """Names of the options that a part of a run depends on."""
    return {name for name, tags in _all_tags() if part in (tags.part, tags.also_in)}


def options_that_decide() -> set[str]:
    """Names of the options that results depend on."""
    return {name for name, tags in _all_tags() if tags.decides}


def simulation_options() -> set[str]:
    """Names of the options that mean nothing in a deployed run."""
    return {name for name, tags in _all_tags() if tags.simulation_only}


def tags_of(name: str) -> Tags:
    """The tags of an option."""
    tags: Any = Experiment.model_fields[name].json_schema_extra
    return Tags(**tags)


def _all_tags() -> list[tuple[str, Tags]]:
    return [(name, tags_of(name)) for name in Experiment.model_fields]


# ---------------------------------------------------------------- reading options


def parse_participation(value: str) -> tuple[float, float]:
    """Lowest and highest share of clients per round."""
    first, _, second = value.partition("..")
    try:
        low = float(first)
        high = float(second or first)
    except ValueError:
        raise ValueError(f"'{value}' is no share; write 0.2, or 0.1..1") from None
    if not 0 < low <= high <= 1:
        raise ValueError(f"'{value}' is not within 0 < share <= 1")
    return low, high


def parse_late_clients(value: str | None) -> tuple[int, int]:
    """How many clients join late, and at which round."""
    if value is None:
        return 0, 1
    many, _, at = value.partition("@")
    if not (many.isdigit() and at.isdigit() and int(at) >= 1):
        raise ValueError(
            f"'{value}' does not read like 5@10 (five clients join at round 10)"
        )
    return int(many), int(at)


def make_experiment(values: dict[str, Any], where: str = "") -> Experiment:
    """Check the options; the error names the first wrong one, and ``where`` it stands."""
    try:
        for name in values:
            _check_name(name)
        default_data = Experiment.model_fields["data"].default
        return Experiment(**add_protocol(values, default_data))
    except ValidationError as error:
        text = _describe_first_error(error, values)
    except UserError as error:
        text = str(error)
    raise UserError(f"{where}: {text}" if where else text)


def _check_name(name: str) -> None:
    if name in RENAMED:
        raise UserError(f"option '{name}' is now '{RENAMED[name]}'")
    if name not in Experiment.model_fields:
        raise unknown("option", name, Experiment.model_fields)


def _describe_first_error(error: ValidationError, values: dict[str, Any]) -> str:
    first = error.errors()[0]
    name = str(first["loc"][0])
    text = first["msg"].removeprefix("Value error, ")
    text = text[0].lower() + text[1:]
    return f"{name}={values.get(name)!r} will not do: {text}"


def read_config(path: Path) -> dict[str, Any]:
    """The options in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML: {error}") from None
