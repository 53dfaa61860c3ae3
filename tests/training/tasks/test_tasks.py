"""Every task on real data: measures against scikit-learn, runs by every general method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor

import fedtailor
from fedtailor import methods
from fedtailor.core.errors import UserError
from fedtailor.data.own.arrays import build_dataset
from fedtailor.training.task import Task
from fedtailor.training.tasks import make_task, task_names
from fedtailor.training.tasks.target import Target

GENERAL = (
    "local",
    "fedavg",
    "fedprox",
    "ditto",
    "fedper",
    "fedrep",
    "fedbn",
    "fedamp",
    "fedfomo",
    "cfl",
)
NEED_CLASSES = (
    "cd2pfed",
    "fed3p2p",
    "fedem",
    "fedma",
    "fedproto",
    "fedrod",
    "gpfl",
    "mocha",
    "pacfl",
    "pfedc",
    "pfedma",
)
# true log hazard ratios of the survival set
COEFFICIENTS = np.array([1.5, -1.0, 0.5, 0.0])


def deal(x: np.ndarray, y: np.ndarray, clients: int) -> list[tuple[Any, Any]]:
    """Rows in turn, to so many clients."""
    return [(x[k::clients], y[k::clients]) for k in range(clients)]


def standardise(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / x.std(0)


def make_regression() -> list[tuple[Any, Any]]:
    x, y = load_diabetes(return_X_y=True)
    return deal(standardise(x), y, 5)


def make_binary() -> list[tuple[Any, Any]]:
    x, y = load_breast_cancer(return_X_y=True)
    return deal(standardise(x), y, 5)


def make_ordinal() -> list[tuple[Any, Any]]:
    """Digits as ratings 0 to 9."""
    x, y = load_digits(return_X_y=True)
    return deal(x[:600] / 8 - 1, y[:600], 5)


def make_labels() -> list[tuple[Any, Any]]:
    """Of every digit: whether it is even, has a closed loop, is above 4."""
    x, y = load_digits(return_X_y=True)
    attributes = [y % 2 == 0, np.isin(y, (0, 6, 8, 9)), y > 4]
    return deal(x[:600] / 8 - 1, np.stack(attributes, 1)[:600], 5)


def make_survival(n: int = 500) -> list[tuple[Any, Any]]:
    """Times drawn from a Cox model with a constant hazard, some of them cut off."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4))
    death = rng.exponential(np.exp(-x @ COEFFICIENTS))
    end = rng.exponential(3.0, n)
    target = np.stack([np.minimum(death, end), death <= end], 1)
    return deal(x, target, 5)


def make_halves() -> list[tuple[Any, Any]]:
    x, y = load_diabetes(return_X_y=True)
    return deal(x, y / 2, 5)


DATA = {
    "regression": make_regression,
    "binary": make_binary,
    "ordinal": make_ordinal,
    "multilabel": make_labels,
    "survival": make_survival,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "regression": {"lr": 0.02, "rounds": 8},
    "binary": {"lr": 0.05, "rounds": 4},
    "ordinal": {"lr": 0.2, "rounds": 8},
    "multilabel": {"lr": 0.1, "rounds": 6},
    "survival": {"lr": 0.1, "rounds": 6, "batch": 32},
}
# what a linear or small network reaches at least (at most, where less is better)
REACHED = {
    "regression": 66.0,
    "binary": 0.97,
    "ordinal": 2.0,
    "multilabel": 0.85,
    "survival": 0.72,
}


def run(task: str, method: str = "fedavg", **more: Any) -> dict[str, Any]:
    options = {"executor": "sequential", **OPTIONS[task], **more}
    return fedtailor.run(method, DATA[task](), task=task, **options)


# ---------------------------------------------------------------- whole runs
@pytest.mark.parametrize("task", DATA)
def test_fedavg_learns(task: str) -> None:
    result = run(task)
    measure = result["measure"]
    value = result[measure["name"]]["best"]
    if measure["higher_is_better"]:
        assert value > REACHED[task]
    else:
        assert value < REACHED[task]
    assert "accuracy" not in result
    assert result["task"] == task
    assert all(measure["name"] in client for client in result["clients"])


QUICK = {("regression", "ditto"), ("survival", "fedper"), ("multilabel", "cfl")}
PAIRS = [
    pytest.param(
        task, method, marks=[] if (task, method) in QUICK else [pytest.mark.slow]
    )
    for task in DATA
    for method in GENERAL
]


