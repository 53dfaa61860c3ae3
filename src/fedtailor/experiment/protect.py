"""Options on attackers, robust merging and privacy: checked, and turned into filters."""

from __future__ import annotations

import importlib

from torch import nn

from fedtailor.core.errors import UserError
from fedtailor.core.tree import is_statistic
from fedtailor.data.federation import Federation
from fedtailor.executors.world import AnyMethod
from fedtailor.experiment.config import Experiment, parse_participation
from fedtailor.filters import Filter
from fedtailor.filters.by_option.aggregate import Aggregate
from fedtailor.filters.by_option.attack import (
    Attack,
    choose_attackers,
    parse_attack,
    poison_data,
)
from fedtailor.filters.by_option.encryption import Encryption
from fedtailor.filters.by_option.privacy import (
    ClientPrivacy,
    PrivacyTerms,
    SamplePrivacy,
)
from fedtailor.filters.by_option.sums import SumTerms
from fedtailor.maths.accounting import check_accountant, solve_noise
from fedtailor.maths.fixed_point import FixedPoint
from fedtailor.maths.homomorphic import find_tenseal
from fedtailor.method import Method
from fedtailor.training.private_gradient import SampleNoise

FEWEST = 2  # clients in a sum


def protect(
    options: Experiment, method: AnyMethod, network: nn.Module, federation: Federation
) -> Federation:
    """Refuse what cannot be protected; gives the federation as attackers leave it."""
    check_privacy(options, method, network, federation)
    check_encryption(options)
    check_secure_sum(options)
    return poison_attackers(options, federation)


# ---------------------------------------------------------------- attackers
def poison_attackers(options: Experiment, federation: Federation) -> Federation:
    """The federation with what attackers changed in their own data."""
    if options.attack is None:
        return federation
    if options.new_clients:
        raise UserError("attack and new_clients cannot be had together")
    attackers = choose_attackers(options.seed, federation.clients, options.attackers)
    spec = parse_attack(options.attack)
    return poison_data(federation, spec, attackers, options.seed)


def describe_attackers(options: Experiment, clients: int) -> list[str]:
    """What the user should know of the attack."""
    if options.attack is None:
        return []
    attackers = choose_attackers(options.seed, clients, options.attackers)
    if not attackers:
        return [
            f"warning: attackers={options.attackers} of {clients} clients is nobody:"
            " there is no attack"
        ]
    return [
        f"attack: {options.attack} by clients {', '.join(map(str, sorted(attackers)))};"
        " scores are those of the others"
    ]


# ---------------------------------------------------------------- privacy
def settle_privacy(options: Experiment) -> Experiment:
    """The options with the noise that keeps the promised epsilon."""
    if options.dp is None:
        _refuse_idle_options(options)
        return options
    check_accountant()
    passes = count_passes(options)
    if options.dp_noise is not None:
        return options.model_copy(update={"dp_passes": passes})
    if options.dp_epsilon is None:
        raise UserError(f"dp={options.dp}: give --dp-noise or --dp-epsilon")
    _, share = parse_participation(options.participation)
    is_amplified = options.dp == "client" and options.sampling == "poisson"
    noise = solve_noise(
        epsilon=options.dp_epsilon,
        delta=options.dp_delta,
        rate=share if is_amplified else 1.0,
        times=options.rounds * (passes if options.dp == "sample" else 1),
        accountant=options.dp_accountant,
    )
    return options.model_copy(update={"dp_noise": noise, "dp_passes": passes})


def _refuse_idle_options(options: Experiment) -> None:
    """Options that mean nothing without ``dp``."""
    for name in ("dp_noise", "dp_epsilon", "dp_passes"):
        if getattr(options, name) is not None:
            raise UserError(f"{name} needs dp=client or dp=sample")


def count_passes(options: Experiment) -> int:
    """How often a client may go over its data in a round."""
    return options.epochs if options.dp_passes is None else options.dp_passes


def check_privacy(
    options: Experiment, method: AnyMethod, network: nn.Module, federation: Federation
) -> None:
    """Refuse what cannot be private, by name and with the reason."""
    if options.sampling == "poisson" and type(method).sample is not Method.sample:
        raise UserError(
            f"sampling=poisson: {options.method} chooses its clients itself"
        )
    if options.dp is None:
        return
    _refuse_statistics(options, network)
    if options.dp == "sample":
        _check_batches(options, federation)
        return
    if options.aggregate != "mean":
        raise UserError(
            f"dp=client, aggregate={options.aggregate}: the noise covers a mean and no"
            " other rule; leave --aggregate out"
        )
    if options.dp_where == "clients" and options.sampling == "poisson":
        raise UserError(
            "dp_where=clients: the noise is divided by the number of clients, which"
            " sampling=poisson leaves open; take sampling=fixed"
        )


