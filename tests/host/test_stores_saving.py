"""Saving on both hosts: in flat time, and through a database that others hold locked."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openworker_durable import _db, verbs
from openworker_durable.hosts import late, threads
from openworker_durable.hosts.late import LateConnection
from openworker_durable.hosts.reference.providers import AssistantTurn
from openworker_durable.ledger import Ledger
from tests.contract.kit import audits, locked
from tests.host.harness import Lab, call, reply
from tests.host.stores_kit import SESSION, Stores, stores
from tests.waiting import until

__all__ = ["stores"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Note every thread that is read as a whole."""
    seen: list[Path] = []
    real_text = Path.read_text

    def read_text(path: Path, *args: Any, **kwargs: Any) -> str:
        if path.suffix == ".jsonl":
            seen.append(path)
        return real_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_text)
    return seen


# -- flat
def test_a_save_does_not_read_the_thread(stores: Stores, reads: list[Path]) -> None:
    stores.save("a")
    reads.clear()
    stores.save("a", "b")
    stores.save("a", "b", "c")
    assert reads == []
    assert stores.texts() == ["a", "b", "c"]
    assert stores.index() == 3


def test_what_another_process_wrote_is_counted(stores: Stores, reads: list[Path]) -> None:
    stores.save("a")
    with stores.thread.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"role": "user", "content": "theirs"}) + "\n")
    reads.clear()
    stores.save("a", "theirs", "b")
    assert reads
    assert stores.texts() == ["a", "theirs", "b"]


def test_a_shorter_thread_is_written_anew_and_grows_from_there(stores: Stores) -> None:
    stores.save("a", "b", "c")
    record = stores.record("x")
    stores.manager._engines[SESSION] = SimpleNamespace(messages=record.messages)
    stores.manager.session_store.save(record)
    assert stores.texts() == ["x"]
    stores.save("x", "y")
    assert stores.texts() == ["x", "y"]


def test_a_deleted_thread_begins_anew(stores: Stores) -> None:
    stores.save("a", "b")
    stores.thread.unlink()
    assert threads.known_count(stores.manager.session_store, SESSION) is None
    stores.save("n")
    assert stores.texts() == ["n"]


