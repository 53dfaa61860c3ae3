"""An experiment, described: every option of the command line, of a TOML file and of ``fedtailor.run`` is a field."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedtailor.core.errors import UserError, unknown
from fedtailor.data.partition.defaults import DEFAULT_SPLIT, DEFAULT_VALIDATION
from fedtailor.models.backbone import Backbone

# Learning rates of the papers, by backbone: 4-layer CNN, Amazon MLP, HAR-CNN, ResNet-18 and fastText from FedCP and
# GPFL; LeNet-5 and the other ResNets from FedPer, as CD2-pFed gives none; ConvNets from Fed3+2p; lenet_mgda from pFedC.
# cnn on 8 x 8 digits, mlp, linear and own networks are in no paper: values that learn in some tens of rounds.
LEARNING_RATE: dict[str, float] = {
    "cnn": 0.005,
    "cnn8": 0.05,
    "amazon_mlp": 0.005,
    "har_cnn": 0.01,
    "resnet18": 0.1,
    "fasttext": 0.1,
    "lenet5": 0.01,
    "resnet34": 0.01,
    "resnet32": 0.01,
    "convnet2": 0.01,
    "convnet3": 0.001,
    "lenet_mgda": 0.005,
    "pflcnn": 0.1,
    "mlp": 0.05,
    "linear": 0.05,
}
ANY_RATE = 0.01

Count = Annotated[int, Ge(1)]
Whole = Annotated[int, Ge(0)]


class Experiment(BaseModel):
    """One run. What is ``None`` is decided when data and network are known, and written into the run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str = Field("fedavg", description="a method's name, or a file that holds one")
    set: dict[str, Any] = Field(
        {}, description="a hyper-parameter of the method: lam=0.5 (may be given again)"
    )

    data: str = Field("digits", description="a data set's name, or a path to your own data")
    data_dir: Path | None = Field(None, description="where data sets lie (else $FEDTAILOR_DATA)")
    missing: Literal["median"] | None = Field(
        None, description="what becomes of NaN in your own data"
    )
    partition: str | None = Field(
        None, description="how clients share the data: dirichlet:0.1, pathological:2, natural, ..."
    )
    clients: Count | None = Field(None, description="number of clients (20, or the data set's own)")
    split: str = Field(
        DEFAULT_SPLIT, description="what trains: merged:0.75, official, ordered:0.75, block:0.75"
    )
    validation: Annotated[float, Ge(0), Le(0.5)] = Field(
        DEFAULT_VALIDATION, description="share of train data held out"
    )
    limit: Count | None = Field(None, description="use only so many samples (seeded, stratified)")
    stratify: bool = Field(True, description="split every class alike")

    model: str | None = Field(None, description="the backbone (one that fits the data)")
    norm: Literal["batch", "group"] = Field("batch", description="normalisation layers of ResNets")

    rounds: Count = Field(50, description="communication rounds")
    seed: Whole = Field(0, description="everything random follows from it")
    join: str = Field(
        "1.0", description="share of clients per round: 0.2, or drawn anew each round: 0.1..1"
    )
    drop: Annotated[float, Ge(0), Le(1)] = Field(
        0.0, description="probability that a reply gets lost after training"
    )
    late: str | None = Field(None, description="5@10: five clients join only at round 10")
    new: Whole = Field(0, description="clients that never train, evaluated at the end")
    give_up: Count = Field(5, description="stop after so many rounds in a row without any reply")

    lr: Annotated[float, Gt(0)] | None = Field(None, description="learning rate (by backbone)")
    lr_decay: Annotated[float, Gt(0), Le(1)] = Field(
        1.0, description="factor on the learning rate per round"
    )
    epochs: Count = Field(1, description="local epochs")
    batch: Count = Field(10, description="batch size")
    momentum: Annotated[float, Ge(0), Le(1)] = Field(0.0, description="of local SGD")
    weight_decay: Annotated[float, Ge(0)] = Field(0.0, description="of local SGD")
    batching: Literal["fill", "drop", "keep"] = Field(
        "fill", description="an epoch's last, short batch"
    )
    bn: Literal["average", "local"] = Field("average", description="BatchNorm statistics")

    executor: Literal["auto", "sequential", "processes", "vmap", "ray"] = Field(
        "auto", description="what runs clients"
    )
    workers: Count | None = Field(None, description="processes (one per core)")
    ray_address: str = Field(
        "auto", description="ray cluster: auto (one running here), HOST:PORT, local (a new one)"
    )
    state: Literal["memory", "disk"] = Field("memory", description="where private state is kept")
    device: str = Field("cpu", description="cpu, cuda, cuda:1, ...")
    dtype: Literal["float32", "float64"] = Field("float32", description="of all arithmetic")

    every: Count = Field(1, description="evaluate every so many rounds")
    evaluate: str = Field("all", description="whom: all, cohort, or a number of clients")
    views: str = Field("", description="more ways to look at the end: after,new,external")
    save: Literal["best", "last", "none"] | None = Field(
        None, description="which personal models to keep"
    )
    checkpoint_every: Count = Field(10, description="rounds between checkpoints")

    @field_validator("join")
    @classmethod
    def _join(cls, value: str) -> str:
        shares(value)
        return value

    @field_validator("late")
    @classmethod
    def _late(cls, value: str | None) -> str | None:
        late(value)
        return value

    @field_validator("evaluate")
    @classmethod
    def _evaluate(cls, value: str) -> str:
        if value not in ("all", "cohort") and not (value.isdigit() and int(value) > 0):
            raise ValueError(f"'{value}' is neither all, nor cohort, nor a number of clients")
        return value

    @field_validator("views")
    @classmethod
    def _views(cls, value: str) -> str:
        for name in filter(None, value.split(",")):
            if name not in ("after", "new", "external"):
                raise ValueError(f"no view '{name}'; there are after, new, external")
        return value

    @field_validator("ray_address")
    @classmethod
    def _ray_address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value not in ("auto", "local") and not (host and "/" not in host and port.isdigit()):
            raise ValueError(f"'{value}' is neither auto, nor local, nor HOST:PORT")
        return value

    @property
    def identity(self) -> str:
        """A digest of all that decides a run's results (not how fast, where or how far it is run)."""
        free = {
            "rounds",
            "workers",
            "executor",
            "state",
            "checkpoint_every",
            "save",
            "data_dir",
            "views",
            "device",
        }
        free |= {"ray_address"}
        return hashlib.sha256(
            json.dumps(self.model_dump(mode="json", exclude=free), sort_keys=True).encode()
        ).hexdigest()

    def toml(self) -> str:
        """As ``fedtailor run FILE`` reads it."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def shares(join: str) -> tuple[float, float]:
    """Lowest and highest share of clients per round."""
    low, _, high = join.partition("..")
    try:
        a, b = float(low), float(high or low)
    except ValueError:
        raise ValueError(f"'{join}' is no share; write 0.2, or 0.1..1") from None
    if not 0 < a <= b <= 1:
        raise ValueError(f"'{join}' is not within 0 < share <= 1")
    return a, b


def late(value: str | None) -> tuple[int, int]:
    """How many clients join late, and at which round."""
    if value is None:
        return 0, 1
    many, _, at = value.partition("@")
    if not (many.isdigit() and at.isdigit() and int(at) >= 1):
        raise ValueError(f"'{value}' does not read like 5@10 (five clients join at round 10)")
    return int(many), int(at)


def experiment(values: dict[str, Any], where: str = "") -> Experiment:
    """Check the options; the first wrong one is named with what is wrong."""
    for key in values:
        if key not in Experiment.model_fields:
            raise _in(where, unknown("option", key, Experiment.model_fields))
    try:
        return Experiment(**values)
    except ValidationError as error:
        first = error.errors()[0]
        field, text = str(first["loc"][0]), first["msg"].removeprefix("Value error, ")
        text = text[0].lower() + text[1:]
        raise _in(where, UserError(f"{field}={values.get(field)!r} will not do: {text}")) from None


def read(path: Path) -> dict[str, Any]:
    """The options in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML: {error}") from None


def learning_rate(backbone: Backbone) -> float:
    """The default for a backbone."""
    small = backbone.kind == "cnn" and backbone.features < 512  # the sibling for small images
    return LEARNING_RATE.get("cnn8" if small else backbone.kind, ANY_RATE)


def _in(where: str, error: UserError) -> UserError:
    return UserError(f"{where}: {error}") if where else error
