"""The database file: opening, pragmas, migrations, and the one writer.

`Writer` owns the only connection that writes. It serves worker threads and the event loop
alike through a queue, commits what several callers asked for in one transaction, and goes on
when whoever asked was cancelled. It opens the file when first needed and again after a
failure, so that the ledger heals without a restart (G7). A connection is never shared with
code that could roll it back, and no transaction is open while external code runs (G8).
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import LedgerCorrupt, LedgerError, LedgerNotFound, LedgerTooNew, LedgerUnavailable
from .failpoints import Failpoint, no_failpoint
from .sql import SCHEMA, columns_of
from .states import PROTOCOL_VERSION, SCHEMA_VERSION

BUSY_SECONDS = 5.0
"""How long a write waits for another process's lock before it is given up."""

BATCH = 128
"""Most moves committed in one transaction."""

AUDIT_COLUMNS = {
    "tool_call_id": "TEXT",
    "execution_id": "TEXT",
    "attempt": "INTEGER",
    "recovery_decision": "TEXT",
}
"""Columns added to the host's audit table; it names its own on insert, so these are safe."""

Job = Callable[[sqlite3.Connection], Any]


def translate(exc: sqlite3.Error, path: Path) -> LedgerError:
    """Return the ledger's error for one of SQLite's, with the remedy in its message."""
    text = str(exc)
    if "not a database" in text or "malformed" in text:
        return LedgerCorrupt(
            f"{path} is damaged ({text}); keep a copy of it with its -wal file before anything "
            "else, then restore a backup or move it aside: sessions it covered "
            "then ask before anything runs again (`openworker-durable doctor` shows what is there)"
        )
    return LedgerUnavailable(f"the record at {path} cannot be used now ({text}); {_remedy(text)}")


def _remedy(text: str) -> str:
    if "locked" in text or "busy" in text:
        return "another program holds the file: close it, or wait"
    if "full" in text:
        return "free some disk space"
    if "readonly" in text or "unable to open" in text:
        return "make the folder writable"
    return "it is tried again with the next call"


def _pragmas(conn: sqlite3.Connection, *, write: bool) -> None:
    conn.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    if write and _set_wal(conn) != "wal":
        raise LedgerUnavailable("the file system does not allow write-ahead logging")
    conn.execute("PRAGMA synchronous = FULL")
    if sys.platform == "darwin":
        conn.execute("PRAGMA fullfsync = ON")
    if conn.execute("PRAGMA synchronous").fetchone()[0] != 2:
        raise LedgerUnavailable("SQLite did not accept synchronous = FULL")


