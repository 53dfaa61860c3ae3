"""Encrypted sums (``--encrypt``): the server adds ciphertexts that it cannot open.

Clients share a secret key. A client sends the encryption of its weight and of its
weighted numbers. The server adds ciphertexts, keeps the sum as it is, and sends it down
with the next round; clients open it and divide. Fields that are not protected pass in
clear. In a simulation one process plays all roles: ``for_server`` gives the server's
part, which has no key.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from fedtailor.core.errors import UserError, writing
from fedtailor.core.rng import Rng
from fedtailor.core.sealed import Block, Sealed, find_sealed, make_block
from fedtailor.core.tree import Params, Tree, average, leaves, tmap
from fedtailor.core.wire import encode, open_size, replace_leaves, size
from fedtailor.filters import Call, Filter
from fedtailor.filters.by_option.sums import (
    NotSummable,
    Slot,
    SumTerms,
    check_change,
    choose_slots,
    find_faulty_uploads,
    find_unprotectable,
    from_integers,
    seal_slots,
    to_integers,
)
from fedtailor.maths import homomorphic
from fedtailor.maths.homomorphic import BadCiphertext, Key
from fedtailor.method import Uploads

KEY_FILE = "clients.key"  # of a simulation, for a resume
USED_KEYS = "he-keys.json"  # at a site: which run each key was for
REMEMBERED = 8  # opened blocks: all clients of a process are sent the same ones

Refuse = Callable[[str], NoReturn]


class Costs(NamedTuple):
    """What encryption cost in a round."""

    up: int = 0  # bytes as they were sent
    up_open: int = 0  # bytes that they would have been in clear
    down: int = 0
    down_open: int = 0
    seal_seconds: float = 0.0  # at the clients
    add_seconds: float = 0.0  # at the server
    open_seconds: float = 0.0  # at the clients

    def __add__(self, other: Any) -> Costs:
        return Costs(*(a + b for a, b in zip(self, other, strict=True)))


class Stopwatch:
    """Seconds that this process's clients took since they last told."""

    def __init__(self) -> None:
        self.seal = 0.0
        self.open = 0.0

    def take(self) -> tuple[float, float]:
        """What has passed, and begin anew."""
        seconds = (self.seal, self.open)
        self.seal = 0.0
        self.open = 0.0
        return seconds


