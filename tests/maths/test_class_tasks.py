"""Tasks of classes: losses against ones written out by hand, groups, accuracies and their floor."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Rng
from fedtailor.data import load_dataset
from fedtailor.data.sets.cifar import FINE_LABELS
from fedtailor.maths.class_tasks import (
    ABSENT,
    CPU,
    SUPERCLASS,
    Groups,
    Tasks,
    divide_classes,
    lay_out,
)
from fedtailor.maths.mgda import head_gram

UNEVEN: Groups = ((0, 1, 2), (3,), (4, 5), (6,))


def make(groups: Groups, membership: bool = False) -> Tasks:
    return lay_out(groups, membership, CPU)


def singles(classes: int) -> Tasks:
    return make(divide_classes("classes", None, classes))


def draw(seed: int, *shape: int) -> Tensor:
    return Rng.seed(seed).normal(*shape).double()


@pytest.fixture(autouse=True)
def double() -> object:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


# ---------------------------------------------------------------- groups
def test_classes_are_divided_as_asked() -> None:
    assert divide_classes("classes", None, 4) == ((0,), (1,), (2,), (3,))
    assert (
        divide_classes("consecutive:2", None, 4)
        == divide_classes("classes", 2, 4)
        == ((0, 1), (2, 3))
    )
    assert divide_classes("classes", 3, 7) == ((0, 1, 2), (3, 4), (5, 6))
    assert divide_classes("classes", 1, 3) == ((0, 1, 2),)
    # the paper's T = 10: ten consecutive classes each
    ten = divide_classes("consecutive:10", None, 100)
    assert ten == tuple(tuple(range(10 * t, 10 * t + 10)) for t in range(10))
    assert divide_classes("consecutive:10", 10, 100) == ten


def test_superclasses_have_five_classes_of_a_kind() -> None:
    groups = divide_classes("superclass", None, 100)
    assert divide_classes("superclass", 20, 100) == groups
    assert [len(g) for g in groups] == [5] * 20 and sorted(
        itertools.chain(*groups)
    ) == list(range(100))
    trees = next(g for g in groups if FINE_LABELS.index("oak_tree") in g)
    assert {FINE_LABELS[c] for c in trees} == {
        "maple_tree",
        "oak_tree",
        "palm_tree",
        "pine_tree",
        "willow_tree",
    }
    people = next(g for g in groups if FINE_LABELS.index("baby") in g)
    assert {FINE_LABELS[c] for c in people} == {"baby", "boy", "girl", "man", "woman"}


@pytest.mark.real
def test_superclasses_are_those_of_the_real_labels(
    real_data: Callable[[str], Path],
) -> None:
    folder = real_data("cifar100")
    fine, coarse = (
        load_dataset(name, folder).y for name in ("cifar100", "cifar100:coarse")
    )
    assert (
        torch.equal(torch.tensor(SUPERCLASS)[fine], coarse)
        and len(fine.unique()) == 100
    )


@pytest.mark.parametrize(
    ("groups", "tasks", "classes", "said"),
    [
        ("class", None, 10, "did you mean classes"),
        ("classes:3", None, 10, "no groups 'classes:3'"),
        ("consecutive", None, 10, "as in groups=consecutive:10"),
        ("consecutive:x", None, 10, "groups=consecutive:x does not say"),
        ("consecutive:0", None, 10, "0 tasks cannot be made of 10 classes"),
        ("consecutive:11", None, 10, "take 1 to 10"),
        ("classes", 11, 10, "11 tasks cannot be made of 10 classes"),
        ("superclass", None, 10, "CIFAR-100's, these data have 10 classes"),
        ("superclass", 10, 100, "groups=superclass makes 20 tasks, not tasks=10"),
        ("consecutive:5", 4, 10, "groups=consecutive:5 makes 5 tasks, not tasks=4"),
    ],
)
def test_impossible_groups_are_refused_in_one_line(
    groups: str, tasks: int | None, classes: int, said: str
) -> None:
    with pytest.raises(UserError) as refused:
        divide_classes(groups, tasks, classes)
    assert said in str(refused.value) and "\n" not in str(refused.value)


# ---------------------------------------------------------------- losses
def test_a_class_that_is_a_task_has_the_row_of_its_number_and_the_binary_loss() -> None:
    tasks, logits, y = singles(6), draw(1, 9, 6), torch.arange(9) % 6
    assert tasks.logits == 6 and torch.equal(tasks.task_of, torch.arange(6))
    loss, _ = tasks.losses_and_errors(logits, y)
    target = F.one_hot(y, 6).double()
    expected = F.binary_cross_entropy_with_logits(
        logits, target, reduction="none"
    ).mean(0)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-14)


def test_positives_count_as_much_as_they_are_boosted() -> None:
    tasks, logits, y, boost = (
        singles(4),
        draw(2, 7, 4),
        torch.arange(7) % 3,
        torch.tensor([2.0, 1.0, 0.5, 9.0]),
    )
    target = F.one_hot(y, 4).double()
    terms = F.binary_cross_entropy_with_logits(
        logits, target, pos_weight=boost, reduction="none"
    )
    torch.testing.assert_close(
        tasks.losses_and_errors(logits, y, boost)[0], terms.mean(0), rtol=0, atol=1e-14
    )


def test_one_task_is_the_plain_softmax_to_the_last_bit() -> None:
    tasks, y = make(((0, 1, 2, 3, 4),)), torch.tensor([3, 0, 4, 4, 1, 2, 2])
    logits = draw(3, 7, 5).float().requires_grad_()
    loss, error = tasks.losses_and_errors(logits, y)
    ours = torch.autograd.grad(loss.sum(), logits)[0]
    assert torch.equal(ours, torch.autograd.grad(F.cross_entropy(logits, y), logits)[0])
    torch.testing.assert_close(error.float(), ours)
    torch.testing.assert_close(
        tasks.score_classes(logits, torch.tensor([True])), logits.log_softmax(-1)
    )


def test_a_group_is_told_apart_from_all_others() -> None:
    tasks, y = make(UNEVEN), torch.tensor([0, 1, 2, 3, 4, 5, 6])
    # a logit for every class and one for "another", but one for single classes
    assert tasks.logits == 4 + 1 + 3 + 1
    logits = draw(4, 7, 9)
    loss, _ = tasks.losses_and_errors(logits, y)
    # "another" comes first
    first = F.cross_entropy(logits[:, :4], torch.tensor([1, 2, 3, 0, 0, 0, 0]))
    third = F.cross_entropy(logits[:, 5:8], torch.tensor([0, 0, 0, 0, 1, 2, 0]))
    second, fourth = (
        F.binary_cross_entropy_with_logits(logits[:, row], (y == c).double())
        for row, c in ((4, 3), (8, 6))
    )
    torch.testing.assert_close(
        loss, torch.stack([first, second, third, fourth]), rtol=0, atol=1e-14
    )


def test_membership_asks_only_for_the_group() -> None:
    tasks, y, logits = (
        make(UNEVEN, membership=True),
        torch.tensor([0, 1, 2, 3, 4, 5, 6]),
        draw(5, 7, 4),
    )
    group = torch.tensor([0, 0, 0, 1, 2, 2, 3])
    expected = F.binary_cross_entropy_with_logits(
        logits, F.one_hot(group, 4).double(), reduction="none"
    ).mean(0)
    torch.testing.assert_close(
        tasks.losses_and_errors(logits, y)[0], expected, rtol=0, atol=1e-14
    )
    # there is nothing to be a member of: plain softmax
    assert make(((0, 1, 2),), membership=True).logits == 3


@pytest.mark.parametrize(
    ("groups", "membership"),
    [(UNEVEN, False), (UNEVEN, True), (tuple((c,) for c in range(7)), False)],
)
@pytest.mark.parametrize("boosted", [False, True])
def test_errors_give_the_gram_matrix_of_all_gradients_by_the_representation(
    groups: Groups, membership: bool, boosted: bool
) -> None:
    tasks = make(groups, membership)
    z, weight, bias = (
        draw(6, 8, 5).requires_grad_(),
        draw(7, tasks.logits, 5),
        draw(8, tasks.logits),
    )
    y, boost = torch.arange(8) % 7, draw(9, len(groups)).abs() if boosted else None
    loss, error = tasks.losses_and_errors(z @ weight.T + bias, y, boost)
    rows = [
        torch.autograd.grad(part, z, retain_graph=True)[0].flatten() for part in loss
    ]
    expected = torch.stack(rows) @ torch.stack(rows).T
    assert not error.requires_grad
    torch.testing.assert_close(
        head_gram(weight, error, tasks.task_of, len(groups)),
        expected,
        rtol=0,
        atol=1e-14,
    )


def test_examples_are_counted_by_group() -> None:
    counts = torch.tensor([1.0, 0.0, 2.0, 5.0, 0.0, 0.0, 7.0])
    assert make(UNEVEN).count_examples(counts).tolist() == [3, 5, 0, 7]


# ---------------------------------------------------------------- answers
def test_prediction_is_among_the_tasks_present_and_its_loss_is_finite() -> None:
    tasks, logits = make(UNEVEN), draw(10, 50, 9) * 20
    present = torch.tensor([True, False, True, False])
    score = tasks.score_classes(logits, present)
    assert score.shape == (50, 7)
    assert set(score.argmax(-1).tolist()) <= {0, 1, 2, 4, 5}
    assert (score[:, [3, 6]] == ABSENT).all() and (
        score[:, [0, 1, 2, 4, 5]] > ABSENT
    ).all()
    first = logits[:, :4].log_softmax(-1)
    torch.testing.assert_close(score[:, :3], first[:, 1:])
    assert torch.isfinite(F.cross_entropy(score, torch.full((50,), 3)))


@pytest.mark.parametrize("classes", [2, 10, 20, 100])
def test_who_always_says_no_gets_the_floor(classes: int) -> None:
    tasks, y = singles(classes), torch.arange(5 * classes) % classes
    everything = torch.ones(classes, dtype=torch.bool)
    for logits in (torch.zeros(len(y), classes), torch.full((len(y), classes), -3.0)):
        rates = {
            k: float(v.mean())
            for k, v in tasks.rate_answers(logits, y, everything).items()
        }
        assert rates["acc_task_all"] == pytest.approx(1 - 1 / classes, abs=1e-12)
        assert (
            rates["acc_task_present"]
            == rates["acc_task_all"]
            == pytest.approx(rates["acc_task_all_floor"])
        )
        assert (
            rates["acc_task_balanced"] == pytest.approx(0.5)
            and rates["acc_multiclass"] == 1 / classes
        )


def test_rates_are_what_they_are_called() -> None:
    tasks, y = singles(4), torch.tensor([0, 1, 2, 1])
    present = torch.tensor([True, True, False, False])
    yes = torch.tensor([[1, 1, 0, 1], [0, 1, 0, 1], [0, 0, 0, 1], [1, 0, 1, 1]])
    logits = (2.0 * yes - 1) * torch.tensor([3.0, 1.0, 9.0, 9.0])
    everything = torch.ones(4, dtype=torch.bool)
    trained = tasks.rate_answers(logits, y, present, everything)
    assert trained["acc_task_all"].tolist() == [0.5, 0.75, 0.5, 0.0]
    rates = tasks.rate_answers(logits, y, present)
    # tasks that were not trained say no, whatever their heads
    assert rates["acc_task_all"].tolist() == [0.75, 1.0, 0.75, 0.5]
    assert rates["acc_task_all_floor"].tolist() == [0.75] * 4
    assert rates["acc_task_present_floor"].tolist() == [0.5, 0.5, 1.0, 0.5]
    assert rates["acc_task_balanced_floor"].tolist() == [0.5] * 4
    assert rates["acc_task_present"].tolist() == [0.5, 1.0, 1.0, 0.0]
    assert rates["acc_task_balanced"].tolist() == [
        0.5,
        1.0,
        0.5,
        0.0,
    ]  # an example of no task present is missed
    assert rates["acc_multiclass"].tolist() == [1, 1, 0, 0] and rates[
        "acc_group"
    ].tolist() == [
        1,
        1,
        0,
        0,
    ]


def test_floors_where_there_is_nothing_to_tell_apart() -> None:
    """With a single task present, yes to everything is right; with one task, one class of C."""
    y = torch.tensor([2, 2, 0])
    present = torch.tensor([False, False, True, False])
    rates = singles(4).rate_answers(torch.zeros(3, 4), y, present)
    assert rates["acc_task_present_floor"].tolist() == [1, 1, 0]
    assert rates["acc_task_balanced_floor"].tolist() == [1, 1, 0]
    assert rates["acc_task_all_floor"].tolist() == [1, 1, 0.5]
    one = make(((0, 1, 2, 3),))
    rates = one.rate_answers(draw(4, 3, 4), y, torch.tensor([True]))
    assert rates["acc_task_all_floor"].tolist() == [0.25] * 3
    assert rates["acc_task_all"].tolist() == rates["acc_multiclass"].tolist()


def test_answers_of_untrained_heads_do_not_fall_below_the_floor() -> None:
    """Eight tasks are absent: whatever their random heads say, they count as no."""
    tasks = singles(10)
    y = torch.arange(40) % 2
    present = torch.arange(10) < 2
    logits = draw(5, 40, 10) * 10
    logits[:, 0] = torch.where(y == 0, 3.0, -3.0)
    logits[:, 1] = torch.where(y == 1, 3.0, -3.0)
    rates = tasks.rate_answers(logits, y, present)
    assert rates["acc_task_all"].tolist() == [1.0] * 40


def test_groups_may_be_right_where_classes_are_not() -> None:
    tasks, y = make(UNEVEN, membership=True), torch.tensor([0, 2, 5, 3])
    logits = 4.0 * F.one_hot(torch.tensor([0, 0, 2, 3]), 4) - 2.0
    rates = tasks.rate_answers(logits, y, torch.ones(4, dtype=torch.bool))
    assert rates["acc_group"].tolist() == [1, 1, 1, 0] and rates[
        "acc_multiclass"
    ].tolist() == [
        1,
        0,
        0,
        0,
    ]
