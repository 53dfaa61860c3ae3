"""The conformance suite: what a method must pass, whether shipped or from a user's own file."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Tree, tensors, tmap
from fedtailor.core.wire import Flat, decode, encode
from fedtailor.filters.tap import Tap, Traffic
from fedtailor.method import Method
from fedtailor.method_types import call_types, client_functions, keep_type, server_type
from fedtailor.methods import AnyMethod
from fedtailor.testing.leaks import find_leak
from fedtailor.testing.method_card import describe_method
from fedtailor.testing.session import Session, Tried
from fedtailor.testing.small_world import EXECUTORS, SmallRun, digits, run_small
from fedtailor.training.optim import Plan

METHODS_MAY_IMPORT = (
    "client",
    "core",
    "maths",
    "method",
    "methods",
    "models",
    "training",
)
UNKNOWN_CLIENT = 999  # an id that no server has heard of
TOLERANCE = 1e-9  # between executors that round differently, in float64
BLOCKS = (1, 2, 99)  # clients that run together under vmap

Say = Callable[[str], Any]
Check = Callable[[Session], None]
Options = dict[str, Any]  # of run_small

# Settings that several checks share, so that each run is made once.
PLAIN: Options = {
    "rounds": 3,
    "norm": "group",
}
GROUP: Options = {
    "rounds": 2,
    "norm": "group",
    "dtype": torch.float64,
}
BATCH: Options = {
    "rounds": 2,
    "norm": "batch",
    "dtype": torch.float64,
}
LOCAL_BUFFERS: Options = {
    **BATCH,
    "bn": "local",
}
ABSENCES: Options = {
    **BATCH,
    "rounds": 4,
    "share": 0.5,
    "drop": 0.3,
}
# A private and a shared model that start alike are apart only after some steps.
EVERYBODY: Options = {
    **BATCH,
    "rounds": 4,
    "plan": Plan(lr=0.02, batch=10, epochs=3),
}
SOMETIMES_AWAY: Options = {
    **EVERYBODY,
    "share": 0.5,
    "drop": 0.3,
}
LATE_JOINER: Options = {
    "rounds": 4,
    "drop": 0.4,
    "late": True,
}


class Failed(Exception):
    """A check did not pass; the message says what, and how to correct it."""


class DoesNotApply(Exception):
    """A check has nothing to look at in this method; the message says why."""


def check_method(
    cls: type[AnyMethod],
    say: Say = print,
    variants: Sequence[AnyMethod] = (),
) -> bool:
    """Run every check on a method with its default hyper-parameters.

    Args:
        cls: the method's class.
        say: is called with one line for every check.
        variants: instances with other hyper-parameters, for the checks of what clients compute.

    Returns:
        Whether all checks passed that apply to the method.
    """
    is_ours = cls.__module__.startswith("fedtailor.methods.")
    default = Session(cls())
    others = [Session(variant, is_variant=True) for variant in variants]
    passed = 0
    applied = 0
    for check in CHECKS:
        name = (check.__doc__ or "").rstrip(".")
        sessions = [default, *others] if check in CHECKS_OF_VARIANTS else [default]
        outcome, reason = run_check(check, sessions)
        # matters of style are told, but only our own methods fail by them
        if outcome == "FAILED" and check in ADVICE and not is_ours:
            outcome = "advice"
        say(f"{outcome:7} {name}{reason}")
        applied += outcome != "skipped"
        passed += outcome in ("ok", "advice")
    say(f"{passed} of {applied} checks passed")
    return passed == applied


def run_check(check: Check, sessions: Sequence[Session]) -> tuple[str, str]:
    """What came of a check (ok, FAILED, or skipped where it found nothing to look at), and why."""
    has_run = False
    reason = ""
    for session in sessions:
        suffix = f" (with {session.method})" if session.is_variant else ""
        try:
            check(session)
            has_run = True
        except DoesNotApply as why:
            reason = f": {why}"
        except Failed as failure:
            return "FAILED", f": {failure}{suffix}"
        except Exception as error:
            text = " ".join(str(error).split())
            return "FAILED", f": {type(error).__name__}: {text}{suffix}"
    if has_run:
        return "ok", ""
    return "skipped", reason


# ---------------------------------------------------------------- what the file says
def is_frozen_and_documented(session: Session) -> None:
    """it is a frozen dataclass whose fields all have a default and a doc."""
    cls = type(session.method)
    params = getattr(cls, "__dataclass_params__", None)
    if params is None or not params.frozen:
        raise Failed("decorate the class with @dataclass(frozen=True)")
    card = describe_method(cls)
    bare = [hyper.name for hyper in card.hyper if not hyper.doc]
    if bare:
        raise Failed(
            f"no hyper(default, doc) with symbol, meaning, source for {', '.join(bare)}"
        )


def stands_alone(session: Session) -> None:
    """its file imports nothing but the interface and mathematics."""
    file = Path(inspect.getfile(type(session.method)))
    source = file.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        if not module or not module.startswith("fedtailor."):
            continue
        room = module.split(".")[1]
        if room not in METHODS_MAY_IMPORT:
            raise Failed(f"it imports {module}")


def names_its_paper(session: Session) -> None:
    """its docstring names the paper, with year and algorithm or section."""
    card = describe_method(type(session.method))
    if not card.year:
        raise Failed("no year of a paper in the module's docstring")


def vectorises(session: Session) -> None:
    """its client functions run under vmap, or are marked one_by_one."""
    _require_vectorised_functions(session)
    for setting in (GROUP, BATCH, ABSENCES):
        tried = session.try_out(block=2, **setting)
        for notice in tried.notices:
            if not notice.endswith("it is marked one_by_one"):
                raise Failed(notice)


def declares_its_types(session: Session) -> None:
    """its types are declared, and rebuild every message and state from the wire."""
    run = session.run(**BATCH)
    method = run.method
    with torch_settings(torch.float64):
        c, down, keep = run.next_visit(0)
        up, _ = method.local(c, down, keep)
    down_type, up_type = call_types(method, "local")
    _assert_rebuilt(run.server, server_type(method), "Server")
    _assert_rebuilt(keep, keep_type(method), "Keep")
    _assert_rebuilt(down, down_type, "Down")
    _assert_rebuilt(up, up_type, "Up")


# ---------------------------------------------------------------- client functions are pure
def leaves_inputs_alone(session: Session) -> None:
    """local leaves what it is given untouched, and gives the same bits again."""
    run = session.run(**BATCH)
    method = run.method
    with torch_settings(torch.float64):
        c, down, keep = run.next_visit(0)
        before = tmap(_copy, (down, keep))
        first = method.local(run.next_client(0), down, keep)
        _assert_same(before, (down, keep), "what local was given")
        method.personal(c, down, keep)
        _assert_same(before, (down, keep), "what personal was given")
        second = method.local(run.next_client(0), down, keep)
        _assert_same(first, second, "the second result")


def keeps_private_things_private(session: Session) -> None:
    """nothing a client keeps goes up or to others, whole, in part or scaled (but also_sent)."""
    method = session.method
    if keep_type(method) in (None, type(None)):
        raise DoesNotApply("it keeps nothing")
    for setting in (EVERYBODY, SOMETIMES_AWAY):
        states, traffic = _follow_states(session, setting)
        leak = find_leak(states, traffic, method.also_sent)
        if leak is not None:
            raise Failed(str(leak))


# ---------------------------------------------------------------- executors agree
def agrees_with_processes(session: Session) -> None:
    """sequential and worker processes give the same bits, with GroupNorm and BatchNorm."""
    settings = [BATCH] if session.is_variant else [PLAIN, BATCH]
    for setting in settings:
        one = session.run(**setting)
        _assert_no_client_lost(one)
        if session.hash_in_processes(**setting) != one.hash:
            norm = setting["norm"]
            raise Failed(f"results differ with {norm} normalisation")


def agrees_with_vmap(session: Session) -> None:
    """vmap in blocks of 1, 2 and all agrees to 1e-9 in float64, with GroupNorm and BatchNorm."""
    _require_vectorised_functions(session)
    blocks = (2,) if session.is_variant else BLOCKS
    for setting in (GROUP, BATCH):
        one = session.run(**setting)
        _assert_no_client_lost(one)
        norm = setting["norm"]
        for block in blocks:
            many = session.try_out(block, **setting)
            _assert_close(many.run, one, f"blocks of {block} with {norm} normalisation")
        _assert_same_scores(many.run, one)


def agrees_on_buffers(session: Session) -> None:
    """with local BatchNorm statistics every upload is taken, and all executors agree."""
    one = session.run(**LOCAL_BUFFERS)
    if not one.runner.template.buffers:
        raise DoesNotApply("its network has no BatchNorm")
    _assert_no_client_lost(one)
    if session.hash_in_processes(**LOCAL_BUFFERS) != one.hash:
        raise Failed("sequential and processes differ")
    many = session.try_out(block=2, **LOCAL_BUFFERS)
    _assert_close(many.run, one, "vmap")


# ---------------------------------------------------------------- clients come and go
def survives_absences(session: Session) -> None:
    """it goes on with few clients and lost replies, under vmap too, and with a late joiner."""
    for block in _blocks_to_try(session):
        tried = session.try_out(block, **ABSENCES)
        _assert_only_dropped_replies_lost(tried.run)
        _assert_only_sampled_clients_visited(tried)
        _assert_finite(tried.run)
        _assert_close(tried.run, session.run(**ABSENCES), "vmap")
    if not session.is_variant:
        late = session.run(**LATE_JOINER)
        _assert_only_dropped_replies_lost(late)
        _assert_finite(late)


def serves_unknown_clients(session: Session) -> None:
    """a client that the server has never seen can train and predict."""
    run = session.run(**ABSENCES)
    method = run.method
    runner = run.runner
    test = runner.test_examples(0)
    t = run.t + 1
    with torch_settings(torch.float64):
        down = method.send(run.server, UNKNOWN_CLIENT)
        newcomer = runner.client(0, t, Purpose.JOIN)
        keep = method.first_keep(newcomer, down)
        up, kept = method.local(run.next_client(0), down, keep)
        c = runner.client(0, t, Purpose.EVALUATE, t)
        models = [
            method.personal(c, down, keep),
            method.personal(c, down, kept),
            method.after_training(c, down, up, kept),
        ]
        for w in models:
            output = method.predict(c, w, test.x)
            if output.shape != (test.n, test.classes):
                raise Failed(
                    f"its model predicts a tensor of shape {tuple(output.shape)}"
                )
            if not _is_finite(output):
                raise Failed("its model predicts NaN or infinity")


def resumes_where_it_stopped(session: Session) -> None:
    """four rounds equal two rounds, saved, loaded, and two more, bit for bit."""
    for block in _blocks_to_try(session):
        whole = session.try_out(block, **ABSENCES)
        _assert_only_dropped_replies_lost(whole.run)
        half = session.try_out(block, **ABSENCES, until=2)
        saved = half.run.save()
        executor = EXECUTORS["vmap" if block else "sequential"]
        rest = run_small(session.method, executor=executor, since=saved, **ABSENCES)
        if rest.hash != whole.run.hash:
            raise Failed(
                "something a round depends on is neither in Server nor in Keep"
            )


def learns(session: Session) -> None:
    """its personal models learn real digits."""
    federation = digits(sizes=(40,) * 5)
    plan = Plan(lr=0.1, batch=10)
    norms = ["batch"] if session.is_variant else ["group", "batch"]
    for norm in norms:
        options: Options = {
            "rounds": 15,
            "federation": federation,
            "plan": plan,
            "norm": norm,
        }
        begun = run_small(session.method, until=1, **options)
        ended = run_small(session.method, since=begun.save(), **options)
        before = begun.accuracy()
        after = ended.accuracy()
        if after < 0.5:
            raise Failed(f"test accuracy is {after:.2f} after 15 rounds")
        if after < before + 0.1:
            raise Failed(
                f"test accuracy is {before:.2f} after 1 round and {after:.2f} after 15"
            )


def leaves_global_randomness_alone(session: Session) -> None:
    """it draws nothing from the global generators of torch, NumPy or random."""
    _assert_no_client_lost(session.run(**BATCH))
    if session.drew_globally:  # in this run or in those of the checks before
        raise Failed("draw from batch.rng, c.rng or cohort.rng instead")


ADVICE: list[Check] = [
    is_frozen_and_documented,
    stands_alone,
    names_its_paper,
    vectorises,
]
CHECKS: list[Check] = [
    *ADVICE,
    declares_its_types,
    leaves_inputs_alone,
    keeps_private_things_private,
    agrees_with_processes,
    agrees_with_vmap,
    agrees_on_buffers,
    survives_absences,
    serves_unknown_clients,
    resumes_where_it_stopped,
    learns,
    leaves_global_randomness_alone,  # last: it looks at the runs of all others
]
CHECKS_OF_VARIANTS: list[Check] = [
    vectorises,
    declares_its_types,
    leaves_inputs_alone,
    agrees_with_processes,
    agrees_with_vmap,
    survives_absences,
    serves_unknown_clients,
    resumes_where_it_stopped,
    learns,
    leaves_global_randomness_alone,
]


# ---------------------------------------------------------------- what clients keep
def _follow_states(
    session: Session, setting: Options
) -> tuple[list[dict[int, Tree]], list[Traffic]]:
    """What every client keeps after each round, and all messages."""
    tap = Tap()
    states = []
    saved = None
    for t in range(1, setting["rounds"] + 1):
        run = run_small(session.method, filters=[tap], since=saved, until=t, **setting)
        states.append({k: run.keep(k) for k in run.clients})
        saved = run.save()
    return states, tap.traffic


# ---------------------------------------------------------------- vmap
def _has_vectorised_functions(session: Session) -> bool:
    """Whether there is a client function that vmap runs."""
    cls = type(session.method)
    for name in client_functions(cls):
        function = getattr(cls, name)
        if not getattr(function, "one_by_one", False):
            return True
    return False


def _require_vectorised_functions(session: Session) -> None:
    if not _has_vectorised_functions(session):
        raise DoesNotApply("its client functions are marked one_by_one")


def _blocks_to_try(session: Session) -> list[int]:
    """0 for one client after another and, where vmap makes a difference, blocks of 2."""
    return [0, 2] if _has_vectorised_functions(session) else [0]


# ---------------------------------------------------------------- conditions of a run
def _assert_no_client_lost(run: SmallRun) -> None:
    for k, why in run.exchange.traffic.lost.items():
        raise Failed(f"client {k} is left out: {why}")


def _assert_only_dropped_replies_lost(run: SmallRun) -> None:
    """Some replies got lost on the way, and none for another reason."""
    lost = run.exchange.traffic.lost
    assert lost, "no reply got lost: another setting is needed"
    for k, why in lost.items():
        if "(--drop)" not in why:
            raise Failed(f"client {k} is left out: {why}")


def _assert_only_sampled_clients_visited(tried: Tried) -> None:
    """Half of the clients take part in a round, unless the method samples otherwise."""
    run = tried.run
    if type(run.method).sample is not Method.sample:
        return
    half = len(run.clients) // 2
    visited: dict[int, set[int]] = {}  # by round
    for call in tried.traffic:
        visited.setdefault(call.t, set()).update(call.down)
    for t in range(1, run.t + 1):
        count = len(visited.get(t, ()))
        if count > half:
            raise Failed(f"round {t} visits {count} clients where {half} were sampled")


def _assert_finite(run: SmallRun) -> None:
    """Server and clients hold numbers only."""
    states = [run.server]
    states += [run.keep(k) for k in run.clients]
    for x in tensors(states):
        if x.is_floating_point() and not _is_finite(x):
            raise Failed("NaN or infinity in a state of the server or of a client")


def _assert_close(run: SmallRun, reference: SmallRun, what: str) -> None:
    gap = largest_gap(run, reference)
    if gap > TOLERANCE:
        raise Failed(f"{what}: results differ by {gap:.1e}")


def _assert_same_scores(run: SmallRun, reference: SmallRun) -> None:
    """The personal models predict alike."""
    ours = run.scores()
    theirs = reference.scores()
    for k in run.clients:
        gap = _largest_gap_of_states(encode(ours[k]), encode(theirs[k]))
        if gap > TOLERANCE:
            raise Failed(f"the score of client {k} differs by {gap:.1e} under vmap")


# ---------------------------------------------------------------- conditions of a tree
def _assert_rebuilt(tree: Tree, kind: Any, what: str) -> None:
    """A tree comes back from its flat form."""
    back = decode(kind, encode(tree))
    _assert_same(tree, back, what)


def _assert_same(a: Tree, b: Tree, what: str) -> None:
    one = encode(a)
    two = encode(b)
    if list(one) != list(two):
        other = sorted(one.keys() ^ two.keys())
        raise Failed(f"{what} has other fields: {other[:3]}")
    for path, x in one.items():
        if not _is_same_leaf(x, two[path]):
            raise Failed(f"{what} is not the same at {path or 'its root'}")


def _is_same_leaf(x: Any, y: Any) -> bool:
    if type(x) is not type(y):
        return False
    if isinstance(x, Tensor):
        return torch.equal(x, y)
    return bool(x == y)


def _is_finite(x: Tensor) -> bool:
    return bool(torch.isfinite(x).all())


def _copy(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


# ---------------------------------------------------------------- differences of runs
def largest_gap(a: SmallRun, b: SmallRun) -> float:
    """The largest difference between two runs' states; infinity where they have other fields."""
    one = a.private_states()
    two = b.private_states()
    if one.keys() != two.keys():
        return float("inf")
    largest = _largest_gap_of_states(encode(a.server), encode(b.server))
    for k, state in one.items():
        gap = _largest_gap_of_states(state, two[k])
        largest = max(largest, gap)
    return largest


def _largest_gap_of_states(one: Flat, two: Flat) -> float:
    if one.keys() != two.keys():
        return float("inf")
    largest = 0.0
    for path, x in one.items():
        gap = _gap_of_leaves(x, two[path])
        largest = max(largest, gap)
    return largest


def _gap_of_leaves(x: Any, y: Any) -> float:
    if not isinstance(x, Tensor):
        return 0.0 if x == y else float("inf")
    if not x.numel():
        return 0.0
    difference = x.double() - y.double()
    return float(difference.abs().max())
