"""Inside the child: places are counted, and at one of them the process dies.

The six crash points are reached by wrapping the host's own methods, outermost, so that they
mean the same with and without the plugin; the plugin's failpoints arrive through the argument
that it takes for them.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from .. import thread
from ..hosts.names import HostNames
from ..hosts.patching import Patches
from .scenario import ANY, CALL, Kill

MOST_HITS = 20_000
"""Most hits that are kept by name, in order."""

PACKAGE = str(Path(__file__).resolve().parent.parent)


def die() -> NoReturn:
    """Kill this process at once: no handlers, no flushing, nothing is told."""
    if sys.platform != "win32":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(9)


class Places:
    """Counts the places that this process reaches; a `Failpoint` for the plugin.

    Args:
        kill: where to die, if anywhere.
        breaks: places that raise a disk error, and how often.
    """

    def __init__(self, kill: Kill | None = None, breaks: tuple[tuple[str, int], ...] = ()) -> None:
        self.kill = kill
        self._breaks = Counter(dict(breaks))
        self.hits: list[str] = []
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._calls = 0

    def __call__(self, name: str) -> None:
        """Note that a place was reached; die there, or fail there."""
        with self._lock:
            self.counts[name] += 1
            if len(self.hits) < MOST_HITS:
                self.hits.append(name)
            if self._is_the_end(name):
                die()
            breaks = self._breaks[name] > 0
            self._breaks[name] -= breaks
        if breaks:
            raise sqlite3.OperationalError("database or disk is full")

    def _is_the_end(self, name: str) -> bool:
        kill = self.kill
        if kill is None:
            return False
        if kill.place == ANY:
            return self.counts.total() == kill.nth
        return kill.place == name and self.counts[name] == kill.nth

    def count_calls(self) -> None:
        """Begin to count calls of this package's functions, where the kill asks for that."""
        if self.kill is not None and self.kill.place == CALL:
            threading.setprofile(self._profile)
            sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event != "call" or not _is_product(frame.f_code.co_filename):
            return
        self._calls += 1  # two threads may count one call as one: it stays a random instant
        if self.kill is not None and self._calls >= self.kill.nth:
            die()


def _is_product(file: str) -> bool:
    return file.startswith(PACKAGE) and "testing" not in file


def watch_host(names: HostNames, hit: Callable[[str], None], acting: frozenset[str]) -> Patches:
    """Make the host's methods report the crash points that lie outside the tools.

    Args:
        hit: called with the name of the place.
        acting: names of the tools whose calls count.

    Returns:
        the replacements, to be put back before the plugin is detached.
    """
    patches = Patches()
    engine, manager = names.load("engine"), names.load("manager")

    def execute_sync(host: Callable[..., Any]) -> Callable[..., Any]:
        def _execute_sync(self: Any, tool_call: Any) -> Any:
            if tool_call.name not in acting:
                return host(self, tool_call)
            hit("after_approval")
            result = host(self, tool_call)
            hit("tool_returned")
            return result

        return _execute_sync

    def record_result(host: Callable[..., Any]) -> Callable[..., Any]:
        def _record_result(self: Any, tool_call: Any, result: Any, status: str) -> Any:
            event = host(self, tool_call, result, status)
            if tool_call.name in acting:
                hit("result_in_thread")
            return event

        return _record_result

    def save(host: Callable[..., Any]) -> Callable[..., Any]:
        def save(self: Any, session_id: str, engine: Any) -> None:
            host(self, session_id, engine)
            if _answered(engine.messages, acting):
                hit("after_save")

        return save

    patches.wrap(engine, "_execute_sync", execute_sync)
    patches.wrap(engine, "_record_result", record_result)
    patches.wrap(manager, "save", save)
    return patches


def _answered(messages: list[dict[str, Any]], acting: frozenset[str]) -> bool:
    """Say whether the last reply that calls one of the tools has an answer for it."""
    found = False
    for reply in thread.replies(messages):
        mine = [c for c in reply.calls if c.name in acting]
        if mine:
            found = any(c.call_id in reply.answers for c in mine)
    return found
