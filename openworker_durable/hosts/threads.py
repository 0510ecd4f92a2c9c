"""Saving a thread in time that does not grow with its length.

The host counts the lines of the whole file before it appends. The count is kept here with the
file's size and time of change: while both are as we left them nobody else wrote, and the host's
own code goes on with the count; in every other case the host counts for itself.
"""

from __future__ import annotations

import os
from typing import Any

Look = tuple[int, int]
"""Size and time of change of a file, in bytes and nanoseconds."""


def look(path: Any) -> Look | None:
    """Return how a file looks now, None when it is not there."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def known_count(store: Any, session_id: str) -> int | None:
    """Return how many messages a thread's file holds, None when it has to be counted."""
    found = _counts(store).get(session_id)
    if found is None or found[0] != look(store._file(session_id)):
        return None
    return found[1]


def remember_count(store: Any, session_id: str, count: int) -> None:
    """Note how many messages a thread's file holds, as it looks now; hold the session."""
    now = look(store._file(session_id))
    if now is None:
        _counts(store).pop(session_id, None)
    else:
        _counts(store)[session_id] = (now, count)


def forget_count(store: Any, session_id: str) -> None:
    """Let a thread's file be counted anew: a write to it failed half-way."""
    _counts(store).pop(session_id, None)


def _counts(store: Any) -> dict[str, tuple[Look, int]]:
    found: dict[str, tuple[Look, int]] = store.__dict__.setdefault("_durable_counts", {})
    return found