@pytest.mark.parametrize(("task", "method"), PAIRS)
def test_general_methods_do_every_task(task: str, method: str) -> None:
    result = run(task, method, rounds=2)
    name = result["measure"]["name"]
    assert np.isfinite(result[name]["last"])


@pytest.mark.parametrize("task", ["regression", "survival", "multilabel"])
def test_vmap_and_sequential_agree(task: str) -> None:
    one = run(task, "ditto", rounds=2)
    other = run(task, "ditto", rounds=2, executor="vmap")
    name = one["measure"]["name"]
    assert one[name]["last"] == pytest.approx(other[name]["last"], rel=1e-4)
    assert one["measures"] == pytest.approx(other["measures"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "survival"])
def test_worker_processes_agree(task: str) -> None:
    one = run(task, "fedper", rounds=2)
    other = run(task, "fedper", rounds=2, executor="processes", workers=2)
    assert one["hash"] == other["hash"]
    assert one["measures"] == other["measures"]


@pytest.mark.parametrize("method", NEED_CLASSES)
def test_methods_that_need_classes_are_refused_by_name(method: str) -> None:
    with pytest.raises(
        UserError, match=f"^{method} needs classes .*regression.*fedavg"
    ):
        run("regression", method)


def test_methods_that_need_classes_do_binary() -> None:
    result = run("binary", "gpfl", rounds=2)
    assert result["auroc"]["last"] > 0.9


@pytest.mark.slow
def test_all_other_methods_do_regression() -> None:
    others = set(fedtailor_methods()) - set(NEED_CLASSES) - set(GENERAL)
    for method in sorted(others):
        result = run("regression", method, rounds=1)
        assert np.isfinite(result["rmse"]["last"]), method


def fedtailor_methods() -> list[str]:
    return methods.names()


# ---------------------------------------------------------------- inference and refusals
def test_float_labels_are_a_regression_and_it_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = fedtailor.run("fedavg", make_regression(), rounds=1, lr=0.01, quiet=False)
    assert result["task"] == "regression"
    printed = capsys.readouterr()
    assert "task: regression, because" in printed.out + printed.err


def test_two_columns_are_survival_and_marks_are_labels() -> None:
    assert build_dataset(make_survival()).target == "survival"
    assert build_dataset(make_labels()).target == "labels"
    assert build_dataset(make_ordinal()).target == "classes"
    whole_floats = [(x, y.astype(float)) for x, y in make_binary()]
    assert build_dataset(whole_floats).target == "classes"


def test_whole_numbers_can_be_regressed() -> None:
    result = fedtailor.run(
        "fedavg", make_ordinal(), task="regression", rounds=1, lr=0.01
    )
    assert result["task"] == "regression"


def test_many_whole_numbers_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    scores = [(rng.normal(size=(60, 3)), rng.integers(0, 71, 60)) for _ in range(3)]
    fedtailor.run("fedavg", scores, rounds=1, quiet=False)
    printed = capsys.readouterr()
    assert "--task regression" in printed.out + printed.err


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (make_binary, {"task": "regresion"}, "did you mean regression"),
        (make_ordinal, {"task": "binary"}, "10 classes, not two"),
        (make_halves, {"task": "classification"}, "not classes"),
        (make_ordinal, {"task": "survival"}, "the targets of arrays are classes"),
        (make_binary, {"select": "aucroc"}, "did you mean auroc"),
        (make_binary, {"class_weights": "1,2,3"}, "3 numbers for 2 classes"),
        (make_binary, {"class_weights": "1,-2"}, "positive number"),
        (make_regression, {"class_weights": "balanced"}, "no classes to weigh"),
        (make_regression, {"views": "new"}, "combines probabilities"),
        (make_regression, {"attack": "label_flip"}, "no classes to confuse"),
        (make_labels, {"partition": "dirichlet:0.1"}, "use iid, quantity"),
    ],
)
def test_what_cannot_be_is_one_line(
    data: Any, options: dict[str, Any], words: str
) -> None:
    if "partition" in options:
        x = np.concatenate([x for x, _ in data()])
        y = np.concatenate([y for _, y in data()])
        own = build_dataset([(x, y)])
        given: Any = replace(own, owner=None, owners=())
    else:
        given = data()
    with pytest.raises(UserError, match=words):
        fedtailor.run("fedavg", given, rounds=1, **options)


def test_names_of_tasks() -> None:
    assert set(task_names()) == {*DATA, "classification"}


