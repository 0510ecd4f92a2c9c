"""Where times and random ids come from, so that tests can set both."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds since the epoch, as `time.time` does."""

IdFactory = Callable[[], str]
"""Returns a fresh random name made of [a-z0-9], 32 characters."""


def now() -> float:
    """Return the wall clock in seconds since the epoch; it never decides who is alive."""
    return time.time()


def fresh_id() -> str:
    """Return 128 random bits as 32 hex digits."""
    return secrets.token_hex(16)
