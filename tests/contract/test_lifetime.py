"""Coverage, acknowledgement, deletion and retention: what stays, and for how long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import rows, verbs
from openworker_durable.errors import Refused
from openworker_durable.ledger import Ledger
from openworker_durable.snapshot import encode
from openworker_durable.states import Decision, Reason, State
from tests.contract.kit import (
    ME,
    audits,
    decided,
    in_state,
    intent,
    plain,
    row_of,
    started,
    succeeded,
)

FAR = 1e9


def open_ids(ledger: Ledger) -> set[tuple[str, int]]:
    found = {r.key for r in ledger.fetch(rows.open_all())}
    assert found == {r.key for r in ledger.fetch(rows.open_in_session("s"))}
    return found


# -- acknowledgement
@pytest.mark.parametrize("state", [State.DISPATCHED, State.UNKNOWN])
def test_acknowledge_never_closes_what_is_open(ledger: Ledger, state: State) -> None:
    what = in_state(ledger, state)
    assert ledger.run(verbs.acknowledge, what.execution_id, 1, 9.0) is False
    assert open_ids(ledger) == {(what.execution_id, 1)}


def test_acknowledge_closes_known_and_decided_rows_once(ledger: Ledger) -> None:
    for what in (in_state(ledger, State.SUCCEEDED, "c1"), in_state(ledger, State.FAILED, "c2"),
                 decided(ledger, Decision.HAPPENED, "c3"), decided(ledger, Decision.DROP, "c4"),
                 decided(ledger, Decision.RETRY, "c5")):  # fmt: skip
        assert (what.execution_id, 1) in open_ids(ledger)
        assert ledger.run(verbs.acknowledge, what.execution_id, 1, 9.0) is True
        assert ledger.run(verbs.acknowledge, what.execution_id, 1, 10.0) is False
        assert row_of(ledger, what).acknowledged_at == 9.0
    assert open_ids(ledger) == set()


# -- coverage
def test_g4_cover_is_of_one_reply_and_keeps_the_incarnation(ledger: Ledger) -> None:
    assert ledger.first(rows.session("s")) is None
    first = ledger.run(verbs.cover, "s", "life", "d1", 3, 1.0)
    again = ledger.run(verbs.cover, "s", "other", "d2", 5, 2.0)
    assert (first.incarnation, again.incarnation) == ("life", "life")
    assert (again.covered_digest, again.covered_ordinal, again.covered_at) == ("d2", 5, 2.0)
    assert ledger.first(rows.session("s")) == again
    assert ledger.run(verbs.open_session, "s", "third") == again


def test_g4_cover_marks_where_the_hosts_audit_stood(ledger: Ledger) -> None:
    ledger.run(verbs.note, "s", "pay", "x", "y", "z")
    covered = ledger.run(verbs.cover, "s", "life", "d", 1, 1.0)
    assert covered.audit_mark == audits(ledger.path)[-1]["id"]
    query = rows.host_started("s", covered.audit_mark)
    assert ledger.fetch(query) == []
    with plain(ledger.path) as conn:
        conn.execute(
            "INSERT INTO audit_events (session_id, tool, stage) VALUES ('s', 'pay', 'started'),"
            "('s', 'read', 'finished'), ('t', 'send', 'started')"
        )
    assert ledger.fetch(query) == ["pay"]


def test_rule_1_a_session_of_a_newer_protocol_is_not_covered(ledger: Ledger) -> None:
    ledger.run(verbs.open_session, "s", "life")
    with plain(ledger.path) as conn:
        conn.execute("UPDATE session_protocol SET protocol_version = 99")
    with pytest.raises(Refused, match="99"):
        ledger.run(verbs.cover, "s", "x", "d", 1, 1.0)


# -- deletion
def test_c30_tombstone_keeps_what_is_to_settle_and_its_ids(ledger: Ledger) -> None:
    ledger.run(verbs.cover, "s", "life", "d", 1, 1.0)
    done, lost = in_state(ledger, State.SUCCEEDED, "c1"), in_state(ledger, State.UNKNOWN, "c2")
    runs = started(ledger, "c3")
    assert ledger.run(verbs.tombstone, "s", 5.0) == 2
    assert open_ids(ledger) == {(lost.execution_id, 1), (runs.execution_id, 1)}
    assert row_of(ledger, done).acknowledged_at == 5.0
    assert ledger.first(rows.session("s")) is None
    assert set(ledger.fetch(rows.call_ids("s"))) == {"c1", "c2", "c3"}
    assert ledger.first(rows.any_of_call("s", "c1")) == done.execution_id
    ledger.run(verbs.decide, lost.execution_id, 1, Decision.DROP, "me", "", 6.0)
    assert row_of(ledger, lost).state is State.FAILED
    ledger.run(verbs.finish, runs.execution_id, 1, ME, succeeded(), 7.0)
    assert row_of(ledger, runs).state is State.SUCCEEDED
    deleted = [x for x in audits(ledger.path) if x["stage"] == "session_deleted"]
    assert [(x["session_id"], x["reason"]) for x in deleted] == [("s", "2 to settle")]


def test_c30_a_session_id_used_again_begins_another_life(ledger: Ledger) -> None:
    ledger.run(verbs.cover, "s", "life", "d", 1, 1.0)
    ledger.run(verbs.tombstone, "s", 2.0)
    assert ledger.run(verbs.cover, "s", "life2", "d", 1, 3.0).incarnation == "life2"
    assert ledger.run(verbs.tombstone, "never", 4.0) == 0


# -- retention
def test_expire_never_drops_what_is_open(ledger: Ledger) -> None:
    kept = {
        (w.execution_id, 1)
        for w in (
            started(ledger, "c1"), in_state(ledger, State.UNKNOWN, "c2"),
            in_state(ledger, State.SUCCEEDED, "c3"), decided(ledger, Decision.DROP, "c4"),
            decided(ledger, Decision.RETRY, "c5"),
        )
    }  # fmt: skip
    assert ledger.run(verbs.expire, FAR, FAR) == (0, 0)
    assert open_ids(ledger) == kept
    shot = ledger.first(rows.stored_snapshot(intent("c3").execution_id, 1))
    assert shot is not None


def test_trap_10_expire_keeps_a_superseded_row_while_its_successor_is_open(
    ledger: Ledger,
) -> None:
    what = decided(ledger, Decision.RETRY)
    ledger.run(verbs.acknowledge, what.execution_id, 1, 4.0)
    ledger.run(verbs.retry, what, ME, 5.0)
    assert ledger.run(verbs.expire, FAR, FAR) == (0, 0)
    ledger.run(verbs.finish, what.execution_id, 2, ME, succeeded(), 6.0)
    assert ledger.run(verbs.expire, FAR, FAR) == (0, 0)
    ledger.run(verbs.acknowledge, what.execution_id, 2, 7.0)
    assert ledger.run(verbs.expire, 0, 7.0) == (0, 0)
    assert ledger.run(verbs.expire, FAR, 7.5) == (1, 2)
    assert ledger.fetch(rows.attempts(what.execution_id)) == []


def test_expire_drops_snapshots_before_rows_and_only_older_than_asked(ledger: Ledger) -> None:
    what = started(ledger)
    shot = encode({"ok": 1, "_display": {"k": 1}})
    ledger.run(
        verbs.finish, what.execution_id, 1, ME, succeeded().model_copy(update={"snapshot": shot}),
        2.0,
    )  # fmt: skip
    ledger.run(verbs.acknowledge, what.execution_id, 1, 10.0)
    assert ledger.run(verbs.expire, 10.0, 10.0) == (0, 0), "the instant itself is not older"
    assert ledger.run(verbs.expire, 10.1, 0.0) == (1, 0)
    assert ledger.fetch(rows.stored_snapshot(what.execution_id, 1)) == [None]
    row = row_of(ledger, what)
    assert row.snapshot_digest == shot.digest
    assert ledger.run(verbs.expire, 10.1, 10.1) == (0, 1)


# -- reading
PLANS: dict[str, tuple[rows.Query[Any], str]] = {
    "open_all": (rows.open_all(), "tool_executions_open"),
    "open_in_session": (rows.open_in_session("s"), "tool_executions_open"),
    "undecided_tool": (rows.undecided_tool("s", "pay"), "tool_executions_open"),
    "any_of_call": (rows.any_of_call("s", "c"), "tool_executions_call"),
    "call_ids": (rows.call_ids("s"), "tool_executions_call"),
    "history": (rows.history("x"), "audit_events_execution"),
    "row": (rows.row("x", 1), "PRIMARY KEY"),
    "attempts": (rows.attempts("x"), "PRIMARY KEY"),
}


@pytest.mark.parametrize("name", PLANS)
def test_g11_queries_use_their_indexes_and_scan_no_table(ledger: Ledger, name: str) -> None:
    for i in range(30):
        in_state(ledger, State.SUCCEEDED, f"c{i}")
    query, index = PLANS[name]
    with plain(ledger.path) as conn:
        plan = [str(r[3]) for r in conn.execute(f"EXPLAIN QUERY PLAN {query.sql}", query.params)]
    assert any(index in line for line in plan), plan
    assert not [x for x in plan if x.startswith("SCAN") and f"USING INDEX {index}" not in x], plan
    assert name == "open_all" or not [x for x in plan if x.startswith("SCAN")]


def test_undecided_tool_is_the_oldest_unknown_undecided_row(ledger: Ledger) -> None:
    decided(ledger, Decision.RETRY, "c0")
    in_state(ledger, State.FAILED, "c1")
    assert ledger.first(rows.undecided_tool("s", "pay")) is None
    in_state(ledger, State.UNKNOWN, "c2")
    ledger.run(verbs.vouch, intent("c3"), Reason.LEGACY, "", ME, 0.5)
    found = ledger.first(rows.undecided_tool("s", "pay"))
    assert found is not None
    assert found.tool_call_id == "c3"
    assert ledger.first(rows.undecided_tool("s", "send")) is None
    assert ledger.first(rows.undecided_tool("t", "pay")) is None


def test_reads_of_a_folder_without_a_record_find_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "none.db")
    assert ledger.first(rows.session("s")) is None
    assert ledger.known(rows.open_all()) == []
    assert not (tmp_path / "none.db").exists(), "reading makes no file"
    ledger.close()


# -- C11: stored and read back
@pytest.mark.parametrize(
    "result",
    ["a\x00b\ud800\udfffc", {"x": float("nan")}, b"\xff", {1: "\ud800"}, "x" * 20_000_000, None],
    ids=["text", "nan", "bytes", "keys", "20 MB", "none"],
)
def test_c11_a_stored_result_is_read_back_unchanged(ledger: Ledger, result: object) -> None:
    what = started(ledger)
    shot = encode(result)
    outcome = succeeded().model_copy(update={"snapshot": shot})
    ledger.run(verbs.finish, what.execution_id, 1, ME, outcome, 2.0)
    stored = ledger.first(rows.stored_snapshot(what.execution_id, 1))
    assert stored is not None
    assert (stored.text, stored.display, stored.lossy) == (shot.text, shot.display, shot.lossy)
    assert stored.digest == row_of(ledger, what).snapshot_digest
    with plain(ledger.path) as conn:
        kind = conn.execute("SELECT typeof(snapshot) FROM tool_executions").fetchone()[0]
    assert kind == "blob"


CLOSED_WHILE_READ = """
import sys, threading
from pathlib import Path
from openworker_durable import rows, verbs
from openworker_durable.errors import LedgerUnavailable
from openworker_durable.ledger import Ledger

ended = []

def read(ledger, began):
    began.set()
    try:
        while True:
            ledger.known(rows.all_rows())
    except LedgerUnavailable:
        ended.append(1)

for _ in range(20):
    ledger = Ledger(Path(sys.argv[1]) / "coworker.db")
    ledger.run(verbs.open_session, "s", "fresh")
    events = [threading.Event() for _ in range(3)]
    threads = [threading.Thread(target=read, args=(ledger, e)) for e in events]
    for thread in threads:
        thread.start()
    for event in events:
        event.wait()
    ledger.close()
    for thread in threads:
        thread.join()
print(len(ended))
"""


def test_closing_the_ledger_waits_for_reads_of_other_threads(tmp_path: Path) -> None:
    """A connection closed in the middle of a statement takes the whole process along."""
    argv = [sys.executable, "-c", CLOSED_WHILE_READ, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "60\n"
