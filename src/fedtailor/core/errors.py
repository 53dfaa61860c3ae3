"""Mistakes a user can mend: each becomes one clear line, never a traceback."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(Exception):
    """Something the user asked for cannot be done; the message is one line that says what and how to mend it."""


class Unsupported(UserError):
    """A method cannot work with this network; raised by ``Method.net``."""


class NoRoom(UserError):
    """What a run has to write does not fit on the machine: no client's fault, so none may be left out for it."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Whatever the system refuses in here is why ``path`` cannot be written."""
    try:
        yield
    except OSError as error:
        text = f"{path} cannot be written: {error.strerror or error}"
        raise (
            NoRoom(f"{text}; what was saved before is whole")
            if error.errno in FULL
            else UserError(text)
        ) from None


def unknown(kind: str, name: str, options: Iterable[str]) -> UserError:
    """``no method 'dito'; did you mean ditto?``, with all there is when nothing is near."""
    options = sorted(options)
    near = difflib.get_close_matches(name.lower(), options, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(options)}"
    return UserError(f"no {kind} '{name}'; {hint}")