def _refuse_statistics(options: Experiment, network: nn.Module) -> None:
    """BatchNorm: a noisy variance may be negative, and a batch mixes its samples."""
    names = [name for name, _ in network.named_buffers() if is_statistic(name)]
    if not names:
        return
    if options.dp == "sample":
        raise UserError(
            f"dp=sample: BatchNorm ({names[0]}) mixes the samples of a batch, so none has"
            " a gradient of its own; take --norm group or another model"
        )
    if options.bn != "local":
        raise UserError(
            f"dp=client: BatchNorm statistics ({names[0]}) are uploaded, and noise can"
            " make a variance negative; take --bn local or --norm group"
        )


def _check_batches(options: Experiment, federation: Federation) -> None:
    """No sample may be twice in a pass."""
    if options.batching != "drop":
        raise UserError(
            "dp=sample: a short last batch is filled up with samples of the same pass;"
            " take --batching drop"
        )
    for k, index in enumerate(federation.train):
        if len(index) < options.batch:
            raise UserError(
                f"dp=sample: client {k} has {len(index)} training examples, fewer than"
                f" a batch of {options.batch}; take a smaller --batch or fewer clients"
            )


# ---------------------------------------------------------------- exact sums
def settle_sums(options: Experiment, federation: Federation) -> Experiment:
    """The options with the room that exact sums need, from what is known of all clients."""
    if options.encrypt is None and options.he_key:
        raise UserError("he_key needs encrypt=heads or encrypt=all")
    if not needs_sums(options):
        if options.change_limit:
            raise UserError(
                "change_limit needs encrypt=heads, encrypt=all or secure_sum"
            )
        return options
    heaviest = max((len(index) for index in federation.train), default=1)
    return options.model_copy(
        update={
            "sum_clients": options.sum_clients or federation.clients,
            "sum_weight": options.sum_weight or max(1, heaviest),
        }
    )


def needs_sums(options: Experiment) -> bool:
    """Whether the server has only sums of what clients send."""
    return options.encrypt is not None or options.secure_sum


def name_sums(options: Experiment) -> str:
    """The option that leaves the server only sums, for messages."""
    if options.secure_sum:
        return "secure_sum"
    return f"encrypt={options.encrypt}"


def adapt_to_sums(options: Experiment, method: AnyMethod, clients: int) -> AnyMethod:
    """The method as it runs where the server has only sums, if it has."""
    if not needs_sums(options):
        return method
    return method.with_sealed_sums(clients)


def check_encryption(options: Experiment) -> None:
    """Refuse what cannot be had on sums that nobody at the server can open."""
    if options.encrypt is None:
        return
    if options.he != "plain":
        find_tenseal()
    what = f"encrypt={options.encrypt}"
    if options.aggregate != "mean":
        raise UserError(
            f"{what}, aggregate={options.aggregate}: the rule must look at every upload,"
            " and the server has only sums; leave one of them out"
        )
    if options.dp == "client":
        raise UserError(
            f"{what}, dp=client: the server shortens every upload once more, which it"
            " cannot when they are encrypted; take --dp sample, or leave one of them out"
        )
    make_sum_terms(options, "")


def make_sum_terms(
    options: Experiment,
    method: str,
    instance: AnyMethod | None = None,
) -> SumTerms:
    """What is protected by sums, and by which integers."""
    clients = options.sum_clients or 1
    heaviest = options.sum_weight or 1
    is_equal = instance is not None and instance.counts_alike
    is_equal = is_equal or options.dp == "client"
    if is_equal:
        heaviest = 1
    return SumTerms(
        option=name_sums(options),
        method=method,
        scope=options.encrypt or "all",
        summed=() if instance is None else instance.summed,
        head_fields=() if instance is None else instance.head_fields,
        is_equal=is_equal,
        mean=FixedPoint(clients, options.sum_range, heaviest),
        sum=FixedPoint(clients, options.sum_range),
    )


def make_encryption(options: Experiment, name: str, method: AnyMethod) -> Encryption:
    """The filter that seals what clients send."""
    terms = make_sum_terms(options, name, method)
    key_id = "plain" if options.he == "plain" else options.he_key
    return Encryption(terms, options.he, key_id, options.change_limit)


def describe_encryption(options: Experiment) -> list[str]:
    """What the user should know of it."""
    if options.encrypt is None:
        return []
    terms = make_sum_terms(options, "")
    form = terms.mean
    line = (
        f"encrypt={options.encrypt}: he={options.he}, numbers within {form.limit:g} in"
        f" steps of {form.step:.2g} / n, room for {form.clients} clients of at most"
        f" {form.heaviest} examples"
    )
    if options.he == "plain":
        line += "; nothing is hidden: this is to compare with"
    return [line]


