"""What a measure is called, in which unit it is shown, and which direction is better."""

from __future__ import annotations

from typing import Any, NamedTuple

# shares of a whole, which tables show in percent
SHARES = {
    "accuracy",
    "macro_f1",
    "balanced_accuracy",
    "ece",
    "auroc",
    "auprc",
    "dice",
    "iou",
    "mean_iou",
    "token_accuracy",
}
NAMES = {
    "macro_f1": "macro F1",
    "balanced_accuracy": "balanced accuracy",
    "ece": "calibration error",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "mae": "mean absolute error",
    "mse": "mean squared error",
    "rmse": "root mean squared error",
    "iou": "IoU",
    "mean_iou": "mean IoU",
    "dice": "Dice",
    "r2": "R²",
}


class Measure(NamedTuple):
    """A measure as people read it."""

    name: str
    label: str
    unit: str  # "%", or whatever the task says; empty where there is none
    scale: float  # from stored numbers to shown ones
    higher_is_better: bool

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.higher_is_better else -1

    @property
    def points(self) -> str:
        """What a difference of it is counted in."""
        if self.unit == "%":
            return "points"
        return self.unit

    @property
    def axis(self) -> str:
        """The label of an axis: name and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def show(self, value: float | None, digits: int | None = None) -> str:
        """A value with its unit; a dash where there is none."""
        if value is None:
            return "–"
        places = digits
        if places is None:
            places = 1 if self.unit == "%" else 3
        text = f"{self.scale * value:.{places}f}"
        return f"{text} {self.unit}".rstrip()


def describe_measure(
    name: str, unit: str | None = None, higher_is_better: bool = True
) -> Measure:
    """A measure by its name in the files."""
    label = NAMES.get(name, name.replace("_", " "))
    if unit is None and name in SHARES:
        unit = "%"
    scale = 100.0 if unit == "%" else 1.0
    return Measure(name, label, unit or "", scale, higher_is_better)


def deciding_measure(result: dict[str, Any]) -> Measure:
    """The measure that a run's results are told in; accuracy where the run does not say."""
    told = result.get("measure") or {}
    return describe_measure(
        told.get("name", "accuracy"),
        told.get("unit"),
        told.get("higher_is_better", True),
    )
