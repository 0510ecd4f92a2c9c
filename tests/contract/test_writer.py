"""The one writer: batches, cancellation, what rides along, and who cannot undo it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import _db, rows, verbs
from openworker_durable.errors import AlreadyRecorded, LedgerUnavailable, Refused
from openworker_durable.ledger import Ledger
from openworker_durable.states import State
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

D = State.DISPATCHED


def broken(conn: sqlite3.Connection) -> None:
    """A verb with a bug: it writes, then fails with what is no error of the record's."""
    verbs.note(conn, "s", "t", "broken", "status", "reason")
    raise ValueError("a bug")


def ask(ledger: Ledger, call: str) -> Future[int]:
    return ledger.submit(verbs.dispatch, intent(call), item(), ME, 1.0)


def test_group_commit_of_many_moves_in_one_transaction(ledger: Ledger) -> None:
    started(ledger, "warm")
    before = ledger.commits
    with locked(ledger.path):
        asked = [ask(ledger, f"c{i}") for i in range(20)]
        assert not any(f.done() for f in asked)
    assert [f.result(10) for f in asked] == [1] * 20
    assert ledger.commits - before <= 2, "one that waited for the lock, one for all behind it"
    assert len(table(ledger.path, "tool_executions")) == 21


def test_a_refused_move_in_a_batch_does_not_undo_the_others(ledger: Ledger) -> None:
    there = started(ledger, "there")
    with locked(ledger.path):
        asked = [ask(ledger, name) for name in ("c1", "c2", "there", "c3")]
    assert [f.exception(10) for f in asked[:2]] == [None, None]
    assert isinstance(asked[2].exception(10), AlreadyRecorded)
    assert asked[3].exception(10) is None
    assert len(table(ledger.path, "tool_executions")) == 4
    assert len(audits(ledger.path)) == 4
    assert row_of(ledger, there).state is D


def test_what_a_refused_move_wrote_before_it_was_refused_is_undone(ledger: Ledger) -> None:
    def writes_then_refuses(conn: sqlite3.Connection) -> None:
        verbs.note(conn, "s", "t", "half", "status", "reason")
        raise Refused("x", 1, "something", "something else")

    with pytest.raises(Refused):
        ledger.run(writes_then_refuses)
    started(ledger, "c1")
    assert [x["stage"] for x in audits(ledger.path)] == ["dispatched"]


def test_trap_7_a_move_that_was_asked_for_cannot_be_cancelled(ledger: Ledger) -> None:
    started(ledger, "warm")
    with locked(ledger.path):
        asked = [ask(ledger, f"c{i}") for i in range(3)]
        assert [f.cancel() for f in asked] == [False] * 3
    assert [f.result(10) for f in asked] == [1] * 3


def test_a_verb_that_breaks_in_a_batch_does_not_undo_the_others(ledger: Ledger) -> None:
    """Whatever is wrong with one caller's move is that caller's alone."""
    started(ledger, "warm")
    with locked(ledger.path):
        waits = ask(ledger, "waits")
        wrong = ledger.submit(broken)
        good = ask(ledger, "good")
    assert isinstance(wrong.exception(10), ValueError)
    assert waits.exception(10) is None
    assert good.exception(10) is None
    assert {r["tool_call_id"] for r in table(ledger.path, "tool_executions")} == {
        "warm", "waits", "good",
    }  # fmt: skip


def test_g7_a_deferred_verb_that_breaks_does_not_block_every_later_move(ledger: Ledger) -> None:
    started(ledger, "warm")
    ledger.defer(broken)
    with contextlib.suppress(ValueError):
        started(ledger, "c1")
    started(ledger, "c2")
    assert row_of(ledger, intent("c2")).state is D


def test_g7_a_deferred_note_about_a_tool_with_an_odd_name_blocks_nothing(ledger: Ledger) -> None:
    """A name that a model made up may hold a lone surrogate, which SQLite cannot bind as text."""
    ledger.defer(verbs.note, "s", "\ud800", "approval_void", "void", "nothing has run")
    started(ledger, "c1")
    assert row_of(ledger, intent("c1")).state is D


@pytest.mark.parametrize("where", ["preview", "session", "tool"])
def test_g7_lone_surrogates_in_what_is_recorded_never_break_a_dispatch(
    ledger: Ledger, where: str
) -> None:
    more: Any = {where: "x\ud800y"}
    what = intent("c1", **more)
    assert ledger.run(verbs.dispatch, what, item(), ME, 1.0) == 1
    assert len(table(ledger.path, "tool_executions")) == 1