def test_after_a_save_that_failed_half_way_all_is_counted(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.save("a")
    store = stores.manager.session_store
    with monkeypatch.context() as patch:

        def broken(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(type(store), "_append", broken)
        with pytest.raises(OSError, match="space"):
            stores.save("a", "b")
    assert threads.known_count(store, SESSION) is None
    stores.save("a", "b")
    assert stores.texts() == ["a", "b"]


# -- a locked database
async def test_c15_a_locked_database_delays_the_index_not_the_thread(stores: Stores) -> None:
    stores.open_ledger()
    stores.save("a", title="first")
    with locked(stores.db):
        stores.save("a", "b")
        stores.save("a", "b", "c")
        assert stores.texts() == ["a", "b", "c"]
        assert stores.index() == 1
        await asyncio.sleep(0)
    await until(lambda: stores.index() == 3, "the index is written")
    assert stores.manager.session_store.load(SESSION).title == "first"


async def test_c15_a_turn_goes_on_while_the_database_is_locked(stores: Stores) -> None:
    stores.open_ledger()
    stores.save("a")
    with locked(stores.db):
        task = asyncio.ensure_future(stores.manager.deliver_to_session(SESSION, "and?"))
        await until(task.done, "the turn ends under the lock")
        await task
        assert stores.texts()[-2:] in (["and?", "well"], ["and?", "done"])
        assert stores.index() == 1
    await until(lambda: stores.index() == len(stores.texts()), "the index is written")


def event(number: int, **more: Any) -> dict[str, Any]:
    return {"session_id": SESSION, "tool": "send", "stage": f"s{number}", **more}


async def test_c15_a_refused_call_of_a_new_session_keeps_the_event_loop_free(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_db, "BUSY_SECONDS", 0.2)
    script = (reply(call("send", "k1")), AssistantTurn(text="no"), reply(call("send", "k2")))
    world = lab.world(*script)
    world.runtime.ledger.run(verbs.open_session, "other", "fresh")
    blocking: list[str] = []
    real, loop_thread = Ledger.run, threading.get_ident()

    def run(ledger: Ledger, verb: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == loop_thread:
            blocking.append(verb.__name__)
        return real(ledger, verb, *args, **kwargs)

    with locked(world.folder / "coworker.db"):
        monkeypatch.setattr(Ledger, "run", run)
        await world.say("go", "send")
        assert "not executed" in world.answer("k1")
    assert blocking == []
    assert lab.outside.count("send") == 0
    await world.say("again", "send")
    assert lab.outside.count("send") == 1
    world.valid()


class Held:
    """Lets the background thread of a store try to write only when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[int] = []
        self.ended: list[bool] = []
        self.turns = threading.Semaphore(0)
        real = late.Waiting._write

        def write(waiting: late.Waiting, transactions: list[list[late.Write]]) -> bool:
            self.begun.append(len(transactions))
            self.turns.acquire(timeout=10)
            self.ended.append(real(waiting, transactions))
            return self.ended[-1]

        monkeypatch.setattr(late.Waiting, "_write", write)

    async def one_try(self) -> None:
        """Let it try once, and wait until it is about to try again."""
        count = len(self.begun)
        self.turns.release()
        await until(lambda: len(self.begun) > count, "it is about to try again")


class Then(datetime):
    """A clock that stands still long ago."""

    @classmethod
    def now(cls, tz: Any = None) -> Then:
        return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)


async def test_c15_audit_rows_come_late_in_order_with_their_columns(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late, "datetime", Then)
    monkeypatch.setattr(late, "LATE_BUSY_MS", 1)
    held = Held(monkeypatch)
    stores.open_ledger()
    audit = stores.manager.audit_store
    before = len(audits(stores.db))
    with locked(stores.db):
        for n in range(40):
            ids = {"execution_id": f"x{n}", "attempt": n, "tool_call_id": f"c{n}"}
            audit.append(event(n, durable=ids) if n % 2 else event(n))
            await until(lambda: held.begun, "the thread tries the first")
        assert len(audits(stores.db)) == before
        await held.one_try()
        await held.one_try()
    assert (held.begun, held.ended) == ([1, 40, 40], [False, False])
    audit.append(event(40))
    held.turns.release(10)
    await until(lambda: len(audits(stores.db)) == before + 41, "all rows are written")
    found = audits(stores.db)[before:]
    assert [r["stage"] for r in found] == [f"s{n}" for n in range(41)]
    columns = [(r["tool_call_id"], r["execution_id"], r["attempt"]) for r in found[:40]]
    assert columns == [(f"c{n}", f"x{n}", n) if n % 2 else (None, None, None) for n in range(40)]
    assert {r["timestamp"] for r in found[:40]} == {"2026-01-02 03:04:05"}, "when it was asked for"


def test_a_row_is_stamped_with_the_time_it_was_asked_for(stores: Stores) -> None:
    audit = stores.manager.audit_store
    with late.telling({"timestamp": "2026-01-02 03:04:05"}):
        audit._conn.execute("INSERT INTO audit_events (tool) VALUES ('t')")
        audit._conn.commit()
    row = audits(stores.db)[-1]
    assert (row["tool"], row["timestamp"], row["execution_id"]) == (
        "t",
        "2026-01-02 03:04:05",
        None,
    )


def test_the_audit_columns_come_with_the_hosts_own_commit(stores: Stores) -> None:
    audit = stores.manager.audit_store
    begun: list[str] = []
    audit._conn.conn.set_trace_callback(begun.append)
    audit.append(event(1, durable={"execution_id": "x1", "attempt": 1, "tool_call_id": "c1"}))
    audit._conn.conn.set_trace_callback(None)
    assert sum(s.startswith("COMMIT") for s in begun) == 1
    row = audits(stores.db)[-1]
    assert (row["stage"], row["execution_id"], row["attempt"]) == ("s1", "x1", 1)


def test_nobody_waits_long_and_what_waits_is_not_tried_again_on_the_loop(stores: Stores) -> None:
    stores.open_ledger()
    conn = stores.manager.audit_store._conn
    stores.manager.audit_store.append(event(0))
    assert conn.execute("PRAGMA busy_timeout").fetchone()[0] == late.BUSY_MS <= 50
    with locked(stores.db):
        stores.manager.audit_store.append(event(1))
        tried: list[str] = []
        conn.conn.set_trace_callback(tried.append)
        stores.manager.audit_store.append(event(2))
        conn.conn.set_trace_callback(None)
    assert tried == []


def test_only_the_last_state_of_a_row_waits(stores: Stores) -> None:
    stores.open_ledger()
    stores.save("a")
    waiting = stores.manager.session_store._conn.waiting
    with locked(stores.db):
        for n in range(30):
            stores.save(*"abcdefghij"[: n % 10 + 1])
        assert len(waiting._queue) + len(waiting._taken) <= 4


def test_what_waits_is_bounded(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "MOST", 5)
    stores.open_ledger()
    waiting = stores.manager.audit_store._conn.waiting
    with locked(stores.db):
        for n in range(late.BATCH + 40):
            stores.manager.audit_store.append(event(n))
        assert len(waiting._queue) <= 5


def test_a_closed_store_has_written_what_waited(stores: Stores) -> None:
    stores.open_ledger()
    before = len(audits(stores.db))
    with locked(stores.db):
        stores.manager.audit_store.append(event(1))
    stores.manager.audit_store.close()
    assert len(audits(stores.db)) == before + 1


def test_another_error_than_a_lock_is_raised_and_writes_nothing_later(stores: Stores) -> None:
    conn = stores.manager.audit_store._conn
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        conn.execute("INSERT INTO nowhere VALUES (1)")
    conn.rollback()
    stores.manager.audit_store.append(event(1))
    assert audits(stores.db)[-1]["stage"] == "s1"


@pytest.mark.parametrize("bad", [-1, "\ud83d", 2**70], ids=["refused", "surrogate", "too large"])
def test_one_delayed_write_that_cannot_succeed_does_not_hold_up_the_others(
    tmp_path: Path, bad: object
) -> None:
    path = tmp_path / "x.db"
    host = sqlite3.connect(path, check_same_thread=False)
    host.execute("CREATE TABLE t (n INTEGER CHECK (n > 0))")
    host.commit()
    conn = LateConnection(host, path)
    with locked(path):
        for n in (1, bad, 2):
            conn.execute("INSERT INTO t VALUES (?)", (n,))
            conn.commit()
    conn.waiting.close()
    assert conn.execute("SELECT n FROM t").fetchall() == [(1,), (2,)]
    conn.close()


def test_commits_of_the_stores_ride_on_the_ledgers_sync_in_wal_mode_only(stores: Stores) -> None:
    conn = stores.manager.audit_store._conn
    stores.manager.audit_store.append(event(1))
    assert conn.execute("PRAGMA synchronous").fetchone()[0] == 2
    stores.open_ledger()
    for n in (2, 3):  # the first one is how the connection learns that the mode has changed
        stores.manager.audit_store.append(event(n))
    assert conn.execute("PRAGMA synchronous").fetchone()[0] == 1


def test_detached_the_stores_have_their_own_connections_back(stores: Stores) -> None:
    from openworker_durable.hosts.attach import attached

    stores.open_ledger()
    kept = [stores.manager.audit_store, stores.manager.session_store]
    for store in kept:
        assert isinstance(store._conn, LateConnection)
    stores.save("a")
    attachment = attached(stores.names)
    assert attachment is not None
    attachment.detach()
    for store in kept:
        assert type(store._conn) is sqlite3.Connection
        assert store._conn.execute("PRAGMA busy_timeout").fetchone()[0] == 5000
        assert store._conn.execute("PRAGMA synchronous").fetchone()[0] == 2
