"""The conformance suite: a method is what passes it, here and in anybody's own file."""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Tree, tensors, tmap
from fedtailor.core.wire import decode, encode
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.vectorized import Vectorized
from fedtailor.executors.world import World
from fedtailor.method_types import call_types, keep_type, server_type
from fedtailor.methods import AnyMethod
from fedtailor.storage.private_state import MemoryStore
from fedtailor.testing.method_card import describe_method
from fedtailor.testing.small_world import SmallRun, digits, run_small
from fedtailor.training.optim import Plan

METHODS_MAY_IMPORT = {"method", "client", "core", "training", "models", "maths"}
UNKNOWN_CLIENT = 999  # an id that no server has heard of

Say = Callable[[str], Any]
Check = Callable[[AnyMethod], None]


class Failed(Exception):
    """A check did not pass; the message says what, and how to correct it."""


def check_method(
    cls: type[AnyMethod], say: Say = print, variants: Sequence[AnyMethod] = ()
) -> bool:
    """Run every check on a method with its default hyper-parameters.

    Args:
        cls: the method's class.
        say: is called with one line for every check.
        variants: instances with other hyper-parameters, for the checks of what clients compute.

    Returns:
        Whether all checks passed.
    """
    is_ours = cls.__module__.startswith("fedtailor.methods.")
    passed = 0
    for check in CHECKS:
        name = (check.__doc__ or "").rstrip(".")
        instances = [cls(), *variants] if check in CHECKS_OF_VARIANTS else [cls()]
        failure = ""
        for instance in instances:
            failure = failure or _run_check(check, instance)
        # matters of style are told, but nobody else's method fails by them
        is_advice = check in STYLE_CHECKS and not is_ours
        if failure:
            say(f"{'advice' if is_advice else 'FAILED'}  {name}: {failure}")
        else:
            say(f"ok      {name}")
        passed += is_advice or not failure
    say(f"{passed} of {len(CHECKS)} checks passed")
    return passed == len(CHECKS)


def _run_check(check: Check, method: AnyMethod) -> str:
    """Why a check fails; empty if it passes."""
    suffix = "" if method == type(method)() else f" (with {method})"
    try:
        check(method)
    except Failed as failure:
        return f"{failure}{suffix}"
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}{suffix}"
    return ""


# ---------------------------------------------------------------- what the file says
def is_frozen_and_documented(method: AnyMethod) -> None:
    """it is a frozen dataclass whose fields all have a default and a doc."""
    cls = type(method)
    params = getattr(cls, "__dataclass_params__", None)
    if params is None or not params.frozen:
        raise Failed("decorate the class with @dataclass(frozen=True)")
    bare = [h.name for h in describe_method(cls).hyper if not h.doc]
    if bare:
        raise Failed(f"no hyper(default, doc) with symbol, meaning, source for {', '.join(bare)}")


def stands_alone(method: AnyMethod) -> None:
    """its file imports nothing but the interface and mathematics."""
    source = Path(inspect.getfile(type(method))).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        if not module or not module.startswith("fedtailor."):
            continue
        room = module.split(".")[1]
        if room not in METHODS_MAY_IMPORT and room != "methods":
            raise Failed(f"it imports {module}")


def names_its_paper(method: AnyMethod) -> None:
    """its docstring names the paper, with year and algorithm or section."""
    if not describe_method(type(method)).year:
        raise Failed("no year of a paper in the module's docstring")


def declares_its_types(method: AnyMethod) -> None:
    """its types are declared, and rebuild every message and state from the wire."""
    run = run_small(method, rounds=2)
    method = run.runner.method
    _assert_same(run.server, decode(server_type(method), encode(run.server)), "Server")
    c, down, keep = run.runner.load_client(0, method.send(run.server, 0), 3)
    _assert_same(keep, decode(keep_type(method), encode(keep)), "Keep")
    down_type, up_type = call_types(method, "local")
    _assert_same(down, decode(down_type, encode(down)), "Down")
    up, _ = method.local(c, down, keep)
    _assert_same(up, decode(up_type, encode(up)), "Up")


