"""What methods' diagnostics are called, and what a person can see in them."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """A title, a sentence, and the unit."""

    title: str
    sentence: str
    unit: str = "%"


WORDS = {
    "PIR": Words(
        "Personal share of the features (PIR)",
        "FedCP cuts every example's features in a personal and a global part. This is how much"
        " goes to the personal head on average: 50 % is an even cut, more means that the"
        " clients' examples need their own head.",
    ),
    "s": Words(
        "Where single features are sent (s)",
        "For each client, how FedCP's weights s spread between 0 (global head) and 1 (personal"
        " head). A single dark column means that all features are treated alike, two ends that"
        " the method really separates.",
        "",
    ),
    "private": Words(
        "The private side alone",
        "Accuracy of the channels that never leave the client, without the shared ones. It"
        " grows as CD²-pFed hands channels over.",
    ),
    "shared": Words(
        "The shared side alone",
        "Accuracy of the channels that all clients share, without the private ones.",
    ),
    "acc_multiclass": Words(
        "The class with the best score",
        "pFedC answers one yes-or-no task a class. Here the task with the best score is the"
        " answer, as in any classifier.",
    ),
    "acc_group": Words(
        "The right group of classes",
        "Whether the best task belongs to the right group of classes; with one class a group"
        " it is the same as the class itself.",
    ),
    "acc_task_all": Words(
        "Right answers of all tasks",
        "How many of all yes-or-no tasks are answered rightly. Saying no to everything already"
        " gets the dotted line.",
    ),
    "acc_task_present": Words(
        "Right answers of the client's own tasks",
        "Only tasks whose class the client has. Saying no to everything gets the dotted line.",
    ),
    "acc_task_balanced": Words(
        "Own task and other tasks weighed alike",
        "Half the score for the example's own task, half for the client's others. Having learnt"
        " nothing gets the dotted line.",
    ),
}


def find_words(name: str) -> Words:
    """The words of a diagnostic; a stranger's goes by its own name."""
    plain = Words(
        name.replace("_", " "),
        "A diagnostic that the method reports, averaged over each client's examples.",
        "",
    )
    return WORDS.get(name, plain)
