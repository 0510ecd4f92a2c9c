"""G7, C15, C16: when the file cannot be used nothing is committed, and it heals by itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from openworker_durable import _db, rows, verbs
from openworker_durable.errors import (
    LedgerCorrupt,
    LedgerError,
    LedgerNotFound,
    LedgerTooNew,
    LedgerUnavailable,
)
from openworker_durable.ledger import Ledger
from openworker_durable.models import Outcome
from openworker_durable.snapshot import encode
from openworker_durable.states import Reason, State
from tests import needs
from tests.contract.kit import (
    ME,
    audits,
    in_state,
    intent,
    item,
    locked,
    plain,
    row_of,
    started,
    table,
)


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_db, "BUSY_SECONDS", 0.02)


@contextmanager
def full(ledger: Ledger) -> Iterator[None]:
    """Leave no page to the writer's file (SQLITE_FULL)."""
    conn = ledger._writer._connection()
    pages = conn.execute("PRAGMA page_count").fetchone()[0]
    conn.execute(f"PRAGMA max_page_count = {pages}")
    yield


@contextmanager
def read_only(ledger: Ledger) -> Iterator[None]:
    """Make SQLite answer as for a read-only file."""
    ledger._writer._connection().execute("PRAGMA query_only = ON")
    yield


@contextmanager
def gone(ledger: Ledger) -> Iterator[None]:
    """Let the folder be away, as a share that is not mounted."""
    ledger._writer._drop_connection()
    ledger._drop_reader()
    folder = ledger.path.parent
    away = folder.with_name("away")
    folder.rename(away)
    try:
        yield
    finally:
        away.rename(folder)


@contextmanager
def held(ledger: Ledger) -> Iterator[None]:
    """Let another process hold the lock."""
    with locked(ledger.path):
        yield


BIG = "x" * 400_000
Fault = Callable[[Ledger], AbstractContextManager[None]]


@pytest.mark.parametrize("fault", [held, full, read_only, gone])
def test_c15_c16_nothing_is_committed_and_it_works_again(path: Path, fault: Fault) -> None:
    folder = path.parent / "state"
    folder.mkdir()
    ledger = Ledger(folder / path.name)
    what = started(ledger, "warm")
    told, commits = len(audits(ledger.path)), ledger.commits
    shot = Outcome(state=State.SUCCEEDED, reason=Reason.RETURNED, snapshot=encode(BIG))
    with fault(ledger), pytest.raises(LedgerUnavailable, match="cannot be used now") as error:
        ledger.run(verbs.finish, what.execution_id, 1, ME, shot, 2.0)
    assert str(ledger.path) in str(error.value)
    assert BIG[:100] not in str(error.value), "no result in an exception (G10)"
    assert ledger.commits == commits
    assert row_of(ledger, what).state is State.DISPATCHED
    assert len(audits(ledger.path)) == told
    ledger.run(verbs.finish, what.execution_id, 1, ME, shot, 3.0)
    assert row_of(ledger, what).state is State.SUCCEEDED
    ledger.close()


def test_c15_the_first_move_of_all_finds_the_file_locked(path: Path) -> None:
    with plain(path) as conn:
        conn.execute("CREATE TABLE theirs (x)")
    ledger = Ledger(path)
    with locked(path), pytest.raises(LedgerUnavailable):
        started(ledger, "c1")
    started(ledger, "c1")
    ledger.close()


def test_c15_a_batch_fails_and_heals_as_one(ledger: Ledger) -> None:
    started(ledger, "warm")
    with locked(ledger.path):
        asked = [ledger.submit(verbs.dispatch, intent(f"c{i}"), item(), ME, 1.0) for i in range(5)]
        assert all(isinstance(f.exception(10), LedgerUnavailable) for f in asked)
    assert len(table(ledger.path, "tool_executions")) == 1
    for i in range(5):
        started(ledger, f"c{i}")


