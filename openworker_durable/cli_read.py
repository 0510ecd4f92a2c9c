"""Reading a record without leaving a trace, for the command line.

Nothing is created in the state folder, not even the two files that SQLite makes beside a
file in write-ahead mode whenever a reader comes first; a folder that cannot be written to
is read as well. Result columns are never selected here, so no command can show one.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from . import _db, owner, rows
from .errors import DurableError, LedgerCorrupt, LedgerError, LedgerNotFound, LedgerTooNew
from .ledger import DATABASE
from .models import AuditEntry, Execution
from .rows import execution_of
from .sql import SCHEMA, columns_of
from .states import SCHEMA_VERSION

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

WAIT_SECONDS = 2.0
"""How long a command waits for a locked file."""

EXITS: dict[str, tuple[int, str]] = {
    "problem": (1, "`doctor` found something wrong, or a row of `demo` is not ok"),
    "usage": (2, "the command line itself is wrong"),
    "no_folder": (3, "the state folder does not exist"),
    "no_ledger": (4, "the folder holds no record"),
    "corrupt": (5, "the record is damaged"),
    "too_new": (6, "a newer openworker-durable wrote the record"),
    "unavailable": (7, "the record is locked or cannot be read where it is"),
    "no_such_execution": (8, "no execution has an id that begins so"),
    "ambiguous": (9, "several executions have an id that begins so"),
}
"""Every exit status but 0, by the code that `--json` prints; docs/cli.md shows this table."""

COLUMNS = ", ".join(Execution.model_fields)

_OPEN = "SELECT execution_id FROM tool_executions WHERE acknowledged_at IS NULL"
_LISTED = f"""
SELECT {COLUMNS} FROM tool_executions e
WHERE attempt = (SELECT MAX(attempt) FROM tool_executions m
                 WHERE m.execution_id = e.execution_id)
  AND (:tool = '' OR tool_name = :tool)
  AND (:session = '' OR substr(session_id, 1, length(:session)) = :session)
  AND (NOT :only_open OR execution_id IN ({_OPEN}))
ORDER BY execution_id IN ({_OPEN}) DESC, dispatched_at DESC, execution_id LIMIT :limit
"""
_ATTEMPTS = (
    f"SELECT {COLUMNS} FROM tool_executions WHERE execution_id = :execution_id ORDER BY attempt"
)
_BEGINNING = """
SELECT execution_id FROM tool_executions WHERE substr(execution_id, 1, length(:prefix)) = :prefix
UNION
SELECT execution_id FROM audit_events
WHERE :audit AND execution_id <> '' AND substr(execution_id, 1, length(:prefix)) = :prefix
ORDER BY execution_id LIMIT 6
"""


class Stop(DurableError):
    """Ends a command with one sentence.

    Args:
        code: a key of `EXITS`.
        sentence: what is wrong and what to do about it.
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.exit = EXITS[code][0]


def default_state_dir() -> Path:
    """Return the state folder that OpenWorker uses on this machine.

    Fact about `andrewyng/openworker` at 83ab5bd, `coworker/secrets.py`, `state_dir()`: the
    variable COWORKER_STATE_DIR, else %APPDATA%/coworker on Windows, else ~/.config/coworker.
    """
    named = os.environ.get("COWORKER_STATE_DIR")
    if named:
        return Path(named).expanduser()
    roaming = os.environ.get("APPDATA") if sys.platform == "win32" else None
    return Path(roaming) / "coworker" if roaming else Path.home() / ".config" / "coworker"


def database(state: Path) -> Path:
    """Return the record's file in a state folder.

    Raises:
        Stop: there is no such folder, or no file in it.
    """
    with _explained(state / DATABASE):
        if not state.is_dir():
            raise Stop("no_folder", f"{state} is not a folder; name OpenWorker's with --state.")
        if not (state / DATABASE).is_file():
            raise LedgerNotFound
    return state / DATABASE