# ---------------------------------------------------------------- client functions are pure
def leaves_inputs_alone(method: AnyMethod) -> None:
    """local leaves what it is given untouched, and gives the same bits again."""
    with torch_settings(torch.float32):
        runner, down, keep = _client_in_second_round(method)
        before = tmap(_copy, (down, keep))
        first = runner.method.local(runner.client(0, 1, Purpose.CALL, 1, 1), down, keep)
        _assert_same(before, (down, keep), "what local was given")
        runner.method.personal(runner.client(0, 1, Purpose.EVALUATE, 1), down, keep)
        _assert_same(before, (down, keep), "what personal was given")
        second = runner.method.local(runner.client(0, 1, Purpose.CALL, 1, 1), down, keep)
        _assert_same(first, second, "the second result")


def leaves_global_randomness_alone(method: AnyMethod) -> None:
    """it draws nothing from the global generators of torch, NumPy or random."""
    before = _global_randomness()
    run_small(method, rounds=1)
    after = _global_randomness()
    if before != after:
        raise Failed("draw from batch.rng, c.rng or cohort.rng instead")


def keeps_private_things_private(method: AnyMethod) -> None:
    """nothing a client keeps goes up, unless the class says so (also_sent)."""
    with torch_settings(torch.float32):
        run = run_small(method, rounds=2)
        method = run.runner.method
        c, down, keep = run.runner.load_client(0, method.send(run.server, 0), 3)
        up, keep = method.local(c, down, keep)
    sent = [x for x in tensors(up) if _is_informative(x)]
    for name, value in zip(getattr(keep, "_fields", ()), keep or (), strict=True):
        if name in type(method).also_sent:
            continue
        for x in tensors(value):
            if not _is_informative(x):
                continue
            if any(x.shape == y.shape and torch.equal(x, y) for y in sent):
                raise Failed(f"Keep.{name} goes up as it is")


# ---------------------------------------------------------------- executors agree
def agrees_with_processes(method: AnyMethod) -> None:
    """sequential and worker processes give the same bits, with GroupNorm and BatchNorm."""
    for norm in ("group", "batch"):
        one = run_small(method, norm=norm)
        two = run_small(method, norm=norm, executor="processes")
        _assert_no_client_lost(one)
        same = one.hash == two.hash
        two.executor.close()
        if not same:
            raise Failed(f"results differ with {norm} normalisation")


def agrees_with_vmap(method: AnyMethod) -> None:
    """vmap in blocks of 1, 2 and all gives the same to 1e-9 in float64, with GroupNorm and BatchNorm."""
    for norm in ("group", "batch"):
        one = run_small(method, rounds=2, norm=norm, dtype=torch.float64)
        for block in (1, 2, 99):
            executor = _vmap_in_blocks(block)
            two = run_small(method, rounds=2, norm=norm, dtype=torch.float64, executor=executor)
            gap = largest_gap(one, two)
            if gap > 1e-9:
                raise Failed(f"blocks of {block} with {norm} normalisation differ by {gap:.1e}")


def agrees_on_buffers(method: AnyMethod) -> None:
    """with local BatchNorm statistics every upload is taken, and all executors agree."""
    one = run_small(method, norm="batch", bn="local")
    two = run_small(method, norm="batch", bn="local", executor="processes")
    _assert_no_client_lost(one)
    if one.hash != two.hash:
        raise Failed("sequential and processes differ")
    one = run_small(method, norm="batch", bn="local", dtype=torch.float64)
    two = run_small(method, norm="batch", bn="local", dtype=torch.float64, executor="vmap")
    if largest_gap(one, two) > 1e-9:
        raise Failed(f"vmap differs by {largest_gap(one, two):.1e}")


# ---------------------------------------------------------------- clients come and go
def survives_absences(method: AnyMethod) -> None:
    """it goes on with few clients, lost replies, a late joiner, and clients it has never seen."""
    settings: list[dict[str, Any]] = [{"share": 0.5}, {"drop": 0.4}, {"late": True}]
    for setting in settings:
        run = run_small(method, rounds=4, **setting)
        numbers = [x for x in tensors(run.server) if x.is_floating_point()]
        if not all(bool(torch.isfinite(x).all()) for x in numbers):
            raise Failed(f"NaN or infinity on the server with {setting}")
    _serve_unknown_client(run)