class Encryption(Filter):
    """Seals what clients send, and opens what they receive."""

    name = "encryption"
    needs_trial = True
    seals = True

    def __init__(
        self,
        terms: SumTerms,
        scheme: str,
        key_id: str | None = None,
        change_limit: float | None = None,
    ) -> None:
        self.terms = terms
        self.scheme = scheme
        self.key_id = key_id
        self.change_limit = change_limit
        self.key: Key | None = None  # at clients only
        self.rounds: dict[int, Costs] = {}  # at the server
        self._n = 0  # examples of the client, where it runs
        self._watch = Stopwatch()
        self._opened: dict[str, Tensor] = {}
        self._tensors: dict[tuple[Any, ...], Tensor] = {}

    def refuse(self, what: str) -> NoReturn:
        """The method does something that sums do not allow."""
        raise UserError(
            f"{self.terms.option}: {self.terms.method} {what}, and the server has only"
            " sums that it cannot open"
        )

    # ---------------------------------------------------------------- roles
    def begin_simulation(self, folder: Path | None, resume: bool) -> None:
        """Make the clients' key, or find it again for a resume."""
        if self.scheme != "plain":
            self.key_id = None  # that of sites, where this was a deployed run
        path = None if folder is None else folder / KEY_FILE
        if path is not None and resume and path.exists():
            self.take_key(homomorphic.parse_key(path.read_text(), str(path)))
            return
        self.take_key(homomorphic.make_key(self.scheme))
        if path is not None and self.key is not None:
            write_secret(path, self.key.to_json())

    def begin_at_site(self, key_file: Path | None, run: str, state: Path) -> None:
        """Take the owner's key, and remember which run it was for: no key serves two."""
        if self.scheme == "plain":
            self.take_key(homomorphic.make_key("plain"))
            return
        if key_file is None:
            raise UserError(
                f"the run encrypts ({self.terms.option}), and this site has no key:"
                " start it with --he-key FILE"
            )
        key = read_secret_key(key_file)
        self.take_key(key)
        note_use(state / USED_KEYS, key.id, run)

    def take_key(self, key: Key) -> None:
        """The secret key of this run's clients."""
        if not key.is_secret:
            raise UserError(
                "a client needs the secret key, clients.key, not the public"
            )
        if key.scheme != self.scheme:
            raise UserError(
                f"the key is for he={key.scheme}, the run for {self.scheme}"
            )
        if self.key_id not in (None, key.id):
            raise UserError(f"the run's key is {self.key_id}, the one here is {key.id}")
        self.key = key
        self.key_id = key.id

    def for_server(self) -> Encryption:
        """The server's part: it knows the key's name, and no key."""
        mine = copy.copy(self)
        mine.key = None
        mine._watch = Stopwatch()
        mine._opened = {}
        mine._tensors = {}
        return mine

    def for_client(self, k: int, n: int) -> Encryption:
        """The part of client k, which has n training examples."""
        mine = copy.copy(self)
        mine._n = n
        return mine

    def _secret(self) -> Key:
        if self.key is None:
            raise UserError(
                f"{self.terms.option}: this client has no key; start it with --he-key"
            )
        return self.key

    # ---------------------------------------------------------------- at a client
    def client_receives(self, down: Tree, memory: Params) -> Tree:
        """What was sent, with its sums opened and divided."""
        return self.open_tree(down)

    def open_tree(self, down: Tree) -> Tree:
        """The tree with tensors in the place of what is sealed."""

        def open_leaf(leaf: Any) -> Any:
            return self._open_leaf(leaf) if isinstance(leaf, Sealed) else leaf

        return tmap(open_leaf, down)

    def _open_leaf(self, leaf: Sealed) -> Tensor:
        place = (leaf.block.checksum, leaf.layout())
        if place not in self._tensors:
            total = self._open_block(leaf.block)
            slot = Slot("", leaf.start, leaf.shape, leaf.dtype, leaf.is_mean)
            self._tensors[place] = from_integers(total, slot, self.terms)
        return self._tensors[place]

    def _open_block(self, block: Block) -> Tensor:
        """The row of sums in a block."""
        if block.checksum in self._opened:
            return self._opened[block.checksum]
        key = self._secret()
        if block.key != key.id or not block.is_whole:
            raise BadCiphertext("what the server sent is damaged, or of another key")
        began = time.perf_counter()
        numbers = homomorphic.decrypt(key, block.parts)[: block.values]
        total = self._from_cipher(numbers)
        self._watch.open += time.perf_counter() - began
        while len(self._opened) >= REMEMBERED:
            self._forget(next(iter(self._opened)))
        self._opened[block.checksum] = total
        return total

    def _forget(self, checksum: str) -> None:
        """Drop an opened block and all tensors made of it."""
        del self._opened[checksum]
        for place in [place for place in self._tensors if place[0] == checksum]:
            del self._tensors[place]

    def client_sends(
        self, up: Tree, down: Tree, memory: Params, rng: Rng
    ) -> tuple[Tree, Params]:
        """The upload with its protected tensors sealed."""
        if not leaves(up):
            return up, memory
        why = find_unprotectable(up, self.terms)
        if why:
            raise NotSummable(why)
        check_change(up, self.open_tree(down), self.change_limit)
        slots = choose_slots(up, self.terms)
        began = time.perf_counter()
        row = to_integers(up, self._n, slots, self.terms)
        parts = homomorphic.encrypt(self._secret(), self._to_cipher(row))
        self._watch.seal += time.perf_counter() - began
        block = make_block(
            scheme=self.scheme,
            key=self._secret().id,
            clients=1,
            values=len(row),
            parts=parts,
            seconds=self._watch.take(),
        )
        return seal_slots(up, slots, block), memory

    # ---------------------------------------------------------------- real numbers of CKKS
    def _unit(self) -> int:
        """CKKS holds numbers near 1, so integers are divided by this."""
        return self.terms.mean.scale * self.terms.mean.heaviest

    def _to_cipher(self, row: Tensor) -> Tensor:
        if self.scheme != "ckks":
            return row
        scaled = row.double() / self._unit()
        scaled[0] = row[0] / self.terms.mean.heaviest
        return scaled

    def _from_cipher(self, numbers: Tensor) -> Tensor:
        if self.scheme != "ckks":
            return numbers
        total = numbers * self._unit()
        total[0] = numbers[0] * self.terms.mean.heaviest
        return total

    # ---------------------------------------------------------------- at the server
    def server_sends(self, call: Call, downs: dict[int, Tree]) -> dict[int, Tree]:
        """Count bytes; sums go down as they are."""
        if not call.is_look:
            for down in downs.values():
                self._count(call.t, Costs(down=size(down), down_open=open_size(down)))
        return downs

    def find_faults(self, call: Call, ups: Mapping[int, Tree]) -> dict[int, str]:
        """Uploads that cannot be looked at, checked by what can be."""
        return find_faulty_uploads(ups, self.terms, self._find_bad_block)

    def _find_bad_block(self, block: Block, values: int) -> str:
        """Scheme, key, counts, bytes: all that a server can check."""
        if block.scheme != self.scheme or block.key != self.key_id:
            return f"is sealed by a foreign key ({block.scheme} {block.key[:16]})"
        wanted = homomorphic.count_parts(self.scheme, values)
        if block.values != values or len(block.parts) != wanted or block.clients != 1:
            return (
                f"has {len(block.parts)} ciphertexts of {block.values} numbers, not"
                f" {wanted} of {values}"
            )
        if not block.is_whole:
            return "has damaged ciphertexts: their checksum is another"
        try:
            for i, part in enumerate(block.parts):
                slots = homomorphic.SLOTS[self.scheme]
                homomorphic.check_part(
                    self.scheme, part, min(slots, values - i * slots)
                )
        except BadCiphertext as error:
            return f"has a bad ciphertext: {error}"
        return ""

    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        """Uploads of which nothing but sums can be had, and those only sealed."""
        replies = ups.by_client()
        if not any(map(leaves, replies.values())):
            return ups
        if call.is_setup:
            self.refuse(f"asks clients for '{call.function}' before they train")
        for up in replies.values():
            self._count(call.t, count_upload(up))

        def add(blocks: Sequence[Block]) -> Block:
            began = time.perf_counter()
            total = self._add_blocks(blocks)
            self._count(call.t, Costs(add_seconds=time.perf_counter() - began))
            return total

        return SealedUploads(ups.clients, ups.n, list(replies.values()), self, add)

    def _add_blocks(self, blocks: Sequence[Block]) -> Block:
        """The sum of several clients' blocks."""
        parts = homomorphic.add_parts(self.scheme, [block.parts for block in blocks])
        first = blocks[0]
        return make_block(first.scheme, first.key, len(blocks), first.values, parts)

    # ---------------------------------------------------------------- costs
    def _count(self, t: int, costs: Costs) -> None:
        self.rounds[t] = self.rounds.get(t, Costs()) + costs

    def before_round(self, plan: Any) -> None:
        """A round that is done again counts once."""
        self.rounds.pop(plan.t, None)

    def report(self, until: int) -> dict[str, Any]:
        """What the result says of it."""
        total = Costs()
        for t, costs in self.rounds.items():
            if t <= until:
                total = total + costs
        seconds = {
            "encrypt": total.seal_seconds,
            "add": total.add_seconds,
            "decrypt": total.open_seconds,
        }
        return {
            "scope": self.terms.scope,
            "scheme": self.scheme,
            "key": self.key_id,
            "step": self.terms.mean.step,
            "bytes": {"up": total.up, "down": total.down},
            "bytes_in_clear": {"up": total.up_open, "down": total.down_open},
            "seconds": seconds,
        }

    def save(self) -> dict[str, Any]:
        """The costs, by round, and the key's name."""
        return {
            "key": self.key_id,
            "rounds": {str(t): list(costs) for t, costs in self.rounds.items()},
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on; another key could not open what the server holds."""
        if self.key_id is not None and saved["key"] != self.key_id:
            raise UserError(
                f"{self.terms.option}: the run began with key {saved['key']}, and this"
                f" is key {self.key_id}"
            )
        for t, costs in saved["rounds"].items():
            self.rounds[int(t)] = Costs(*costs)


def count_upload(up: Tree) -> Costs:
    """Bytes and seconds of one upload."""
    seconds = (0.0, 0.0)
    for leaf in find_sealed(up)[:1]:
        seconds = leaf.block.seconds
    seal, unseal = seconds
    return Costs(
        up=size(up),
        up_open=open_size(up),
        seal_seconds=seal,
        open_seconds=unseal,
    )


# ---------------------------------------------------------------- files
def read_secret_key(path: Path) -> Key:
    """The key in a file that its owner alone can read."""
    try:
        mode = path.stat().st_mode & 0o777
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if os.name == "posix" and mode & 0o077:
        raise UserError(
            f"{path} can be read by others (mode {mode:o}): chmod 600 {path}"
        )
    return homomorphic.parse_key(text, str(path))


def note_use(path: Path, key: str, run: str) -> None:
    """Remember which run a key is for; a second run with it is refused."""
    used: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    if used.get(key, run) != run:
        raise UserError(
            f"the key {key} was used in run {used[key][:8]}: every run has a key of its"
            " own, make one with 'fedtailor keys FOLDER --only he'"
        )
    if key not in used:
        write_secret(path, json.dumps({**used, key: run}))


def write_secret(path: Path, text: str) -> None:
    """Write a file that its owner alone can read, in place of any there was."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)


# ---------------------------------------------------------------- what a method may ask
class SealedUploads(Uploads[Any]):
    """Uploads that give sealed means and sums, and refuse every other question.

    Fields that are in clear answer all questions.
    """

    def __init__(
        self,
        clients: Sequence[int],
        n: Tensor,
        replies: Sequence[Any],
        owner: Encryption,
        add: Callable[[Sequence[Block]], Block],
    ) -> None:
        super().__init__(clients, n, replies)
        self._owner = owner
        self._add = add
        self._total: Block | None = None

    def __getattr__(self, field: str) -> list[Any]:
        values = super().__getattr__(field)
        if find_sealed(values):
            self._owner.refuse(f"looks at every client's {field}")
        return values

    def _trees(self, field: str) -> tuple[list[Any], list[Sealed]]:
        """One field of all replies, and the sealed leaves of the first one."""
        trees = super().__getattr__(field)
        return trees, find_sealed(trees[0])

    def _sum_of_blocks(self, trees: Sequence[Tree]) -> Block:
        """The sum of all senders' blocks, added once for all fields."""
        if self._total is None:
            blocks = [find_sealed(tree)[0].block for tree in trees]
            self._total = self._add(blocks)
        return self._total

    def mean(self, field: str, weight: Tensor | Sequence[float] | None = None) -> Any:
        """The weighted mean; sealed where the uploads are."""
        trees, sealed = self._trees(field)
        if not sealed:
            return super().mean(field, weight)
        if not self._are_known(weight):
            self._owner.refuse("weighs clients otherwise than its clients were told")
        if not all(leaf.is_mean for leaf in sealed):
            self._owner.refuse(f"averages {field}, which its clients add up")
        is_equal = self._owner.terms.is_equal
        clear = merge_clear(trees, torch.ones(len(trees)) if is_equal else self.n)
        return self._merge(trees, clear)

    def _are_known(self, weight: Tensor | Sequence[float] | None) -> bool:
        """Whether these are the weights that clients multiplied by."""
        weights = self.n
        if weight is not None:
            weights = torch.as_tensor(weight, dtype=torch.float64)
        if self._owner.terms.is_equal:
            return len(set(weights.tolist())) <= 1
        return torch.equal(weights, self.n)

    def sum(self, field: str) -> Any:
        """The sum; sealed where the uploads are."""
        trees, sealed = self._trees(field)
        if not sealed:
            return super().sum(field)
        if any(leaf.is_mean for leaf in sealed):
            self._owner.refuse(
                f"adds up {field}, which it does not name in its 'summed'"
            )
        return self._merge(trees, {})

    def _merge(self, trees: Sequence[Tree], clear: Params) -> Tree:
        """The first tree with the sums in its leaves' places."""
        new: dict[str, Any] = dict(clear)
        for path, leaf in encode(trees[0]).items():
            if isinstance(leaf, Sealed):
                new[path] = Sealed(self._sum_of_blocks(trees), *leaf.layout())
        return replace_leaves(trees[0], new)

    def of(self, clients: Any) -> SealedUploads:
        """The uploads of the given clients."""
        some = super().of(clients)
        replies = [reply for k, reply in self._pairs() if k in set(some.clients)]
        return SealedUploads(some.clients, some.n, replies, self._owner, self._add)

    def _pairs(self) -> list[tuple[int, Any]]:
        return list(zip(self.clients, self._replies, strict=True))

    def map(self, function: Any) -> NoReturn:
        """Refused."""
        self._owner.refuse("computes with every client's upload")

    def by_client(self) -> NoReturn:
        """Refused."""
        self._owner.refuse("looks at every client's upload")

    def with_reduction(self, reduction: Any) -> NoReturn:
        """Refused."""
        self._owner.refuse("merges by another rule than the mean")


def merge_clear(trees: Sequence[Tree], n: Tensor) -> Params:
    """The means of those leaves of several trees that are in clear, by path."""
    clear: list[Params] = []
    for tree in trees:
        flat = encode(tree)
        clear.append({path: x for path, x in flat.items() if isinstance(x, Tensor)})
    mean: Params = average(clear, n)
    return mean