def read(state: Path, work: Work[T], *, any_version: bool = False) -> T:
    """Run `work` on one consistent, read-only view of the record; leaves no file behind.

    Args:
        state: the state folder.
        work: gets a connection; may be called again when somebody wrote meanwhile.
        any_version: True to look into a record that a newer version wrote.

    Raises:
        Stop: the record cannot be read; says why and what to do.
    """
    path = database(state)
    with _explained(path):
        for _ in range(5):
            before = _look(path)
            if not _at_rest(path):
                break
            # At rest the main file is the whole truth, and SQLite may be told not to expect
            # anything beside it; whether that stayed true is checked after reading.
            try:
                value = _run(path, "&immutable=1", work, any_version)
            except (sqlite3.Error, LedgerError, ValueError):
                if _look(path) == before:
                    raise
                continue
            if _look(path) == before:
                return value
        return _run(path, "", work, any_version)


def journal_mode(path: Path) -> str:
    """Return the journal mode that the file's header names: `wal`, `delete`, or `unknown`."""
    with path.open("rb") as file:
        header = file.read(20)
    if not header.startswith(b"SQLite format 3\0"):
        return "unknown"
    return "wal" if header[18:20] == b"\x02\x02" else "delete"


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _at_rest(path: Path) -> bool:
    wal = _wal(path)
    return journal_mode(path) == "wal" and not (wal.exists() and wal.stat().st_size)


def _look(path: Path) -> tuple[tuple[int, int, int] | None, ...]:
    looks: list[tuple[int, int, int] | None] = []
    for file in (path, _wal(path)):
        try:
            stat = file.stat()
            looks.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except FileNotFoundError:
            looks.append(None)
    if looks[1] and not looks[1][1]:
        looks[1] = None
    return tuple(looks)


def _run(path: Path, options: str, work: Work[T], any_version: bool) -> T:
    uri = f"{path.absolute().as_uri()}?mode=ro{options}"
    with closing(
        sqlite3.connect(uri, uri=True, isolation_level=None, timeout=WAIT_SECONDS)
    ) as conn:
        conn.row_factory = sqlite3.Row
        conn.execute("PRAGMA temp_store = MEMORY")
        conn.execute("BEGIN")
        version = _db._version(conn)
        if version == 0:
            raise LedgerNotFound
        if not any_version:
            _db._check_version(version, path)
        if version < SCHEMA_VERSION:
            _show_as_now(conn)
        return work(conn)


def _show_as_now(conn: sqlite3.Connection) -> None:
    """Let the tables of an older schema be read as if they had the columns of this one.

    Views of this connection alone stand before the tables; nothing is written to the file.
    """
    for table, columns in map(columns_of, _db.statements(SCHEMA["tables"])):
        have = {row[1] for row in conn.execute(f"PRAGMA main.table_info({table})")} if table else ()
        lacking = [f"{_default(kind)} AS {n}" for n, kind in columns.items() if n not in have]
        if have and lacking:
            parts = ", ".join(["*", *lacking])
            conn.execute(f"CREATE TEMP VIEW {table} AS SELECT {parts} FROM main.{table}")