async def test_trap_7_a_cancelled_await_is_no_cancelled_write(ledger: Ledger) -> None:
    started(ledger, "warm")
    with locked(ledger.path):
        task = asyncio.create_task(ledger.ask(verbs.dispatch, intent("c1"), item(), ME, 1.0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await ledger.ask(verbs.note, "s", "t", "stage", "status", "behind it in the queue")
    assert row_of(ledger, intent("c1")).state is D
    with pytest.raises(AlreadyRecorded):
        await ledger.ask(verbs.dispatch, intent("c1"), item(), ME, 2.0)


async def test_ask_raises_as_run_does(ledger: Ledger) -> None:
    await ledger.ask(verbs.dispatch, intent(), item(), ME, 1.0)
    with pytest.raises(AlreadyRecorded):
        await ledger.ask(verbs.dispatch, intent(), item(), ME, 1.0)


def test_deferred_rides_on_the_next_commit(ledger: Ledger) -> None:
    what = in_state(ledger, State.SUCCEEDED)
    before = ledger.commits
    ledger.defer(verbs.acknowledge, what.execution_id, 1, 9.0)
    assert row_of(ledger, what).acknowledged_at is None
    started(ledger, "c2")
    assert row_of(ledger, what).acknowledged_at == 9.0
    assert ledger.commits == before + 1


def test_deferred_is_written_on_close(ledger: Ledger, path: Path) -> None:
    what = in_state(ledger, State.SUCCEEDED)
    ledger.defer(verbs.acknowledge, what.execution_id, 1, 9.0)
    ledger.close()
    ledger.close()
    assert table(path, "tool_executions")[0]["acknowledged_at"] == 9.0
    with pytest.raises(LedgerUnavailable, match="closed"):
        ledger.run(verbs.note, "s", "t", "stage", "status", "reason")


def test_deferred_alone_is_written_on_close(path: Path) -> None:
    ledger = Ledger(path)
    ledger.defer(verbs.note, "s", "t", "stage", "status", "reason")
    assert ledger.commits == 0
    ledger.close()
    assert [x["stage"] for x in audits(path)] == ["stage"]


def test_deferred_survives_a_failed_commit(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    what = in_state(ledger, State.SUCCEEDED)
    ledger.defer(verbs.acknowledge, what.execution_id, 1, 9.0)
    monkeypatch.setattr(_db, "BUSY_SECONDS", 0.01)
    ledger._writer._drop_connection()
    with locked(ledger.path), pytest.raises(LedgerUnavailable):
        started(ledger, "c2")
    assert row_of(ledger, what).acknowledged_at is None
    started(ledger, "c2")
    assert row_of(ledger, what).acknowledged_at == 9.0


def test_pragmas_read_back(ledger: Ledger) -> None:
    started(ledger)
    writer = ledger._writer._conn
    assert writer is not None
    assert writer.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert writer.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert writer.execute("PRAGMA busy_timeout").fetchone()[0] == int(_db.BUSY_SECONDS * 1000)
    reader = ledger._reader()._conn
    assert reader is not None
    assert reader.execute("PRAGMA synchronous").fetchone()[0] == 2
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("DELETE FROM tool_executions")


def test_reads_do_not_wait_for_a_writer(ledger: Ledger) -> None:
    what = started(ledger)
    with plain(ledger.path) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE tool_executions SET preview = 'not committed'")
        assert row_of(ledger, what).preview == "amount: 10"
        other.execute("ROLLBACK")


async def test_watch_sees_the_commits_of_others(ledger: Ledger) -> None:
    what = started(ledger)
    async with ledger.watching() as watch:
        assert await watch.changed()
        assert not await watch.changed()
        with plain(ledger.path) as other:
            other.execute("UPDATE tool_executions SET preview = 'theirs'")
        assert await watch.changed()
        assert [r.execution_id for r in await watch.fetch(rows.open_all())] == [what.execution_id]


def test_c28_trap_6_no_row_is_lost_beside_audit_writes_that_roll_back(ledger: Ledger) -> None:
    started(ledger, "warm")
    stop, faults = threading.Event(), [0]

    def fail_and_roll_back() -> None:
        with plain(ledger.path, timeout=30) as conn:
            while not stop.is_set():
                with contextlib.suppress(sqlite3.OperationalError):
                    conn.execute("BEGIN IMMEDIATE")
                    conn.execute("INSERT INTO audit_events (tool) VALUES ('theirs')")
                    with contextlib.suppress(sqlite3.OperationalError):
                        conn.execute("INSERT INTO audit_events (no_such_column) VALUES (1)")
                    conn.execute("ROLLBACK")
                    faults[0] += 1

    def work(n: int) -> None:
        for i in range(8):
            in_state(ledger, State.SUCCEEDED, f"c{n}-{i}")

    others = [threading.Thread(target=fail_and_roll_back) for _ in range(2)]
    workers = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in [*others, *workers]:
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    for thread in others:
        thread.join()
    found = table(ledger.path, "tool_executions")
    assert len(found) == 16 * 8 + 1
    assert sum(row["state"] == "succeeded" for row in found) == 16 * 8
    assert len(audits(ledger.path)) == 2 * 16 * 8 + 1
    assert faults[0] > 0
