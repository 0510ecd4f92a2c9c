"""C26: a record that release 1 wrote is read and gone on with, and nothing of it is lost.

The tables here are those of release 1, word for word; they are not to follow the schema.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import _db, finding, rows, verbs
from openworker_durable.errors import Refused
from openworker_durable.identity import intent_digest
from openworker_durable.ledger import Ledger
from openworker_durable.models import Intent, ToolIdentity
from openworker_durable.policy import MANUAL, Descriptor, Standing, idempotent, parse, standing
from openworker_durable.snapshot import Snapshot, encode
from openworker_durable.states import SCHEMA_VERSION, Decision, State
from tests import needs
from tests.cli.records import files, run, run_json
from tests.contract.kit import plain, table
from tests.contract.policies import BY_POLICY

RELEASE_1 = """
CREATE TABLE IF NOT EXISTS durable_meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS tool_executions (
    execution_id     TEXT    NOT NULL,
    attempt          INTEGER NOT NULL CHECK (attempt >= 1),
    session_id       TEXT    NOT NULL,
    incarnation      TEXT    NOT NULL,
    tool_call_id     TEXT    NOT NULL,
    tool_source      TEXT    NOT NULL,
    tool_name        TEXT    NOT NULL,
    tool_version     TEXT    NOT NULL DEFAULT '',
    schema_digest    TEXT    NOT NULL DEFAULT '',
    intent_digest    TEXT    NOT NULL,
    preview          TEXT    NOT NULL DEFAULT '',
    policy           TEXT    NOT NULL DEFAULT 'manual',
    authority_kind   TEXT    CHECK (authority_kind IN
                     ('item', 'prompt', 'rule', 'grant', 'policy', 'decision')),
    authority_ref    TEXT    NOT NULL DEFAULT '',
    occurrence       TEXT    NOT NULL DEFAULT '',
    linked           TEXT    NOT NULL DEFAULT '',
    owner            TEXT    NOT NULL,
    protocol_version INTEGER NOT NULL,
    state            TEXT    NOT NULL CHECK (protocol_version > 1 OR state IN
                     ('dispatched', 'succeeded', 'failed', 'unknown')),
    reason           TEXT    NOT NULL,
    detail           TEXT    NOT NULL DEFAULT '',
    dispatched_at    REAL    NOT NULL,
    ended_at         REAL,
    snapshot         BLOB,
    snapshot_digest  TEXT,
    lossy            INTEGER NOT NULL DEFAULT 0,
    decision         TEXT    CHECK (decision IN ('happened', 'retry', 'drop')),
    decided_by       TEXT    NOT NULL DEFAULT '',
    decided_at       REAL,
    decision_note    TEXT    NOT NULL DEFAULT '',
    probe_at         REAL,
    acknowledged_at  REAL,
    superseded       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (execution_id, attempt)
) WITHOUT ROWID;

CREATE UNIQUE INDEX IF NOT EXISTS tool_executions_item
    ON tool_executions (authority_ref) WHERE authority_kind = 'item';

CREATE INDEX IF NOT EXISTS tool_executions_call
    ON tool_executions (session_id, tool_call_id);

CREATE INDEX IF NOT EXISTS tool_executions_open
    ON tool_executions (session_id, execution_id, attempt) WHERE acknowledged_at IS NULL;

CREATE INDEX IF NOT EXISTS tool_executions_occurrence
    ON tool_executions (occurrence) WHERE occurrence <> '';

CREATE TABLE IF NOT EXISTS session_protocol (
    session_id       TEXT    NOT NULL,
    incarnation      TEXT    NOT NULL,
    protocol_version INTEGER NOT NULL,
    covered_digest   TEXT    NOT NULL DEFAULT '',
    covered_ordinal  INTEGER NOT NULL DEFAULT -1,
    audit_mark       INTEGER NOT NULL DEFAULT 0,
    covered_at       REAL,
    deleted_at       REAL,
    PRIMARY KEY (session_id, incarnation)
) WITHOUT ROWID;