def _default(kind: str) -> str:
    _, _, value = kind.partition("DEFAULT ")
    return value or "NULL"


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn whatever reading raises into one sentence with the remedy."""
    try:
        yield
    except LedgerNotFound:
        raise Stop(
            "no_ledger",
            f"{path.parent} holds no record: nothing protected has run there yet, or it is the "
            "wrong folder; name OpenWorker's with --state.",
        ) from None
    except LedgerTooNew as exc:
        raise Stop("too_new", f"{exc}.") from None
    except sqlite3.Error as exc:
        raise _why(exc, path) from None
    except OSError as exc:
        raise Stop(
            "unavailable", f"{path} cannot be read ({exc.strerror}); check who may read it."
        ) from None
    except ValueError as exc:  # a row or a version that no version of this package writes
        raise _damaged(path, type(exc).__name__) from None


def _damaged(path: Path, why: str) -> Stop:
    return Stop(
        "corrupt",
        f"{path} is damaged ({why}); stop OpenWorker, keep a copy of the file, and restore a "
        "backup or repair it with SQLite's `.recover`.",
    )


def _why(exc: sqlite3.Error, path: Path) -> Stop:
    text = str(exc)
    if isinstance(_db.translate(exc, path), LedgerCorrupt) or "no such" in text:
        return _damaged(path, text)
    if "locked" in text or "busy" in text:
        sentence = "is locked by another program; wait until it is done, or stop it; then try again"
    elif "readonly" in text or "unable to open" in text:
        sentence = (
            f"cannot be read where it is ({text}), because the newest entries are still in the "
            f"file {_wal(path).name} beside it; copy both to a folder of your own and name that "
            "with --state"
        )
    else:
        sentence = f"cannot be read now ({text}); check the disk and who may read it"
    return Stop("unavailable", f"{path} {sentence}.")


def listed(
    conn: sqlite3.Connection, *, session: str, tool: str, only_open: bool, limit: int
) -> list[tuple[Execution, bool]]:
    """Return the latest attempt of each execution and whether it is open; open ones first."""
    params = {"session": _sql(session), "tool": _sql(tool), "only_open": only_open, "limit": limit}
    found = [execution_of(r) for r in conn.execute(_LISTED, params)]
    opened = open_ids(conn)
    return [(row, row.execution_id in opened) for row in found]


def open_ids(conn: sqlite3.Connection) -> set[str]:
    """Return the executions with an attempt whose end no saved thread is known to carry."""
    return {str(r[0]) for r in conn.execute(_OPEN)}


def whole(
    conn: sqlite3.Connection, prefix: str
) -> tuple[list[Execution], bool, list[dict[str, Any]]]:
    """Return an execution's attempts, whether it is open, and evidence that came too late.

    Evidence of a named source is none of the last: it is on record only where it settled an
    attempt, whose row says so.

    Raises:
        Stop: no execution, or several, have an id that begins with `prefix`.
    """
    execution_id = full_id(conn, prefix)
    found = conn.execute(_ATTEMPTS, {"execution_id": execution_id})
    attempts = [execution_of(r) for r in found]
    late = [e for e in _all(conn, rows.evidence(execution_id)) if not e["source"]]
    return attempts, execution_id in open_ids(conn), late


def events(conn: sqlite3.Connection, prefix: str) -> tuple[str, list[AuditEntry]]:
    """Return an execution's id and audit rows, also when its own rows have aged out."""
    execution_id = full_id(conn, prefix, audit=True)
    return execution_id, _all(conn, rows.history(execution_id))


def _all(conn: sqlite3.Connection, query: rows.Query[T]) -> list[T]:
    return [query.read(r) for r in conn.execute(query.sql, dict(query.params))]


def _sql(typed: str) -> str:
    """Return what was typed as text that SQLite takes; a terminal may hand over stray bytes."""
    return typed.encode("utf-8", "replace").decode("utf-8")


def full_id(conn: sqlite3.Connection, prefix: str, *, audit: bool = False) -> str:
    """Return the one execution id that begins with `prefix`.

    Args:
        audit: True to accept an id of which only the audit rows are left.

    Raises:
        Stop: there is none, or several.
    """
    params = {"prefix": _sql(prefix), "audit": audit}
    found = [str(r[0]) for r in conn.execute(_BEGINNING, params)] if prefix else []
    if len(found) == 1 or prefix in found:
        return prefix if prefix in found else found[0]
    if not found:
        raise Stop(
            "no_such_execution",
            f"no execution id begins with {prefix!r}; `openworker-durable list`, with the same "
            "--state, shows them.",
        )
    some = ", ".join(found[:5]) + (", and more" if len(found) > 5 else "")
    raise Stop("ambiguous", f"{prefix!r} begins several ids: {some}; give more of it.")


def is_locked(path: Path) -> bool | None:
    """Say whether a living process holds a lock file; None when that cannot be told here."""
    try:
        if not path.exists():
            return False
        lock = owner._lock(path)
        if not owner._try(lock):
            return True
        lock.release()
    except OSError:
        return None
    return False


def owner_alive(state: Path, name: str) -> bool | None:
    """Say whether the owner of an attempt still runs; None when that cannot be told here."""
    if not name.isalnum():
        return None
    return is_locked(state / owner.LOCK_FOLDER / f"owner-{name}.lock")