# ---------------------------------------------------------------- masks
def check_secure_sum(options: Experiment) -> None:
    """Refuse what cannot be had on sums whose parts nobody sees."""
    if not options.secure_sum:
        return
    # packages that come with an extra
    importlib.import_module("fedtailor.maths.secure_sum.primitives")
    if options.encrypt is not None:
        raise UserError(
            "secure_sum, encrypt: masks and ciphertexts hide the same uploads; leave one"
            " of them out"
        )
    if options.aggregate != "mean":
        raise UserError(
            f"secure_sum, aggregate={options.aggregate}: the rule must look at every"
            " upload, and the server has only their sum; leave one of them out"
        )
    if options.dp == "client" and options.dp_where == "server":
        raise UserError(
            "secure_sum, dp=client: the server shortens every upload once more, which it"
            " cannot under masks; take --dp-where clients"
        )
    make_sum_terms(options, "")


def check_cohort(options: Experiment) -> None:
    """Refuse sums of one, where all clients of a run are known."""
    share, _ = parse_participation(options.participation)
    clients = options.clients or 0
    if options.secure_sum and round(share * clients) < FEWEST:
        raise UserError(
            f"secure_sum: participation={options.participation} of {clients} clients is"
            " one at a time, and the sum of one upload is that upload"
        )


def make_secure_sum(options: Experiment, name: str, method: AnyMethod) -> Filter:
    """The filter that masks what clients send."""
    # imported here, because its packages come with an extra
    from fedtailor.filters.by_option.secure_sum import SecureSum, SecureTerms

    return SecureSum(
        SecureTerms(
            sums=make_sum_terms(options, name, method),
            seed=options.seed,
            threshold=options.secure_threshold,
            neighbours=options.secure_neighbours,
            is_private=options.dp == "client",
            change_limit=options.change_limit,
        )
    )


def describe_secure_sum(options: Experiment) -> list[str]:
    """What the user should know of it."""
    if not options.secure_sum:
        return []
    form = make_sum_terms(options, "").mean
    return [
        f"secure_sum: numbers within {form.limit:g} in steps of {form.step:.2g} / n, room"
        f" for {form.clients} clients of at most {form.heaviest} examples;"
        f" {options.secure_threshold:.0%} of those asked must stay"
    ]


# ---------------------------------------------------------------- filters
def make_protection(
    options: Experiment, method: str, clients: int, instance: AnyMethod
) -> list[Filter]:
    """Filters for what was asked, in the order in which downloads pass them.

    Uploads pass them the other way round: an attacker has the last word.
    """
    filters: list[Filter] = []
    if options.secure_sum:
        filters.append(make_secure_sum(options, method, instance))
    if options.encrypt is not None:
        # the last at a client, and the first at whoever opens what was sent
        filters.append(make_encryption(options, method, instance))
    if options.attack is not None:
        attackers = choose_attackers(options.seed, clients, options.attackers)
        filters.append(Attack(parse_attack(options.attack), attackers))
    if options.dp is not None:
        terms = make_terms(options, method, clients)
        kind = ClientPrivacy if options.dp == "client" else SamplePrivacy
        filters.append(kind(terms))
    if options.aggregate != "mean":
        filters.append(Aggregate(options.aggregate, method))
    return filters


def make_terms(options: Experiment, method: str, clients: int) -> PrivacyTerms:
    """What was promised, for the filter that keeps it."""
    assert options.dp_noise is not None
    many = 0
    if options.dp == "client" and options.dp_where == "clients":
        share, _ = parse_participation(options.participation)
        many = max(1, round(share * clients))
    return PrivacyTerms(
        clip=options.dp_clip,
        noise=options.dp_noise,
        delta=options.dp_delta,
        limit=options.dp_epsilon,
        accountant=options.dp_accountant,
        seed=options.seed,
        method=method,
        passes=count_passes(options),
        noisy_clients=many,
        is_summed=options.secure_sum,
    )


def make_sample_noise(options: Experiment) -> SampleNoise | None:
    """How clients make their gradients private, if they do."""
    if options.dp != "sample" or options.dp_noise is None:
        return None
    return SampleNoise(options.dp_clip, options.dp_noise, count_passes(options))


def describe_privacy(options: Experiment) -> list[str]:
    """What the user should know of the noise."""
    if options.dp is None:
        return []
    lines = [
        f"dp={options.dp}: noise {options.dp_noise:.4g} x {options.dp_clip:g},"
        f" delta {options.dp_delta:g}, counted by {options.dp_accountant}"
    ]
    if options.dp == "client" and options.sampling == "fixed":
        lines.append(
            "dp=client: no amplification is claimed for a fixed number of clients;"
            " --sampling poisson needs less noise"
        )
    if options.dp_where == "clients":
        lines.append(
            "dp_where=clients: the sum is private; whoever sees single uploads sees"
            " less noise on each"
        )
    return lines
