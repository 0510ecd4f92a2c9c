"""Writes of the host's stores that a locked database delays instead of failing.

The host commits on its event loop with SQLite's default wait of five seconds, and raises out of
the turn when that is over. `LateConnection` stands in for a store's connection: a transaction
that finds the database locked is handed to a thread of its own, with every later one of the
store behind it, so that their order is kept. Reads go through as they are.

After a kill: what waited is lost, as what the host would have written next. It is lost also when
more than `MOST` transactions wait (the oldest go first) or the process ends under the lock.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

log = logging.getLogger("openworker_durable")

BUSY_MS = 25
"""How long the event loop waits for a lock: longer than one of our commits, and not felt."""

LATE_BUSY_MS = 500
"""How long the thread waits at a time; nobody waits for it."""

CLOSE_SECONDS = 2.0
"""How long closing a store waits for what is still to be written."""

MOST = 10_000
"""Most transactions kept for one store."""

BATCH = 256
"""Most delayed transactions written in one."""

TRIGGER_NAME = "durable_audit_ids"
"""The temporary trigger on the audit table; it goes with the stand-in."""

_LOCK_WORDS = ("locked", "busy")
_LATER_WORDS = (*_LOCK_WORDS, "full", "readonly", "disk I/O", "unable to open")
_about = threading.local()


def about() -> dict[str, Any]:
    """Return what the audit trigger is to know of the row this thread inserts."""
    found: dict[str, Any] = getattr(_about, "values", {})
    return found


@contextmanager
def telling(values: dict[str, Any]) -> Iterator[None]:
    """Let the audit trigger know these facts of the rows inserted meanwhile by this thread."""
    before, _about.values = about(), values
    try:
        yield
    finally:
        _about.values = before


@dataclass(frozen=True)
class Write:
    """One statement, its parameters, and what the audit trigger is to know of it."""

    sql: str
    params: Any
    facts: dict[str, Any]

    @property
    def key(self) -> tuple[str, Any] | None:
        """Return what a later write of the same row shares, None where every write counts."""
        if "ON CONFLICT" not in self.sql.upper() or not self.params:
            return None
        values = self.params.values() if isinstance(self.params, dict) else self.params
        return self.sql, next(iter(values))


class Later:
    """The cursor of a statement that has not run yet: one row, as it will most likely be."""

    rowcount = 1
    lastrowid = None

    def fetchone(self) -> None:
        """Return that there is no row."""

    def fetchall(self) -> list[Any]:
        """Return that there are no rows."""
        return []


class LateConnection:
    """Stands in for the connection of a host's store; used under the store's own lock.

    Args:
        conn: the store's connection.
        path: its database file.
        prepare: makes a new connection write as this one does.
    """

    def __init__(
        self, conn: sqlite3.Connection, path: Path,
        prepare: Callable[[sqlite3.Connection], None] = lambda conn: None,
    ) -> None:  # fmt: skip
        self.conn = conn
        self.waiting = Waiting(path, prepare)
        self._before = {name: _pragma(conn, name) for name in ("busy_timeout", "synchronous")}
        self._writes: list[Write] = []
        self._late = self._in_wal = False
        _pragma(conn, "busy_timeout", BUSY_MS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.conn, name)

    def execute(self, sql: str, params: Any = ()) -> Any:
        """Run a statement, or keep it for later when the database is locked.

        Raises:
            sqlite3.Error: it failed for another reason than a lock.
        """
        if sql.lstrip()[:6].upper() in ("SELECT", "PRAGMA"):
            return self.conn.execute(sql, params)
        if not self._writes:
            self._begin()
        write = Write(sql, params if isinstance(params, dict) else tuple(params), about())
        if not self._late:
            try:
                cursor = self.conn.execute(sql, params)
                self._writes.append(write)
                return cursor
            except sqlite3.OperationalError as exc:
                self._give_up(exc)
        self._writes.append(write)
        return Later()

    def commit(self) -> None:
        """Commit, or hand the transaction over when the database is locked."""
        if not self._late:
            try:
                self.conn.commit()
            except sqlite3.OperationalError as exc:
                self._give_up(exc)
        writes, late = self._writes, self._late
        self._writes, self._late = [], False
        if late:
            self.waiting.add([_stamped(w) for w in writes])

    def rollback(self) -> None:
        """Forget the transaction."""
        self._writes, self._late = [], False
        self.conn.rollback()

    def close(self) -> None:
        """Write what waits, as far as that can be had now, and close."""
        self.waiting.close()
        self.conn.close()

    def restored(self) -> sqlite3.Connection:
        """Return the host's own connection as it was, once nothing waits."""
        self.waiting.close()
        with contextlib.suppress(sqlite3.Error):
            for name, value in self._before.items():
                _pragma(self.conn, name, value)
            self.conn.execute(f"DROP TRIGGER IF EXISTS temp.{TRIGGER_NAME}")
            self.conn.commit()
        return self.conn

    def _begin(self) -> None:
        """At the first write of a transaction: behind what waits, and no sync in WAL mode.

        In WAL mode a commit without a sync survives a kill, and the next commit of the ledger
        syncs it with its own: a call's rows are on disk before the call is dispatched.
        """
        self._late = self.waiting.anything
        if self._in_wal:
            return
        with contextlib.suppress(sqlite3.OperationalError):
            if _pragma(self.conn, "journal_mode") == "wal":
                _pragma(self.conn, "synchronous", 1)
                self._in_wal = True

    def _give_up(self, exc: sqlite3.OperationalError) -> None:
        if not any(word in str(exc) for word in _LOCK_WORDS):
            raise exc
        self._late = True
        with contextlib.suppress(sqlite3.Error):
            self.conn.rollback()


