"""What this process knows of the threads on disk, so that saving is flat and never a loss.

The host counts the lines of the whole file before it appends what lies beyond them, whatever those
lines are. Kept here, with the file's size and time of change, are the count and the last message:
while both are as we left them nobody else wrote, and a list whose message at that place is the same
continues the file. In every other case the file is read and compared.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from ..thread import Message

Look = tuple[int, int]
"""Size and time of change of a file, in bytes and nanoseconds."""


@dataclass(frozen=True)
class Known:
    """A thread's file as this process last read or wrote it."""

    look: Look
    count: int
    last: Message | None


def look(path: Any) -> Look | None:
    """Return how a file looks now, None when it is not there."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def known_count(store: Any, session_id: str) -> int | None:
    """Return how many messages a thread's file holds, None when it has to be counted."""
    found = _known(store, session_id)
    return found.count if found else None


def continues(store: Any, session_id: str, messages: list[Message]) -> bool:
    """Say whether a thread is known to begin with what its file holds; reads nothing."""
    found = _known(store, session_id)
    if found is None or found.count > len(messages):
        return False
    return found.count == 0 or bool(messages[found.count - 1] == found.last)


def begins_with(messages: list[Message], start: list[Message]) -> bool:
    """Say whether a thread begins with the messages of another, as both are written."""
    if len(start) > len(messages):
        return False
    return all(json.dumps(a) == json.dumps(b) for a, b in zip(messages, start, strict=False))


def remember(store: Any, session_id: str, messages: list[Message]) -> None:
    """Note what a thread's file holds, as it looks now; hold the session."""
    now = look(store._file(session_id))
    if now is None:
        forget(store, session_id)
    else:
        last = messages[-1] if messages else None
        _all(store)[session_id] = Known(now, len(messages), last)


def forget(store: Any, session_id: str) -> None:
    """Let a thread's file be read anew: a write to it failed half-way."""
    _all(store).pop(session_id, None)


def _known(store: Any, session_id: str) -> Known | None:
    found = _all(store).get(session_id)
    return found if found and found.look == look(store._file(session_id)) else None


def _all(store: Any) -> dict[str, Known]:
    found: dict[str, Known] = store.__dict__.setdefault("_durable_threads", {})
    return found