def _serve_unknown_client(run: SmallRun) -> None:
    """Everything a client does, for one that the server has never heard of."""
    method, runner = run.runner.method, run.runner
    with torch_settings(torch.float32):
        down = method.send(run.server, UNKNOWN_CLIENT)
        keep = method.first_keep(runner.client(0, 5, Purpose.JOIN), down)
        up, kept = method.local(runner.client(0, 5, Purpose.CALL, 5, 1), down, keep)
        c = runner.client(0, 5, Purpose.EVALUATE, 5)
        models = (
            method.personal(c, down, keep),
            method.personal(c, down, kept),
            method.after_training(c, down, up, kept),
        )
        for w in models:
            output = method.predict(c, w, runner.test_examples(0).x)
            if not bool(torch.isfinite(output).all()):
                raise Failed("an unknown client's model predicts NaN or infinity")


def resumes_where_it_stopped(method: AnyMethod) -> None:
    """four rounds equal two rounds, saved, loaded, and two more, bit for bit."""
    whole = run_small(method, rounds=4)
    half = run_small(method, rounds=4, until=2)
    rest = run_small(method, rounds=4, since=half.save())
    if whole.hash != rest.hash:
        raise Failed("something a round depends on is neither in Server nor in Keep")


def learns(method: AnyMethod) -> None:
    """its personal models learn real digits."""
    federation = digits(sizes=(40,) * 6)
    plan = Plan(lr=0.1, batch=8)
    accuracy = run_small(method, rounds=15, federation=federation, plan=plan).accuracy()
    if accuracy < 0.5:
        raise Failed(f"test accuracy is {accuracy:.2f} after 15 rounds")


STYLE_CHECKS: tuple[Check, ...] = (is_frozen_and_documented, stands_alone, names_its_paper)
CHECKS_OF_VARIANTS: tuple[Check, ...] = (
    declares_its_types,
    leaves_inputs_alone,
    agrees_with_processes,
    agrees_with_vmap,
    survives_absences,
    learns,
)
CHECKS: tuple[Check, ...] = (
    *STYLE_CHECKS,
    declares_its_types,
    leaves_inputs_alone,
    leaves_global_randomness_alone,
    keeps_private_things_private,
    agrees_with_processes,
    agrees_with_vmap,
    agrees_on_buffers,
    survives_absences,
    resumes_where_it_stopped,
    learns,
)


# ---------------------------------------------------------------- inside
def _client_in_second_round(method: AnyMethod) -> tuple[ClientRunner, Tree, Tree]:
    """A client about to begin its second round."""
    run = run_small(method, rounds=1)
    _, down, keep = run.runner.load_client(0, run.runner.method.send(run.server, 0), 1)
    return run.runner, down, keep


def _vmap_in_blocks(size: int) -> Callable[[World], Vectorized]:
    return lambda world: Vectorized(ClientRunner(world, MemoryStore()), size)


def _assert_no_client_lost(run: SmallRun) -> None:
    for k, why in run.exchange.traffic.lost.items():
        raise Failed(f"client {k} is left out: {why}")


def _global_randomness() -> tuple[Any, ...]:
    numpy_state: Any = np.random.get_state()
    return torch.get_rng_state().tolist(), numpy_state[1].tolist(), random.getstate()


def _copy(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


def _is_informative(x: Tensor) -> bool:
    """Whether a tensor holds more than one value: masks of ones and zero momenta tell nothing."""
    return x.numel() > 1 and bool((x != x.flatten()[0]).any())


def _assert_same(a: Tree, b: Tree, what: str) -> None:
    one = encode(a)
    two = encode(b)
    if list(one) != list(two):
        raise Failed(f"{what} has other fields: {sorted(set(one) ^ set(two))[:3]}")
    for path, x in one.items():
        y = two[path]
        same = torch.equal(x, y) if isinstance(x, Tensor) and isinstance(y, Tensor) else x == y
        if type(x) is not type(y) or not same:
            raise Failed(f"{what} is not the same at {path or 'its root'}")


def largest_gap(a: SmallRun, b: SmallRun) -> float:
    """The largest difference between two runs' states; infinity where they have other fields."""
    if a.store.clients() != b.store.clients():
        return float("inf")
    pairs = [(encode(a.server), encode(b.server))]
    pairs += [(a.store.get(k) or {}, b.store.get(k) or {}) for k in a.store.clients()]
    return max(_gap_of_states(one, two) for one, two in pairs)


def _gap_of_states(one: dict[str, Any], two: dict[str, Any]) -> float:
    if one.keys() != two.keys():
        return float("inf")
    worst = 0.0
    for path, x in one.items():
        if not isinstance(x, Tensor):
            if x != two[path]:
                return float("inf")
        elif x.numel():
            worst = max(worst, float((x.double() - two[path].double()).abs().max()))
    return worst
