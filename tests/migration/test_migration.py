"""C26: making and changing the tables beside the host's own, at once or killed half-way."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import _db, rows, verbs
from openworker_durable.errors import LedgerTooNew
from openworker_durable.ledger import Ledger
from openworker_durable.states import PROTOCOL_VERSION, SCHEMA_VERSION
from tests import needs

HOST_TABLE = (
    "CREATE TABLE audit_events (id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " timestamp TEXT DEFAULT CURRENT_TIMESTAMP, session_id TEXT, agent TEXT, workspace TEXT,"
    " connector TEXT, tool TEXT, stage TEXT, status TEXT, approval TEXT, args TEXT,"
    " result_preview TEXT, reason TEXT, resource TEXT)"
)


@contextmanager
def plain(path: Path) -> Iterator[sqlite3.Connection]:
    conn = sqlite3.connect(path, isolation_level=None)
    try:
        yield conn
    finally:
        conn.close()


def schema(path: Path) -> list[tuple[str, str, str]]:
    with plain(path) as conn:
        return conn.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type, name"
        ).fetchall()


def meta(path: Path) -> dict[str, str]:
    with plain(path) as conn:
        return dict(conn.execute("SELECT key, value FROM durable_meta").fetchall())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coworker.db"


@pytest.fixture
def hosts(path: Path) -> Path:
    """A file of the host's, with audit rows in it."""
    with plain(path) as conn:
        conn.execute(HOST_TABLE)
        conn.executemany(
            "INSERT INTO audit_events (session_id, tool, stage) VALUES (?, ?, ?)",
            [("s", f"tool{i}", "started") for i in range(50)],
        )
        conn.execute("CREATE TABLE conversations (id TEXT)")
    return path


def test_a_fresh_file_is_stamped(path: Path) -> None:
    _db.open_writer(path).close()
    assert meta(path) == {
        "schema_version": str(SCHEMA_VERSION),
        "protocol_version": str(PROTOCOL_VERSION),
    }


def test_the_hosts_rows_stay_and_its_inserts_still_work(hosts: Path) -> None:
    with plain(hosts) as conn:
        before = conn.execute("SELECT * FROM audit_events ORDER BY id").fetchall()
    _db.open_writer(hosts).close()
    with plain(hosts) as conn:
        after = conn.execute("SELECT * FROM audit_events ORDER BY id").fetchall()
        assert [row[: len(before[0])] for row in after] == before
        assert all(row[len(before[0]) :] == (None,) * 4 for row in after)
        conn.execute("INSERT INTO audit_events (session_id, tool) VALUES ('s', 'new')")
        assert conn.execute("SELECT COUNT(*) FROM audit_events").fetchone()[0] == 51
    assert ("table", "conversations", "CREATE TABLE conversations (id TEXT)") in schema(hosts)


def test_audit_columns_are_those_that_g10_names(hosts: Path) -> None:
    _db.open_writer(hosts).close()
    with plain(hosts) as conn:
        have = {row[1] for row in conn.execute("PRAGMA table_info(audit_events)")}
    assert {"tool_call_id", "execution_id", "attempt", "recovery_decision"} <= have


def test_migrating_twice_changes_nothing(hosts: Path) -> None:
    _db.open_writer(hosts).close()
    first = schema(hosts)
    _db.open_writer(hosts).close()
    assert schema(hosts) == first


def test_the_same_schema_with_and_without_the_hosts_table(hosts: Path, tmp_path: Path) -> None:
    _db.open_writer(hosts).close()
    alone = tmp_path / "alone.db"
    _db.open_writer(alone).close()
    names = {(kind, name) for kind, name, _ in schema(alone)}
    assert {(kind, name) for kind, name, _ in schema(hosts)} == names | {("table", "conversations")}


@pytest.mark.parametrize("statement", ["ALTER TABLE", "INSERT OR REPLACE", "COMMIT"])
def test_c26_a_fault_at_any_statement_leaves_the_old_schema(hosts: Path, statement: str) -> None:
    before = schema(hosts)

    class Failing(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if sql.startswith(statement):
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *args)

    conn = sqlite3.connect(hosts, isolation_level=None, factory=Failing)
    with pytest.raises(sqlite3.OperationalError):
        _db.migrate(conn, hosts)
    assert not conn.in_transaction
    conn.close()
    assert schema(hosts) == before
    _db.open_writer(hosts).close()
    assert meta(hosts)["schema_version"] == str(SCHEMA_VERSION)


KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from openworker_durable import _db