# ---------------------------------------------------------------- what decides
def test_select_decides_the_round_and_not_what_is_told() -> None:
    result = run("binary", select="loss")
    assert result["chosen_by"] == "loss"
    assert result["measure"]["name"] == "auroc"


def test_class_weights_move_the_balance() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    rare = np.flatnonzero(y == 0)[:30]
    rows = np.concatenate([np.flatnonzero(y == 1), rare])
    data = deal(standardise(x)[rows], y[rows], 3)
    plain = fedtailor.run("fedavg", data, rounds=1, lr=0.005)
    weighted = fedtailor.run(
        "fedavg", data, rounds=1, lr=0.005, class_weights="balanced"
    )
    gain = weighted["measures"]["balanced_accuracy"]
    assert gain > plain["measures"]["balanced_accuracy"]


def test_a_score_at_the_trivial_rate_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = np.random.default_rng(1)
    noise = [(rng.normal(size=(80, 3)), rng.normal(size=80)) for _ in range(3)]
    fedtailor.run("fedavg", noise, rounds=1, lr=1e-6)
    assert "no better than" in capsys.readouterr().err
    run("regression")
    assert "no better than" not in capsys.readouterr().err


def test_a_kept_model_predicts_values(tmp_path: Any) -> None:
    data = make_regression()
    fedtailor.run(
        "fedper", data, out=tmp_path / "r", rounds=8, lr=0.02, executor="sequential"
    )
    x, y = data[0]
    model = fedtailor.load(tmp_path / "r", data=data).client(0)
    values = model.predict(x)
    assert 100 < float(values.mean()) < 200
    assert np.corrcoef(values.numpy(), y)[0, 1] > 0.5
    inputs = torch.as_tensor(x, dtype=torch.float32)
    torch.testing.assert_close(model.module()(inputs), values)
    with pytest.raises(UserError, match="no probabilities"):
        model.predict_proba(x)


def test_a_kept_binary_model_decides_by_the_threshold(tmp_path: Any) -> None:
    data = make_binary()
    options: dict[str, Any] = {"task": "binary", "rounds": 2, "lr": 0.02}
    result = fedtailor.run("fedavg", data, out=tmp_path / "r", **options)
    model = fedtailor.load(tmp_path / "r", data=data).client(0)
    x, _ = data[0]
    p = model.predict_proba(x)[:, 1]
    threshold = result["measures"]["threshold"]
    assert torch.equal(model.predict(x), (p >= threshold).long())


# ---------------------------------------------------------------- measures
def tally_in_parts(task: Task, output: Tensor, y: Tensor) -> list[Any]:
    """The tallies of three clients, with padding that must not count."""
    tallies = []
    for rows in torch.arange(len(y)).chunk(3):
        padded = torch.cat([rows, rows[:2]])
        mask = torch.cat([torch.ones(len(rows)), torch.zeros(2)])
        tallies.append(task.tally(output[padded], y[padded], mask))
    return tallies


def test_regression_measures_are_scikit_learns() -> None:
    generator = torch.Generator().manual_seed(0)
    y = 100 + 20 * torch.randn(300, generator=generator)
    output = (y - 100) / 20 + 0.5 * torch.randn(300, generator=generator)
    task = make_task("regression", Target(1, mean=100.0, std=20.0))
    found = task.measures(tally_in_parts(task, output[:, None], y))
    predicted = output * 20 + 100
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(y, predicted))
    assert found["rmse"] == pytest.approx(
        metrics.root_mean_squared_error(y, predicted), rel=1e-5
    )
    assert found["r2"] == pytest.approx(metrics.r2_score(y, predicted), rel=1e-4)


def test_binary_measures_are_scikit_learns() -> None:
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(900, generator=generator) < 0.3).long()
    score = torch.randn(900, generator=generator) + 1.5 * y
    output = torch.stack([torch.zeros(900), score - 2], -1)
    task = make_task("binary", Target(2))
    tallies = tally_in_parts(task, output, y)
    decided = task.decide(tallies)
    found = task.measures(tallies, decided)
    p = output.softmax(-1)[:, 1]
    answer = task.answer(output, decided)
    assert found["auroc"] == pytest.approx(metrics.roc_auc_score(y, p), abs=2e-3)
    assert found["auprc"] == pytest.approx(
        metrics.average_precision_score(y, p), abs=5e-3
    )
    assert found["f1"] == pytest.approx(metrics.f1_score(y, answer), abs=1e-6)
    assert found["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(y, answer), abs=1e-6
    )
    best = max(metrics.f1_score(y, p >= t) for t in np.linspace(0.02, 0.98, 97))
    assert found["f1"] > best - 0.01
    assert found["threshold"] != 0.5


