"""Mistakes a user can mend: each becomes one clear line, never a traceback."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(Exception):
    """Something the user asked for cannot be done.

    The message is one line that says what is wrong and how to mend it.
    """


class Unsupported(UserError):
    """A method cannot work with this network; raised by ``Method.net``."""


class Diverged(UserError):
    """Every client's numbers became infinite or NaN; ``summary`` says when, and from which loss."""

    def __init__(self, text: str, summary: str) -> None:
        super().__init__(f"{text} ({summary})")
        self.summary = summary


class ClientError(Exception):
    """The code of a method or a network failed on a client of a simulation.

    ``line`` names client, function, file and line; ``traceback`` is that of the client, which may
    have run in another process.
    """

    def __init__(self, line: str, traceback: str = "") -> None:
        super().__init__(line, traceback)
        self.line = line
        self.traceback = traceback

    def __str__(self) -> str:
        if not self.traceback:
            return self.line
        return f"{self.line}\n\nOn the client:\n{self.traceback}"


class NoRoom(UserError):
    """The disk is full.

    This is no client's fault, so a run stops instead of going on without the client.
    """


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a UserError: ``path`` cannot be written, and why."""
    try:
        yield
    except OSError as error:
        text = f"{path} cannot be written: {error.strerror or error}"
        if error.errno in DISK_FULL:
            raise NoRoom(f"{text}; what was saved before is whole") from None
        raise UserError(text) from None


def unknown(kind: str, name: str, options: Iterable[str]) -> UserError:
    """The error for a name that does not exist: ``no method 'dito'; did you mean ditto?``

    Lists all options where none is similar.
    """
    options = sorted(options)
    similar = difflib.get_close_matches(name.lower(), options, n=3, cutoff=0.5)
    hint = f"there are {', '.join(options)}"
    if similar:
        hint = f"did you mean {' or '.join(similar)}?"
    return UserError(f"no {kind} '{name}'; {hint}")


def describe_error(error: Exception) -> str:
    """An exception as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