def watch(sql):
    if sql.startswith(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

path = Path(sys.argv[1])
conn = sqlite3.connect(path, isolation_level=None)
conn.set_trace_callback(watch)
conn.execute("PRAGMA journal_mode = WAL")
_db.migrate(conn, path)
"""


@pytest.mark.crash
@needs.sigkill
@pytest.mark.parametrize("statement", ["ALTER TABLE", "INSERT OR REPLACE", "COMMIT"])
def test_c26_killed_between_alter_and_stamp_the_next_start_finishes(
    hosts: Path, statement: str
) -> None:
    before = schema(hosts)
    child = subprocess.run([sys.executable, "-c", KILLED, str(hosts), statement], check=False)
    assert child.returncode == -signal.SIGKILL
    assert schema(hosts) == before
    ledger = Ledger(hosts)
    ledger.run(verbs.note, "s", "t", "stage", "status", "reason")
    ledger.close()
    assert meta(hosts)["schema_version"] == str(SCHEMA_VERSION)


AT_ONCE = """
import sys
from pathlib import Path
from openworker_durable import _db
print("ready", flush=True)
sys.stdin.readline()
for name in sys.argv[1:]:
    _db.open_writer(Path(name)).close()
"""


def test_c26_two_processes_migrate_at_once(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.db" for i in range(12)]
    for path in paths:
        with plain(path) as conn:
            conn.execute(HOST_TABLE)
    words = [sys.executable, "-c", AT_ONCE, *map(str, paths)]
    children = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate(timeout=60)
    assert [child.returncode for child in children] == [0, 0]
    assert all(schema(path) == schema(paths[0]) for path in paths)
    assert all(meta(path)["schema_version"] == str(SCHEMA_VERSION) for path in paths)


def test_c26_a_newer_file_is_refused_before_anything_is_made(path: Path) -> None:
    with plain(path) as conn:
        conn.execute("CREATE TABLE durable_meta (key TEXT PRIMARY KEY, value TEXT)")
        conn.execute(
            "INSERT INTO durable_meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION + 1),)
        )
    before = path.read_bytes()
    with pytest.raises(LedgerTooNew, match="upgrade"):
        _db.open_writer(path)
    with pytest.raises(LedgerTooNew, match="upgrade"):
        _db.open_reader(path)
    assert path.read_bytes() == before


OLD_GONE = {
    "tool_executions": ("tool_account", "prepared", "probes", "found"),
    "execution_evidence": ("source", "event"),
}
"""What schema 2 added to schema 1."""


@pytest.mark.parametrize("opener", [_db.open_writer, _db.open_reader], ids=["writer", "reader"])
def test_c26_a_file_of_the_schema_before_is_brought_up_and_loses_nothing(
    path: Path, opener: Any
) -> None:
    _db.open_writer(path).close()
    whole = schema(path)
    with plain(path) as conn:
        conn.execute(
            "INSERT INTO tool_executions (execution_id, attempt, session_id, incarnation,"
            " tool_call_id, tool_source, tool_name, intent_digest, owner, protocol_version,"
            " state, reason, dispatched_at)"
            " VALUES ('x', 1, 's', 'i', 'c', 'host', 'send', 'd', 'me', 1, 'unknown', 'raised', 1)"
        )
        conn.execute("DROP INDEX tool_executions_probe")
        for name in ("execution_evidence_event",):
            conn.execute(f"DROP INDEX IF EXISTS {name}")
        for table, columns in OLD_GONE.items():
            for column in columns:
                conn.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        conn.execute("UPDATE durable_meta SET value = '1' WHERE key = 'schema_version'")
    opener(path).close()
    assert meta(path)["schema_version"] == str(SCHEMA_VERSION)
    assert [(k, n) for k, n, _ in schema(path)] == [(k, n) for k, n, _ in whole]
    with plain(path) as conn:
        found = conn.execute(
            "SELECT tool_name, state, tool_account, prepared, probes, found, probe_at"
            " FROM tool_executions"
        ).fetchall()
    assert found == [("send", "unknown", "", "", 0, "", None)]


def test_rule_1_states_of_a_newer_protocol_can_be_read(path: Path) -> None:
    """A row that a newer version wrote is shown, and its state is not ours to judge."""
    conn = _db.open_writer(path)
    conn.execute(
        "INSERT INTO tool_executions (execution_id, attempt, session_id, incarnation,"
        " tool_call_id, tool_source, tool_name, intent_digest, owner, protocol_version, state,"
        " reason, dispatched_at) VALUES ('x', 1, 's', 'i', 'c', 'host', 'pay', 'd', 'o', 9,"
        " 'compensated', 'new_word', 1.0)"
    )
    conn.close()
    ledger = Ledger(path)
    (row,) = ledger.fetch(rows.open_all())
    assert row.newer
    assert row.state == "compensated"
    assert not row.undecided
    ledger.close()


@needs.file_modes
@pytest.mark.parametrize("there", [False, True])
def test_c24_the_file_and_what_sqlite_keeps_beside_it_have_mode_0600(
    path: Path, there: bool
) -> None:
    if there:
        path.touch(0o644)
    before = os.umask(0o022)
    try:
        ledger = Ledger(path)
        ledger.run(verbs.note, "s", "t", "stage", "status", "reason")
        found = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
        ledger.close()
    finally:
        os.umask(before)
    assert set(found) == {path.name, f"{path.name}-wal", f"{path.name}-shm"}
    assert set(found.values()) == {0o600}, found
