"""Waiting in tests: for something to be so, for nothing to run; bounded, in one place.

What is waited for is a row, a file, a prompt or a process: none of them tells anybody that it has
come. So these look, again and again, and fail by name when it never does. Nothing else in the
tests sleeps, but for `chance`, which puts a kill at a random instant.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

PAUSE = 0.002
"""Seconds between two looks."""

BOUND = 10.0
"""Seconds after which what was waited for counts as never coming."""


async def until(condition: Callable[[], Any], what: str = "", *, bound: float = BOUND) -> Any:
    """Wait on the event loop until a condition holds.

    Args:
        condition: asked again and again; must not block.
        what: names it when it never comes.

    Returns:
        what the condition returned, which is true.

    Raises:
        AssertionError: it never held within `bound` seconds.
    """
    end = time.monotonic() + bound
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"never came: {what or condition}")
        await asyncio.sleep(PAUSE)
    return value


async def calm(
    busy: Callable[[], Any], *, unless: Callable[[], Any] = lambda: False, looks: int = 5
) -> None:
    """Wait until nothing runs, seen so several times in a row, or until `unless` holds.

    Raises:
        AssertionError: something ran on.
    """
    quiet = 0

    def resting() -> bool:
        nonlocal quiet
        quiet = 0 if busy() else quiet + 1
        return quiet >= looks or bool(unless())

    await until(resting, "nothing runs", bound=2 * BOUND)


def until_blocking(condition: Callable[[], Any], what: str = "", *, bound: float = BOUND) -> Any:
    """Wait like `until`, where there is no event loop.

    Raises:
        AssertionError: it never held within `bound` seconds.
    """
    end = time.monotonic() + bound
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"never came: {what or condition}")
        time.sleep(PAUSE)
    return value


def chance(seconds: float) -> None:
    """Let a random time pass, so that what comes next falls anywhere; not a wait for anything."""
    time.sleep(seconds)