@needs.no_root
def test_c16_a_file_without_write_permission(path: Path) -> None:
    ledger = Ledger(path)
    started(ledger, "c1")
    ledger.close()
    path.chmod(0o400)
    ledger = Ledger(path)
    with pytest.raises(LedgerUnavailable):
        started(ledger, "c2")
    path.chmod(0o600)
    started(ledger, "c2")
    ledger.close()


def test_a_fault_in_the_middle_of_a_move_undoes_all_of_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is written, then its audit row finds the disk full: neither is there."""
    started(ledger, "warm")
    real = verbs.audit

    def fails(conn: sqlite3.Connection, **values: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(verbs, "audit", fails)
    with pytest.raises(LedgerUnavailable, match="full"):
        started(ledger, "c1")
    monkeypatch.setattr(verbs, "audit", real)
    assert ledger.known(rows.attempts(intent("c1").execution_id)) == []
    started(ledger, "c1")


# -- files that are no record
def test_g13_a_corrupt_file_is_named_with_its_remedy_and_not_touched(path: Path) -> None:
    rubbish = b"this is not a database at all " * 200
    path.write_bytes(rubbish)
    ledger = Ledger(path)
    with pytest.raises(LedgerCorrupt, match="doctor"):
        started(ledger, "c1")
    with pytest.raises(LedgerCorrupt, match="doctor"):
        ledger.known(rows.open_all())
    assert path.read_bytes() == rubbish
    path.unlink()
    started(ledger, "c1")
    ledger.close()


def test_a_damaged_page_is_corrupt_not_unavailable(path: Path) -> None:
    ledger = Ledger(path)
    for i in range(60):
        in_state(ledger, State.SUCCEEDED, f"c{i}")
    ledger.close()
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xee" * (len(raw) - 4096)
    path.write_bytes(bytes(raw))
    ledger = Ledger(path)
    with pytest.raises(LedgerCorrupt):
        ledger.known(rows.open_all())
    ledger.close()


def test_a_database_without_a_record_is_not_found(path: Path, tmp_path: Path) -> None:
    with plain(path) as conn:
        conn.execute("CREATE TABLE audit_events (id INTEGER PRIMARY KEY)")
    before = path.read_bytes()
    ledger = Ledger(path)
    with pytest.raises(LedgerNotFound, match="no record yet"):
        ledger.fetch(rows.open_all())
    assert ledger.known(rows.open_all()) == []
    assert path.read_bytes() == before
    missing = Ledger(tmp_path / "none" / "x.db")
    with pytest.raises(LedgerNotFound, match="right folder"):
        missing.fetch(rows.open_all())
    with pytest.raises(LedgerUnavailable):
        started(missing, "c1")
    missing.close()
    ledger.close()


def test_c26_a_newer_record_is_refused_by_writer_and_reader_and_not_touched(path: Path) -> None:
    ledger = Ledger(path)
    started(ledger, "c1")
    ledger.close()
    with plain(path) as conn:
        conn.execute("UPDATE durable_meta SET value = '99' WHERE key = 'schema_version'")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.read_bytes()
    ledger = Ledger(path)
    for attempt in (
        lambda: started(ledger, "c2"),
        lambda: ledger.fetch(rows.open_all()),
        lambda: ledger.first(rows.open_all()),
    ):
        with pytest.raises(LedgerTooNew, match="schema 99"):
            attempt()
    ledger.close()
    assert path.read_bytes() == before


def test_every_error_of_the_record_is_a_ledger_error() -> None:
    for text in ("database is locked", "disk I/O error", "database or disk is full", "new words"):
        error = _db.translate(sqlite3.OperationalError(text), Path("f"))
        assert type(error) is LedgerUnavailable
        assert text in str(error)
    for text in ("file is not a database", "database disk image is malformed"):
        corrupt = _db.translate(sqlite3.DatabaseError(text), Path("f"))
        assert type(corrupt) is LedgerCorrupt
        assert isinstance(corrupt, LedgerError)
