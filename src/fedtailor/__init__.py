"""FedTailor: personalised federated learning. One federation, a model tailored to every client."""

from fedtailor._version import __version__
from fedtailor.api import compare, report, run, tune
from fedtailor.client import Batch, Client
from fedtailor.core.errors import Unsupported, UserError
from fedtailor.core.tree import (
    Params,
    average,
    lerp,
    part,
    rename,
    sqdist,
    tmap,
    total,
    without,
)
from fedtailor.engine.observer import Observer
from fedtailor.experiment.finished_run import load
from fedtailor.export import load_model
from fedtailor.method import (
    Cohort,
    Count,
    Doc,
    Method,
    New,
    NonNegative,
    Positive,
    Share,
    Uploads,
    hyper,
    one_by_one,
)
from fedtailor.models import Backbone
from fedtailor.training.optim import SGD, Groups, clip, pull

__all__ = [
    "SGD",
    "Backbone",
    "Batch",
    "Client",
    "Cohort",
    "Count",
    "Doc",
    "Groups",
    "Method",
    "New",
    "NonNegative",
    "Observer",
    "Params",
    "Positive",
    "Share",
    "Unsupported",
    "Uploads",
    "UserError",
    "__version__",
    "average",
    "clip",
    "compare",
    "hyper",
    "lerp",
    "load",
    "load_model",
    "one_by_one",
    "part",
    "pull",
    "rename",
    "report",
    "run",
    "sqdist",
    "tmap",
    "total",
    "tune",
    "without",
]
