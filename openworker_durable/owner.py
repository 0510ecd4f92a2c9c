"""Who is alive: operating-system locks held for the life of a process, or of a turn.

An owner is a random name and a lock file that this process keeps locked until it ends; the
system releases it however the process dies, and no clock is asked (G9, C27). A session lock
is the same for one turn, repair or sweep of one session. A pid is only ever shown to people.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from .clock import IdFactory, fresh_id
from .errors import SessionHeld

_TIDY_AGE = 86400.0

LOCK_FOLDER = "durable-locks"
"""Folder for lock files, inside the state folder."""


def _try(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _lock(path: Path) -> FileLock:
    # A soft lock (a mere marker file) would outlive a killed owner, so there is no falling back.
    return FileLock(path, timeout=0, thread_local=False, is_singleton=False, fallback_to_soft=False)


class Owner:
    """This process's life as an owner of attempts in one state folder.

    Args:
        state_dir: the host's state folder.
        fresh: gives the owner's random name.
    """

    def __init__(self, state_dir: Path, *, fresh: IdFactory = fresh_id) -> None:
        self.folder = state_dir / LOCK_FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        self.name = fresh()
        self._pid = os.getpid()
        self._own = _lock(self._path(self.name))
        self._own.acquire(timeout=10)
        _write_holder(self._path(self.name))
        self._guard = threading.Lock()
        self._sessions: dict[str, FileLock] = {}

    def _path(self, name: str) -> Path:
        return self.folder / f"owner-{name}.lock"

    def is_alive(self, name: str) -> bool:
        """Say whether the process that calls itself `name` still runs.

        A dead owner's lock file is free; it is left in place, so that two processes that ask
        at once cannot fool each other for longer than one of them looks.
        """
        if name == self.name:
            return True
        path = self._path(name)
        if not path.exists():
            return False
        probe = _lock(path)
        if not _try(probe):
            return True
        probe.release()
        return False

    def tidy(self, needed: set[str]) -> None:
        """Remove the lock files of dead owners that no open row names any more."""
        for path in self.folder.glob("owner-*.lock"):
            name = path.stem.removeprefix("owner-")
            if name not in needed and _settled(path) and not self.is_alive(name):
                for stale in (path, path.with_suffix(".holder")):
                    with contextlib.suppress(OSError):
                        stale.unlink()

    def describe(self, name: str) -> str:
        """Return an owner in words for people; nothing is decided by them."""
        return "this process" if name == self.name else _holder(self._path(name))

    def hold(self, session_id: str) -> SessionHold:
        """Take the session for one turn, repair or sweep.

        Raises:
            SessionHeld: another process, or another turn of this one, has it.
        """
        key = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        path = self.folder / f"session-{key}.lock"
        with self._guard:
            if session_id in self._sessions:
                raise SessionHeld(session_id, "another turn of this process")
            lock = _lock(path)
            if not _try(lock):
                raise SessionHeld(session_id, _holder(path))
            self._sessions[session_id] = lock
        _write_holder(path)
        return SessionHold(self, session_id)

    def holds(self, session_id: str) -> bool:
        """Say whether this process has the session now."""
        return session_id in self._sessions

    def let_go(self, session_id: str) -> None:
        """Release a session; does nothing when it is not held."""
        with self._guard:
            lock = self._sessions.pop(session_id, None)
        if lock is not None and os.getpid() == self._pid:
            lock.release()

    def close(self) -> None:
        """End this life: release everything. Attempts still dispatched are then ownerless."""
        if os.getpid() != self._pid:
            return
        for session_id in list(self._sessions):
            self.let_go(session_id)
        if self._own.is_locked:
            self._own.release()
        with contextlib.suppress(OSError):
            self._path(self.name).with_suffix(".holder").unlink()


@dataclass
class SessionHold:
    """A session held by this process; release it with `release` or by leaving a `with`."""

    owner: Owner
    session_id: str

    def release(self) -> None:
        """Let others drive the session."""
        self.owner.let_go(self.session_id)

    def __enter__(self) -> SessionHold:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class ServerLock:
    """The lock that makes one process the server process of a state folder.

    Only that process writes `inbox.json`; every other writes decisions to the ledger.
    """

    def __init__(self, state_dir: Path) -> None:
        folder = state_dir / LOCK_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(folder / "server.lock")
        self._pid = os.getpid()

    def take(self) -> bool:
        """Try to become the server process; true when this one is it."""
        return self._lock.is_locked or _try(self._lock)

    @property
    def held(self) -> bool:
        """Say whether this process is the server process."""
        return bool(self._lock.is_locked)

    def close(self) -> None:
        """Stop being it."""
        if self._lock.is_locked and os.getpid() == self._pid:
            self._lock.release()


def _settled(path: Path) -> bool:
    """Say whether a lock file is old enough that nobody can be about to lock it."""
    try:
        return abs(time.time() - path.stat().st_mtime) > _TIDY_AGE
    except OSError:
        return False


def _write_holder(path: Path) -> None:
    """Leave a note for people about who holds the session; nothing is decided by it."""
    with contextlib.suppress(OSError):
        path.with_suffix(".holder").write_text(json.dumps({"pid": os.getpid()}), encoding="utf-8")


def _holder(path: Path) -> str:
    try:
        pid = json.loads(path.with_suffix(".holder").read_text(encoding="utf-8"))["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
    return f"process {int(pid)}" if isinstance(pid, int) else "another process"