def test_multilabel_measures_are_scikit_learns() -> None:
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(600, 3, generator=generator) < 0.4).float()
    output = torch.randn(600, 3, generator=generator) + y
    task = make_task("multilabel", Target(3))
    found = task.measures(tally_in_parts(task, output, y))
    answer = task.answer(output)
    p = output.sigmoid()
    assert found["auroc"] == pytest.approx(metrics.roc_auc_score(y, p), abs=2e-3)
    assert found["macro_f1"] == pytest.approx(
        metrics.f1_score(y, answer, average="macro")
    )
    assert found["micro_f1"] == pytest.approx(
        metrics.f1_score(y, answer, average="micro")
    )
    assert found["hamming_loss"] == pytest.approx(metrics.hamming_loss(y, answer))
    assert found["exact_match"] == pytest.approx(metrics.accuracy_score(y, answer))


def test_ordinal_measures_are_scikit_learns() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 5, (400,), generator=generator)
    steps = torch.arange(4)
    output = y[:, None] - steps - 0.5 + torch.randn(400, 1, generator=generator)
    task = make_task("ordinal", Target(5))
    found = task.measures(tally_in_parts(task, output, y))
    answer = task.answer(output)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(y, answer))
    assert found["kappa"] == pytest.approx(
        metrics.cohen_kappa_score(y, answer, weights="quadratic")
    )


def count_concordance(risk: Tensor, time: Tensor, event: Tensor) -> tuple[float, int]:
    """Pairs one by one."""
    concordant = 0.0
    pairs = 0
    for i in range(len(time)):
        for j in range(len(time)):
            later = time[j] > time[i] or (time[j] == time[i] and not event[j])
            if i == j or not event[i] or not later:
                continue
            pairs += 1
            concordant += 1.0 if risk[i] > risk[j] else 0.5 * (risk[i] == risk[j])
    return float(concordant), pairs


def test_c_index_is_of_pairs_within_clients() -> None:
    generator = torch.Generator().manual_seed(0)
    time = torch.randint(1, 20, (90,), generator=generator).float()
    event = (torch.rand(90, generator=generator) < 0.6).float()
    risk = (torch.randn(90, generator=generator) * 2).round() - time / 10
    task = make_task("survival", Target(1))
    y = torch.stack([time, event], -1)
    found = task.measures(tally_in_parts(task, risk[:, None], y))
    parts = [
        count_concordance(risk[rows], time[rows], event[rows])
        for rows in torch.arange(90).chunk(3)
    ]
    concordant = sum(part for part, _ in parts)
    pairs = sum(count for _, count in parts)
    assert found["c_index"] == pytest.approx(concordant / pairs)


def test_cox_loss_is_the_partial_likelihood() -> None:
    generator = torch.Generator().manual_seed(0)
    time = torch.rand(30, generator=generator)
    event = (torch.rand(30, generator=generator) < 0.5).float()
    risk = torch.randn(30, generator=generator, requires_grad=True)
    task = make_task("survival", Target(1))
    y = torch.stack([time, event], -1)
    loss = task.loss(risk[:, None], y)
    total = torch.zeros(())
    for i in torch.nonzero(event)[:, 0]:
        at_risk = risk[time >= time[i]]
        total = total + at_risk.logsumexp(0) - risk[i]
    torch.testing.assert_close(loss, total / event.sum())
    (gradient,) = torch.autograd.grad(loss, risk)
    assert bool(torch.isfinite(gradient).all())
    without_events = torch.stack([time, torch.zeros(30)], -1)
    assert task.loss(risk[:, None], without_events).item() == 0


@pytest.mark.slow
def test_a_cox_model_finds_the_true_order() -> None:
    """The C-index of a linear model comes near that of the true risks."""
    data = make_survival(1500)
    head = torch.nn.Sequential(torch.nn.Linear(4, 1))
    options: dict[str, Any] = {"rounds": 10, "lr": 0.2, "batch": 64}
    result = fedtailor.run("fedavg", data, model=head, last="0", **options)
    truth = [
        count_concordance(
            torch.tensor(x @ COEFFICIENTS), torch.tensor(y[:, 0]), torch.tensor(y[:, 1])
        )
        for x, y in deal(*map(np.concatenate, zip(*data, strict=True)), 30)
    ]
    best = sum(part for part, _ in truth) / sum(count for _, count in truth)
    assert result["c_index"]["best"] > best - 0.03
