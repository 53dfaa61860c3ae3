"""The conformance suite: a method is what passes it, here and in anybody's own file."""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Callable
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
from fedtailor.method import Method
from fedtailor.method_types import call_types, keep_type, server_type
from fedtailor.methods import AnyMethod
from fedtailor.storage.private_state import MemoryStore
from fedtailor.testing.method_card import describe
from fedtailor.testing.small_world import SmallRun, digits, run_small
from fedtailor.training.optim import Plan

Say = Callable[[str], Any]
LINES = 150
IMPORTS = {"method", "client", "core", "training", "models", "maths"}


class Failed(Exception):
    """A check did not pass; the message says what and how to mend it."""


def check_method(cls: type[AnyMethod], say: Say = print) -> bool:
    """Run every check; tell each outcome in a line; whether all passed."""
    ours = cls.__module__.startswith("fedtailor.methods.")
    passed = 0
    for check in CHECKS:
        name = (check.__doc__ or "").rstrip(".")
        advice = (
            check in HOUSE and not ours
        )  # matters of style: told, but nobody else's method fails by them
        try:
            check(cls)
        except Failed as failure:
            say(f"{'advice' if advice else 'FAILED'}  {name}: {failure}")
            passed += advice
        except Exception as error:
            say(
                f"{'advice' if advice else 'FAILED'}  {name}: {type(error).__name__}: {' '.join(str(error).split())}"
            )
            passed += advice
        else:
            say(f"ok      {name}")
            passed += 1
    say(f"{passed} of {len(CHECKS)} checks passed")
    return passed == len(CHECKS)


# ---------------------------------------------------------------- what the file says
def declares_its_types(cls: type[AnyMethod]) -> None:
    """its types are declared, and rebuild every message and state from the wire."""
    played = run_small(cls(), rounds=2)
    method = played.site.method
    _same(played.server, decode(server_type(method), encode(played.server)), "Server")
    c, down, keep = played.site.owned(0, method.send(played.server, 0), 3)
    _same(keep, decode(keep_type(method), encode(keep)), "Keep")
    down_type, up_type = call_types(method, "local")
    _same(down, decode(down_type, encode(down)), "Down")
    up, _ = method.local(c, down, keep)
    _same(up, decode(up_type, encode(up)), "Up")


def is_frozen_and_commented(cls: type[AnyMethod]) -> None:
    """it is a frozen dataclass whose fields all have a default and a comment."""
    params = getattr(cls, "__dataclass_params__", None)
    if params is None or not params.frozen:
        raise Failed("decorate the class with @dataclass(frozen=True)")
    bare = [h.name for h in describe(cls).hyper if not h.comment]
    if bare:
        raise Failed(f"no comment (symbol, meaning, source) beside {', '.join(bare)}")


def stands_alone(cls: type[AnyMethod]) -> None:
    """it derives from Method directly, imports no other method, and is short."""
    if cls.__bases__ != (Method,) and Method not in cls.__bases__:
        raise Failed("derive it from Method directly")
    source = Path(inspect.getfile(cls)).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        if module and module.startswith("fedtailor.") and module.split(".")[1] not in IMPORTS:
            raise Failed(f"it imports {module}")
    lines = len(source.splitlines())
    if lines > LINES * 1.2:
        raise Failed(
            f"{lines} lines are more than about {LINES}: move mathematics into a module of its own"
        )


def names_its_paper(cls: type[AnyMethod]) -> None:
    """its docstring names the paper, with year and algorithm or section."""
    about = describe(cls)
    if not about.year:
        raise Failed("no year of a paper in the module's docstring")


# ---------------------------------------------------------------- client functions are pure
def leaves_inputs_alone(cls: type[AnyMethod]) -> None:
    """local leaves what it is given untouched."""
    with torch_settings(torch.float32):
        site, down, keep = _scene(cls)
        before = tmap(_copy, (down, keep))
        site.method.local(site.client(0, 1, Purpose.CALL, 1, 1), down, keep)
        _same(before, (down, keep), "what local was given")


def repeats_itself(cls: type[AnyMethod]) -> None:
    """the same call gives the same bits again."""
    with torch_settings(torch.float32):
        site, down, keep = _scene(cls)
        calls = [
            site.method.local(site.client(0, 1, Purpose.CALL, 1, 1), down, keep) for _ in range(2)
        ]
        _same(calls[0], calls[1], "the second result")


def leaves_global_randomness_alone(cls: type[AnyMethod]) -> None:
    """it draws nothing from the global generators of torch, NumPy or random."""
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    run_small(cls(), rounds=1)
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # type: ignore[index]
    if (
        not torch.equal(before[0], after[0])
        or not np.array_equal(before[1], after[1])
        or before[2] != after[2]
    ):
        raise Failed("draw from batch.rng, c.rng or cohort.rng instead")


def keeps_private_things_private(cls: type[AnyMethod]) -> None:
    """nothing a client keeps goes up, unless the class says so (also_sent)."""
    with torch_settings(torch.float32):
        played = run_small(cls(), rounds=2)
        method = played.site.method
        c, down, keep = played.site.owned(0, method.send(played.server, 0), 3)
        up, keep = method.local(c, down, keep)
    sent = [x for x in tensors(up) if _tells(x)]
    for name, value in zip(getattr(keep, "_fields", ()), keep or (), strict=True):
        if name in cls.also_sent:
            continue
        for x in tensors(value):
            if _tells(x) and any(x.shape == y.shape and torch.equal(x, y) for y in sent):
                raise Failed(f"Keep.{name} goes up as it is")


