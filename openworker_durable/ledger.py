"""The ledger: verbs in, records out. It knows tables and moves, and nothing of any host.

`run` commits one verb and returns its result (from any thread, blocking); `ask` is the same
for the event loop and survives cancellation of whoever awaits it: the move is written, and
its result can be read again (trap 7). `defer` rides on the next commit. Reads never wait for
the writer. What was committed is on disk when these return (WAL, synchronous FULL).
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import aiosqlite

from ._db import Writer, open_reader, translate
from .errors import LedgerNotFound, LedgerUnavailable
from .failpoints import Failpoint, no_failpoint
from .rows import Query
from .sql import run

P = ParamSpec("P")
T = TypeVar("T")
Verb = Callable[Concatenate[sqlite3.Connection, P], T]

CLOSED = "the ledger of this process was closed"

DATABASE = "coworker.db"
"""The host's own file; a move and its audit row commit together in it."""


class Ledger:
    """One process's door to the record in a state folder.

    Args:
        path: the database file, normally `<state folder>/coworker.db`; made when missing.
        failpoint: see `failpoints`; only tests pass one.
    """

    def __init__(self, path: Path | str, *, failpoint: Failpoint = no_failpoint) -> None:
        self.path = Path(path)
        self._writer = Writer(self.path, failpoint)
        self._local = threading.local()
        self._readers: list[_Reader] = []
        self._lock = threading.Lock()
        self._closed = False

    @property
    def commits(self) -> int:
        """Return how many transactions this ledger has committed."""
        return self._writer.commits

    # -- writing
    def submit(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Ask for a verb without waiting; the future ends after its commit."""
        return self._writer.submit(_name(verb), lambda conn: verb(conn, *args, **kwargs))

    def run(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Commit a verb and return its result; blocks the calling thread.

        Raises:
            Refused: the row was not in the state the verb needs; nothing changed.
            LedgerUnavailable: nothing was committed.
        """
        return self.submit(verb, *args, **kwargs).result()

    async def ask(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Commit a verb without blocking the event loop; raises as `run` does.

        When the awaiting task is cancelled the move is committed all the same.
        """
        future = self.submit(verb, *args, **kwargs)
        return await asyncio.shield(asyncio.wrap_future(future))

    def defer(self, verb: Verb[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Let a verb ride on the next commit; a crash before that loses it, which must be safe."""
        self._writer.defer(_name(verb), lambda conn: verb(conn, *args, **kwargs))

    # -- reading
    def fetch(self, query: Query[T]) -> list[T]:
        """Return all rows of a query; usable from any thread, never waits for a writer.

        Raises:
            LedgerNotFound: no record in the file yet.
            LedgerUnavailable, LedgerCorrupt, LedgerTooNew.
        """
        try:
            found = self._reader().fetch(query.name, query.params)
        except sqlite3.Error as exc:
            self._drop_reader()
            raise translate(exc, self.path) from exc
        return [query.read(row) for row in found]

    def first(self, query: Query[T]) -> T | None:
        """Return the first row of a query, or None; also None when nothing was recorded yet."""
        try:
            found = self.fetch(query)
        except LedgerNotFound:
            return None
        return found[0] if found else None

    def known(self, query: Query[T]) -> list[T]:
        """Return all rows, none when nothing was recorded yet."""
        try:
            return self.fetch(query)
        except LedgerNotFound:
            return []

    @contextlib.asynccontextmanager
    async def watching(self) -> Any:
        """Yield an asynchronous reader, for code that polls the ledger on the event loop.

        Raises:
            LedgerNotFound, LedgerUnavailable, LedgerCorrupt, LedgerTooNew.
        """
        opener = _Opener(self.path)
        db = aiosqlite.Connection(opener, iter_chunk_size=64)
        # A reader must never keep the process from ending.
        db._thread.daemon = True
        try:
            async with db:
                yield Watch(db)
        finally:
            if db._thread.is_alive():
                # Cancelled while it was opened: let its thread end before the loop does.
                db.stop()
                db._thread.join(2)
            opener.close()

    def close(self) -> None:
        """Write what was deferred and close every connection; the ledger is unusable then.

        A read under way in another thread ends first; later ones find the ledger unavailable.
        """
        self._writer.close()
        with self._lock:
            self._closed = True
            readers, self._readers = self._readers, []
        for reader in readers:
            reader.close()
        self._local = threading.local()

    def _reader(self) -> _Reader:
        reader: _Reader | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = _Reader(open_reader(self.path))
            with self._lock:
                if not self._closed:
                    self._readers.append(reader)
                    self._local.reader = reader
                    return reader
            reader.close()
            raise LedgerUnavailable(CLOSED)
        return reader

    def _drop_reader(self) -> None:
        reader: _Reader | None = getattr(self._local, "reader", None)
        self._local.reader = None
        if reader is not None:
            with self._lock, contextlib.suppress(ValueError):
                self._readers.remove(reader)
            reader.close()


class _Reader:
    """One thread's connection; whoever closes it waits for the read under way.

    Closing a connection in the middle of another thread's statement crashes the process.
    """

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn: sqlite3.Connection | None = conn
        self._lock = threading.Lock()

    def fetch(self, name: str, params: Mapping[str, Any]) -> list[sqlite3.Row]:
        with self._lock:
            if self._conn is None:
                raise LedgerUnavailable(CLOSED)
            return run(self._conn, name, params).fetchall()

    def close(self) -> None:
        with self._lock:
            conn, self._conn = self._conn, None
            if conn is not None:
                with contextlib.suppress(sqlite3.Error):
                    conn.close()


class _Opener:
    """Opens a reader in another thread, and closes it also when nobody waits for it any more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made: list[sqlite3.Connection] = []
        self._gone = False

    def __call__(self) -> sqlite3.Connection:
        conn = open_reader(self._path)
        self._made.append(conn)
        if self._gone:
            conn.close()
        return conn

    def close(self) -> None:
        self._gone = True
        for conn in self._made:
            conn.close()


class Watch:
    """An asynchronous reader: sees cheaply whether anything changed, and runs queries."""

    def __init__(self, db: aiosqlite.Connection) -> None:
        self._db = db
        self._seen: int | None = None

    async def changed(self) -> bool:
        """Say whether any other connection committed since the last call (true at first)."""
        async with self._db.execute("PRAGMA data_version") as cursor:
            row = await cursor.fetchone()
        version = int(row[0]) if row else 0
        before, self._seen = self._seen, version
        return before != version

    async def fetch(self, query: Query[T]) -> list[T]:
        """Return all rows of a query."""
        async with self._db.execute(query.sql, query.cleaned()) as cursor:
            return [query.read(row) for row in await cursor.fetchall()]


def _name(verb: Callable[..., Any]) -> str:
    return getattr(verb, "__name__", "verb")