def _set_wal(conn: sqlite3.Connection) -> str:
    """Switch to write-ahead logging; SQLite's own busy timeout does not cover this switch."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return str(conn.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() >= deadline:
                raise
            time.sleep(0.005)


def _version(conn: sqlite3.Connection) -> int:
    """Return the schema version stamped in the file, 0 where there is none."""
    found = conn.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'durable_meta'"
    ).fetchone()
    if not found:
        return 0
    row = conn.execute("SELECT value FROM durable_meta WHERE key = 'schema_version'").fetchone()
    if row is None:
        return 0
    if not str(row[0]).isdigit():
        raise sqlite3.DatabaseError("malformed schema version")
    return int(row[0])


def _check_version(version: int, path: Path) -> None:
    if version > SCHEMA_VERSION:
        raise LedgerTooNew(
            f"{path} was written by a newer openworker-durable (schema {version}, this one knows "
            f"{SCHEMA_VERSION}); upgrade the package, nothing was changed"
        )


def statements(script: str) -> list[str]:
    """Split a script without triggers into its statements."""
    return [s for s in (part.strip() for part in script.split(";")) if s]


def migrate(conn: sqlite3.Connection, path: Path) -> None:
    """Bring the file to this version's schema in one transaction, or leave it as it was.

    Two processes may call this at once: the second waits and finds it done. A kill anywhere
    inside leaves the old schema, because the version is stamped in the same transaction.

    Raises:
        LedgerTooNew: when a newer version wrote the file.
    """
    _check_version(_version(conn), path)
    conn.execute("BEGIN IMMEDIATE")
    try:
        _check_version(_version(conn), path)
        for statement in statements(SCHEMA["tables"]):
            conn.execute(statement)
            _add_columns(conn, *columns_of(statement))
        _add_columns(conn, "audit_events", AUDIT_COLUMNS)
        for statement in statements(SCHEMA["audit_indexes"]):
            conn.execute(statement)
        for key, value in (
            ("schema_version", SCHEMA_VERSION),
            ("protocol_version", PROTOCOL_VERSION),
        ):
            conn.execute("INSERT OR REPLACE INTO durable_meta VALUES (?, ?)", (key, str(value)))
        conn.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            conn.execute("ROLLBACK")
        raise


def _add_columns(conn: sqlite3.Connection, table: str, columns: Mapping[str, str]) -> None:
    """Give a table of an older schema, or of the host, the columns it lacks."""
    have = {row[1] for row in conn.execute(f"PRAGMA table_info({table})")} if table else set()
    for name, kind in columns.items():
        if name not in have:
            conn.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")


def _private(path: Path) -> None:
    """Let only the person read the file and what SQLite keeps beside it, before it is opened."""
    with contextlib.suppress(OSError):
        path.touch(mode=0o600)
        for name in (path.name, path.name + "-wal", path.name + "-shm"):
            path.with_name(name).chmod(0o600)


def open_writer(path: Path) -> sqlite3.Connection:
    """Open the file for writing, make the tables, read the pragmas back.

    Raises:
        LedgerUnavailable, LedgerCorrupt, LedgerTooNew: nothing was changed then.
    """
    conn: sqlite3.Connection | None = None
    try:
        _private(path)
        conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        conn.row_factory = sqlite3.Row
        conn.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        _check_version(_version(conn), path)
        _pragmas(conn, write=True)
        migrate(conn, path)
        return conn
    except sqlite3.Error as exc:
        if conn is not None:
            conn.close()
        raise translate(exc, path) from exc
    except LedgerError:
        if conn is not None:
            conn.close()
        raise


def open_reader(path: Path) -> sqlite3.Connection:
    """Open the file for reading only; a missing file or missing tables is an error.

    A file of an older schema is brought to this version's first.

    Raises:
        LedgerNotFound: no file there, or no record in it.
        LedgerTooNew, LedgerCorrupt, LedgerUnavailable.
    """
    if not path.is_file():
        raise LedgerNotFound(f"there is no record at {path}; is this the right folder?")
    try:
        conn = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None,
            check_same_thread=False,
        )  # fmt: skip
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc
    conn.row_factory = sqlite3.Row
    try:
        _pragmas(conn, write=False)
        version = _version(conn)
        _check_version(version, path)
    except sqlite3.Error as exc:
        conn.close()
        raise translate(exc, path) from exc
    except LedgerError:
        conn.close()
        raise
    if version == 0:
        conn.close()
        raise LedgerNotFound(f"{path} holds no record yet; nothing protected has run there")
    if version < SCHEMA_VERSION:
        conn.close()
        open_writer(path).close()
        return open_reader(path)
    return conn


@dataclass
class _Ask:
    name: str
    job: Job
    future: Future[Any]


class Writer:
    """The one thread that writes; see the module's docstring.

    Args:
        path: the database file; its folder must exist.
        failpoint: called before and after each commit with `commit.<when>:<verb>`.
    """

    def __init__(self, path: Path, failpoint: Failpoint = no_failpoint) -> None:
        self.path = path
        self.commits = 0
        self._hit = failpoint
        self._queue: queue.SimpleQueue[_Ask | None] = queue.SimpleQueue()
        self._deferred: list[_Ask] = []
        self._conn: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        weakref.finalize(self, self._queue.put, None)

    def submit(self, name: str, job: Job) -> Future[Any]:
        """Ask for one move; the future ends after its transaction was committed.

        Cancelling the future does not undo the move: once asked, it is written (trap 7).
        """
        ask = _Ask(name, job, Future())
        ask.future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise LedgerUnavailable("the ledger of this process was closed")
            self._ensure_thread()
            self._queue.put(ask)
        return ask.future

    def defer(self, name: str, job: Job) -> None:
        """Ask for a move that may ride on the next commit, and may be lost by a crash."""
        ask = _Ask(name, job, Future())
        ask.future.set_running_or_notify_cancel()
        with self._lock:
            self._deferred.append(ask)

    def close(self) -> None:
        """Write what was deferred, then end the thread and close the file."""
        with self._lock:
            if self._closed:
                return
            if self._deferred:
                self._ensure_thread()
            self._closed = True
            thread = self._thread
            self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            ref = weakref.ref(self)
            self._thread = threading.Thread(
                target=_serve, args=(ref, self._queue), name="durable-writer", daemon=True
            )
            self._thread.start()

    def _collect(self, first: _Ask) -> tuple[list[_Ask], bool]:
        asks, last = [first], False
        while len(asks) < BATCH:
            try:
                ask = self._queue.get_nowait()
            except queue.Empty:
                break
            if ask is None:
                last = True
                break
            asks.append(ask)
        return asks, last

    def _take_deferred(self) -> list[_Ask]:
        with self._lock:
            asks, self._deferred = self._deferred, []
        return asks

    def run_batch(self, asks: list[_Ask]) -> None:
        """Commit `asks` and what was deferred in one transaction; settle every future."""
        deferred = self._take_deferred()
        done: list[tuple[_Ask, Any, BaseException | None]] = []
        try:
            conn = self._connection()
            for ask in asks:
                self._hit(f"commit.before:{ask.name}")
            conn.execute("BEGIN IMMEDIATE")
            for ask in [*asks, *deferred]:
                done.append(_apply(conn, ask))
            for ask in deferred:
                self._hit(f"commit.before:{ask.name}")
            conn.execute("COMMIT")
            self.commits += 1
        except BaseException as exc:
            self._fail(asks, deferred, exc)
            return
        for ask in [*asks, *deferred]:
            self._hit(f"commit.after:{ask.name}")
        for ask, value, error in done:
            if error is not None:
                ask.future.set_exception(error)
            else:
                ask.future.set_result(value)

    def _fail(self, asks: list[_Ask], deferred: list[_Ask], exc: BaseException) -> None:
        error: BaseException = exc
        if isinstance(exc, sqlite3.Error):
            error = translate(exc, self.path)
            error.__cause__ = exc
        self._drop_connection()
        with self._lock:
            self._deferred[:0] = deferred
        for ask in asks:
            ask.future.set_exception(error)

    def _connection(self) -> sqlite3.Connection:
        if self._conn is None:
            self._conn = open_writer(self.path)
        return self._conn

    def _drop_connection(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(sqlite3.Error):
                conn.execute("ROLLBACK")
            with contextlib.suppress(sqlite3.Error):
                conn.close()


_OF_THE_FILE = (sqlite3.OperationalError, sqlite3.DatabaseError)
"""Errors that concern the whole transaction; all others concern one move."""


def _apply(conn: sqlite3.Connection, ask: _Ask) -> tuple[_Ask, Any, BaseException | None]:
    """Run one move inside a savepoint, so that a refused one does not undo the others."""
    conn.execute("SAVEPOINT one")
    try:
        value = ask.job(conn)
    except Exception as exc:
        if type(exc) in _OF_THE_FILE:
            raise
        conn.execute("ROLLBACK TO one")
        conn.execute("RELEASE one")
        return ask, None, exc
    conn.execute("RELEASE one")
    return ask, value, None


def _serve(ref: weakref.ref[Writer], asks: queue.SimpleQueue[_Ask | None]) -> None:
    while True:
        first = asks.get()
        writer = ref()
        if writer is None:
            return
        last = first is None
        if first is not None:
            batch, last = writer._collect(first)
            writer.run_batch(batch)
        elif writer._deferred:
            writer.run_batch([])
        if last:
            writer._drop_connection()
            return
        del writer