# ---------------------------------------------------------------- executors agree
def agrees_with_processes(cls: type[AnyMethod]) -> None:
    """sequential and worker processes give the same bits, with GroupNorm and BatchNorm."""
    for norm in ("group", "batch"):
        one, two = run_small(cls(), norm=norm), run_small(cls(), norm=norm, executor="processes")
        _all_taken(one)
        if one.hash != two.hash:
            raise Failed(f"results differ with {norm} normalisation")


def agrees_with_vmap(cls: type[AnyMethod]) -> None:
    """vmap in blocks of 1, 2 and all gives the same to 1e-9 in float64, with GroupNorm and BatchNorm."""
    for norm in ("group", "batch"):
        one = run_small(cls(), rounds=2, norm=norm, dtype=torch.float64)
        for block in (1, 2, 99):
            two = run_small(
                cls(), rounds=2, norm=norm, dtype=torch.float64, executor=_blocks(block)
            )
            gap = _gap(one, two)
            if gap > 1e-9:
                raise Failed(f"blocks of {block} with {norm} normalisation differ by {gap:.1e}")


def agrees_on_buffers(cls: type[AnyMethod]) -> None:
    """with local BatchNorm statistics every upload is taken, none holds statistics, and all executors agree."""
    one, two = (
        run_small(cls(), norm="batch", bn="local", executor=e) for e in ("sequential", "processes")
    )
    _all_taken(one)
    if one.hash != two.hash:
        raise Failed("sequential and processes differ")
    one = run_small(cls(), norm="batch", bn="local", dtype=torch.float64)
    two = run_small(cls(), norm="batch", bn="local", dtype=torch.float64, executor="vmap")
    if _gap(one, two) > 1e-9:
        raise Failed(f"vmap differs by {_gap(one, two):.1e}")


# ---------------------------------------------------------------- the world is rough
def survives_absences(cls: type[AnyMethod]) -> None:
    """it goes on with few clients, lost replies, a late joiner, and clients it has never seen."""
    for how in ({"share": 0.5}, {"drop": 0.4}, {"late": True}):
        played = run_small(cls(), rounds=4, **how)
        if not all(
            bool(torch.isfinite(x).all()) for x in tensors(played.server) if x.is_floating_point()
        ):
            raise Failed(f"NaN or infinity on the server with {how}")
    method = played.site.method
    down = method.send(played.server, 999)
    with torch_settings(torch.float32):
        c = played.site.client(0, 5, Purpose.JOIN)
        keep = method.first_keep(c, down)
        method.local(played.site.client(0, 5, Purpose.CALL, 5, 1), down, keep)
        method.predict(c, method.personal(c, down, keep), c.x)


def goes_on_where_it_stopped(cls: type[AnyMethod]) -> None:
    """four rounds equal two rounds, saved, loaded, and two more, bit for bit."""
    whole = run_small(cls(), rounds=4)
    half = run_small(cls(), rounds=4, until=2)
    rest = run_small(cls(), rounds=4, since=half.saved())
    if whole.hash != rest.hash:
        raise Failed("something a round depends on is neither in Server nor in Keep")


def learns(cls: type[AnyMethod]) -> None:
    """its personal models learn real digits."""
    world = digits(sizes=(40,) * 6)
    accuracy = run_small(cls(), rounds=15, federation=world, plan=Plan(lr=0.1, batch=8)).accuracy()
    if accuracy < 0.5:
        raise Failed(f"test accuracy is {accuracy:.2f} after 15 rounds")


HOUSE = (is_frozen_and_commented, stands_alone, names_its_paper)
CHECKS: tuple[Callable[[type[AnyMethod]], None], ...] = (
    *HOUSE,
    declares_its_types,
    leaves_inputs_alone,
    repeats_itself,
    leaves_global_randomness_alone,
    keeps_private_things_private,
    agrees_with_processes,
    agrees_with_vmap,
    agrees_on_buffers,
    survives_absences,
    goes_on_where_it_stopped,
    learns,
)


# ---------------------------------------------------------------- inside
def _scene(cls: type[AnyMethod]) -> tuple[ClientRunner, Tree, Tree]:
    """A client about to begin its second round."""
    played = run_small(cls(), rounds=1)
    _, down, keep = played.site.owned(0, played.site.method.send(played.server, 0), 1)
    return played.site, down, keep


def _blocks(size: int) -> Callable[[World], Vectorized]:
    return lambda world: Vectorized(ClientRunner(world, MemoryStore()), size)


def _all_taken(played: SmallRun) -> None:
    for k, why in played.exchange.ledger.lost.items():
        raise Failed(f"client {k} is left out: {why}")


def _copy(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


def _tells(x: Tensor) -> bool:
    """Whether a tensor holds more than one value: masks of ones and zero momenta tell nothing."""
    return x.numel() > 1 and bool((x != x.flatten()[0]).any())


def _same(a: Tree, b: Tree, what: str) -> None:
    one, two = encode(a), encode(b)
    if list(one) != list(two):
        raise Failed(f"{what} has other fields: {sorted(set(one) ^ set(two))[:3]}")
    for key, x in one.items():
        y = two[key]
        if type(x) is not type(y) or not (torch.equal(x, y) if isinstance(x, Tensor) else x == y):
            raise Failed(f"{what} is not the same at {key or 'its root'}")


def _gap(a: SmallRun, b: SmallRun) -> float:
    """The largest difference between two runs' states."""
    pairs = [(encode(a.server), encode(b.server))]
    if a.store.clients() != b.store.clients():
        return float("inf")
    pairs += [(a.store.get(k) or {}, b.store.get(k) or {}) for k in a.store.clients()]
    worst = 0.0
    for one, two in pairs:
        if one.keys() != two.keys():
            return float("inf")
        for key, x in one.items():
            if isinstance(x, Tensor) and x.numel():
                worst = max(worst, float((x.double() - two[key].double()).abs().max()))
            elif not isinstance(x, Tensor) and x != two[key]:
                return float("inf")
    return worst