CREATE UNIQUE INDEX IF NOT EXISTS session_protocol_living
    ON session_protocol (session_id) WHERE deleted_at IS NULL;

CREATE TABLE IF NOT EXISTS execution_evidence (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    execution_id TEXT    NOT NULL,
    attempt      INTEGER NOT NULL,
    at           REAL    NOT NULL,
    state        TEXT    NOT NULL,
    reason       TEXT    NOT NULL,
    digest       TEXT,
    detail       TEXT    NOT NULL DEFAULT ''
);

CREATE TABLE IF NOT EXISTS audit_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    timestamp TEXT DEFAULT CURRENT_TIMESTAMP,
    session_id TEXT, agent TEXT, workspace TEXT, connector TEXT, tool TEXT, stage TEXT,
    status TEXT, approval TEXT, args TEXT, result_preview TEXT, reason TEXT, resource TEXT
);

CREATE INDEX IF NOT EXISTS audit_events_execution
    ON audit_events (execution_id) WHERE execution_id IS NOT NULL;
"""

ADDED: dict[str, dict[str, Any]] = {
    "tool_executions": {"tool_account": "", "prepared": "", "probes": 0, "found": ""},
    "execution_evidence": {"source": "", "event": ""},
}
"""What schema 2 has more, and what it says of rows from before."""

TABLES = ("tool_executions", "session_protocol", "execution_evidence", "audit_events")
ME = "owner-1"
SHOT = encode({"sent": True})


def _execution(call: str, attempt: int = 1, state: str = "unknown", **more: Any) -> dict[str, Any]:
    ended = None if state == "dispatched" else 20.0
    return {
        "execution_id": f"x{call}", "attempt": attempt, "session_id": "s", "incarnation": "life",
        "tool_call_id": call, "tool_source": "host", "tool_name": "pay", "tool_version": "3",
        "schema_digest": "5" * 16, "intent_digest": intent_digest("pay", {"amount": 10}),
        "preview": "amount: 10", "policy": "manual", "authority_kind": "item",
        "authority_ref": f"item-{call}", "occurrence": "task:9", "linked": "x-old", "owner": ME,
        "protocol_version": 1, "state": state, "reason": "owner_died", "detail": "TimeoutError",
        "dispatched_at": 10.0 + attempt, "ended_at": ended, **more,
    }  # fmt: skip


EXECUTIONS = (
    _execution("run", state="dispatched", reason="started"),
    _execution("done", state="succeeded", reason="returned", snapshot=SHOT.pack(),
               snapshot_digest=SHOT.digest, lossy=1, acknowledged_at=30.0),
    _execution("open"),
    _execution("said", decision="retry", decided_by="inbox", decided_at=25.0,
               decision_note="not there", superseded=1),
    _execution("said", 2, state="failed", reason="raised", authority_kind="decision"),
    _execution("kept", state="succeeded", reason="decided", decision="happened"),
    _execution("old", reason="legacy", authority_kind=None, authority_ref=""),
)  # fmt: skip


def _insert(conn: sqlite3.Connection, name: str, values: dict[str, Any]) -> None:
    marks = ", ".join("?" for _ in values)
    conn.execute(f"INSERT INTO {name} ({', '.join(values)}) VALUES ({marks})", [*values.values()])


def release_1(path: Path) -> None:
    """Make a record as release 1 left it, with a row of every kind."""
    with plain(path) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        parts = [part for part in RELEASE_1.split(";") if part.strip()]
        for part in parts[:-1]:
            conn.execute(part)
        for column in ("tool_call_id TEXT", "execution_id TEXT", "attempt INTEGER",
                       "recovery_decision TEXT"):  # fmt: skip
            conn.execute(f"ALTER TABLE audit_events ADD COLUMN {column}")
        conn.execute(parts[-1])
        for row in EXECUTIONS:
            _insert(conn, "tool_executions", row)
        _insert(conn, "session_protocol", {
            "session_id": "s", "incarnation": "life", "protocol_version": 1,
            "covered_digest": "c" * 40, "covered_ordinal": 7, "audit_mark": 3, "covered_at": 9.0,
        })  # fmt: skip
        _insert(conn, "execution_evidence", {
            "execution_id": "xkept", "attempt": 1, "at": 40.0, "state": "failed",
            "reason": "raised", "digest": "d" * 64, "detail": "Refused",
        })  # fmt: skip
        _insert(conn, "audit_events", {
            "session_id": "s", "tool": "pay", "stage": "dispatched", "status": "dispatched",
            "reason": "allowed by item", "tool_call_id": "open", "execution_id": "xopen",
            "attempt": 1,
        })  # fmt: skip
        for key in ("schema_version", "protocol_version"):
            conn.execute("INSERT INTO durable_meta VALUES (?, '1')", (key,))


def content(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return every table's rows, without what schema 2 added."""
    new = {name: ADDED.get(name, {}).keys() for name in TABLES}
    return {
        name: [{k: v for k, v in row.items() if k not in new[name]} for row in table(path, name)]
        for name in TABLES
    }