class Waiting:
    """The transactions of one store that wait for the lock, and the thread that writes them."""

    def __init__(self, path: Path, prepare: Callable[[sqlite3.Connection], None]) -> None:
        self._path, self._prepare = path, prepare
        self._lock = threading.Lock()
        self._queue: deque[list[Write]] = deque()
        self._taken: list[list[Write]] = []
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def anything(self) -> bool:
        """Say whether a transaction waits."""
        return bool(self._queue or self._taken)

    def add(self, writes: list[Write]) -> None:
        """Put a transaction at the end; where it only renews a row, into the place of the old."""
        with self._lock:
            place = self._same_row(writes)
            if place is not None:
                self._queue[place] = writes
                return
            if not self.anything:
                log.warning("the database is locked: what the host writes waits for it")
            self._queue.append(writes)
            if len(self._queue) > MOST:
                self._queue.popleft()
                log.error("the database stays locked: the oldest delayed write was dropped")
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="durable-late", daemon=True)
                self._thread.start()

    def _same_row(self, writes: list[Write]) -> int | None:
        keys = [w.key for w in writes]
        if None in keys:
            return None
        places = (n for n, there in enumerate(self._queue) if [w.key for w in there] == keys)
        return next(places, None)

    def close(self) -> None:
        """Give the thread a last while, then write no more."""
        thread = self._thread
        if thread is not None:
            thread.join(CLOSE_SECONDS)
        self._stop.set()
        if self.anything:
            lost = len(self._queue) + len(self._taken)
            log.error("%d delayed writes were lost: the database stayed locked", lost)

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                self._taken = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                if not self._taken:
                    self._thread = None
                    return
            written = self._write(self._taken)
            with self._lock:
                if not written:
                    self._queue.extendleft(reversed(self._taken))
                self._taken = []
            if not written:
                self._stop.wait(0.05)

    def _write(self, transactions: list[list[Write]]) -> bool:
        """Write them all in one transaction; false when that has to wait."""
        conn = None
        try:
            conn = sqlite3.connect(self._path, isolation_level=None, timeout=LATE_BUSY_MS / 1000)
            self._prepare(conn)
            conn.execute("BEGIN IMMEDIATE")
            for write in (w for writes in transactions for w in writes):
                _run_one(conn, write)
            conn.execute("COMMIT")
            return True
        except Exception as exc:  # the thread must live: everything later waits behind it
            log.debug("delayed writes wait on (%s)", type(exc).__name__)
            return False
        finally:
            if conn is not None:
                conn.close()


def _run_one(conn: sqlite3.Connection, write: Write) -> None:
    """Run one delayed statement; one that can never succeed must not hold up the others."""
    with telling(write.facts):
        try:
            conn.execute(write.sql, write.params)
        except Exception as exc:  # a value that SQLite cannot take fails before SQLite sees it
            if isinstance(exc, sqlite3.Error) and any(word in str(exc) for word in _LATER_WORDS):
                raise
            log.error("a delayed write failed (%s)", type(exc).__name__)


def _stamped(write: Write) -> Write:
    """Return the write with the time it was asked for, for a row that would get another."""
    if "timestamp" in write.facts:
        return write
    at = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    return Write(write.sql, write.params, {**write.facts, "timestamp": at})


def _pragma(conn: sqlite3.Connection, name: str, value: Any = None) -> Any:
    row = conn.execute(f"PRAGMA {name}" if value is None else f"PRAGMA {name} = {value}").fetchone()
    return row[0] if row else None
