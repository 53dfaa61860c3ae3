"""Mistakes a user can mend: each becomes one clear line, never a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user asked for cannot be done; the message is one line that says what and how to mend it."""


class Unsupported(UserError):
    """A method cannot work with this network; raised by ``Method.net``."""


def unknown(kind: str, name: str, options: Iterable[str]) -> UserError:
    """``no method 'dito'; did you mean ditto?``, with all there is when nothing is near."""
    options = sorted(options)
    near = difflib.get_close_matches(name.lower(), options, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(options)}"
    return UserError(f"no {kind} '{name}'; {hint}")