def layout(path: Path) -> dict[str, Any]:
    """Return tables with what is said of each of their columns, and indexes."""
    with plain(path) as conn:
        names = [r[0] for r in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        made: dict[str, Any] = {
            name: sorted(tuple(c)[1:] for c in conn.execute(f"PRAGMA table_info({name})"))
            for name in names
        }
        indexes = "SELECT name, sql FROM sqlite_master WHERE type = 'index'"
        return made | {"indexes": {tuple(r) for r in conn.execute(indexes)}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    release_1(folder / "coworker.db")
    (folder / "coworker.db").chmod(0o600)
    return folder / "coworker.db"


def by_writer(path: Path) -> None:
    ledger = Ledger(path)
    ledger.run(verbs.acknowledge, "none", 1, 1.0)
    ledger.close()


def by_reader(path: Path) -> None:
    ledger = Ledger(path)
    assert len(ledger.fetch(rows.all_rows())) == len(EXECUTIONS)
    ledger.close()


async def _watch(path: Path) -> int:
    ledger = Ledger(path)
    async with ledger.watching() as watch:
        found = await watch.fetch(rows.all_rows())
    ledger.close()
    return len(found)


WAYS = [by_writer, by_reader]


@pytest.mark.parametrize("way", WAYS)
def test_c26_release_1_is_brought_up_and_loses_nothing(
    path: Path, tmp_path: Path, way: Callable[[Path], None]
) -> None:
    before = content(path)
    assert len(before["tool_executions"]) == len(EXECUTIONS)
    way(path)
    assert content(path) == before
    for name, added in ADDED.items():
        assert all({k: row[k] for k in added} == added for row in table(path, name))
    versions = {r["key"]: r["value"] for r in table(path, "durable_meta")}
    assert versions["schema_version"] == str(SCHEMA_VERSION)
    fresh = tmp_path / "fresh.db"
    _db.open_writer(fresh).close()
    assert layout(path) == layout(fresh)


async def test_c26_an_asynchronous_reader_brings_it_up_as_well(path: Path) -> None:
    before = content(path)
    assert await _watch(path) == len(EXECUTIONS)
    assert content(path) == before


def test_c26_two_readers_and_a_writer_bring_it_up_once(path: Path) -> None:
    before = content(path)
    ledgers = [Ledger(path) for _ in range(3)]
    future = ledgers[0].submit(verbs.acknowledge, "none", 1, 1.0)
    for ledger in ledgers[1:]:
        assert len(ledger.fetch(rows.all_rows())) == len(EXECUTIONS)
    future.result()
    for ledger in ledgers:
        ledger.close()
    assert content(path) == before


def test_c26_what_release_1_knew_is_known_afterwards(path: Path) -> None:
    ledger = Ledger(path)
    found = {r.key: r for r in ledger.fetch(rows.all_rows())}
    assert {k: r.state.value for k, r in found.items() if isinstance(r.state, State)} == {
        (row["execution_id"], row["attempt"]): row["state"] for row in EXECUTIONS
    }
    assert ledger.first(rows.stored_snapshot("xdone", 1)) == Snapshot(
        SHOT.text, SHOT.display, lossy=True
    )
    assert (found["xsaid", 1].decision, found["xsaid", 1].superseded) == (Decision.RETRY, True)
    assert [e["detail"] for e in ledger.fetch(rows.evidence("xkept"))] == ["Refused"]
    assert [c.execution_id for c in ledger.fetch(rows.conflicts())] == ["xkept"]
    session = ledger.first(rows.session("s"))
    assert session is not None
    assert (session.covered_ordinal, session.audit_mark) == (7, 3)
    ledger.close()


def test_g3_c26_what_release_1_left_unknown_stays_a_persons_to_decide(path: Path) -> None:
    """Nothing was declared then, so no policy of today settles it."""
    ledger = Ledger(path)
    row = ledger.first(rows.row("xopen", 1))
    assert row is not None
    assert parse(row.policy) == MANUAL
    today = idempotent(key_valid=1e9)
    tool = ToolIdentity(name="pay", version="3", schema_digest="5" * 16)
    assert standing([row], Descriptor(tool, today), 21.0) is Standing.PERSON
    what = Intent(
        session_id="s", incarnation="life", tool_call_id="open", execution_id="xopen", tool=tool,
        intent_digest=row.intent_digest, policy=str(today),
    )  # fmt: skip
    with pytest.raises(Refused):
        ledger.run(verbs.retry, what, ME, 21.0, BY_POLICY)
    ledger.run(verbs.decide, "xopen", 1, Decision.RETRY, "me", "", 22.0)
    assert ledger.run(verbs.retry, what, ME, 23.0) == 2
    assert ledger.run(finding.rebind, "xrun", 1, ME, "owner-2")
    ledger.close()


KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from openworker_durable import _db
left = int(sys.argv[3])
def watch(sql):
    global left
    if sql.startswith(sys.argv[2]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.set_trace_callback(watch)
_db.migrate(conn, Path(sys.argv[1]))
"""


@pytest.mark.crash
@needs.sigkill
@pytest.mark.parametrize(
    ("statement", "nth"),
    [*[("ALTER TABLE", nth) for nth in range(1, 7)], ("INSERT OR REPLACE", 1), ("COMMIT", 1)],
)
def test_c26_killed_while_it_is_brought_up_the_next_start_finishes(
    path: Path, statement: str, nth: int
) -> None:
    before, was = content(path), layout(path)
    argv = [sys.executable, "-c", KILLED, str(path), statement, str(nth)]
    assert subprocess.run(argv, check=False, timeout=60).returncode == -signal.SIGKILL
    assert layout(path) == was
    by_reader(path)
    assert content(path) == before


# -- the command line, which leaves no trace
def test_c26_the_commands_read_release_1_and_leave_it_as_it_is(path: Path) -> None:
    before = files(path.parent)
    found = run_json("list", "--state", path.parent)["executions"]
    assert len(found) == 6
    shown = run_json("show", "xkept", "--state", path.parent)
    assert [e["state"] for e in shown["late_evidence"]] == ["failed"]
    assert run_json("history", "xopen", "--state", path.parent)["events"]
    doctor = run_json("doctor", "--state", path.parent)
    assert doctor["ledger"]["schema_version"] == 1
    assert doctor["ledger"]["error"] is None
    for command in (["list"], ["show", "xsaid"], ["history", "xopen"], ["doctor"]):
        assert run(*command, "--state", path.parent).exit_code == 0
    assert files(path.parent) == before


@needs.file_modes
def test_c26_also_in_a_folder_that_cannot_be_written_to(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(path.parent, copy)
    before = run_json("list", "--state", path.parent)
    copy.chmod(0o500)
    try:
        assert run_json("list", "--state", copy) == before
    finally:
        copy.chmod(0o700)
