"""Short ways to say what every test of the record needs: intents, outcomes, rows, counts."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openworker_durable import rows, verbs
from openworker_durable.identity import execution_id, intent_digest
from openworker_durable.ledger import Ledger
from openworker_durable.models import Authority, Execution, Intent, Outcome, ToolIdentity
from openworker_durable.snapshot import encode
from openworker_durable.states import AuthorityKind, Decision, Reason, State

ME, OTHER = "owner-me", "owner-other"
_numbers = itertools.count()

Row = dict[str, Any]


def intent(call: str = "call_1", *, session: str = "s", amount: int = 10, **more: Any) -> Intent:
    """Return the intent of one `pay` call; the same arguments give the same execution."""
    return Intent(
        session_id=session,
        incarnation="life",
        tool_call_id=call,
        execution_id=execution_id(session, "life", call),
        tool=ToolIdentity(name=more.pop("tool", "pay")),
        intent_digest=intent_digest("pay", {"amount": amount}),
        **{"preview": f"amount: {amount}", **more},
    )


def item(ref: str = "") -> Authority:
    """Return an approval item that nothing else was started by, unless `ref` names one."""
    return Authority(kind=AuthorityKind.ITEM, ref=ref or f"item-{next(_numbers)}")


def succeeded(result: Any = "done") -> Outcome:
    return Outcome(state=State.SUCCEEDED, reason=Reason.RETURNED, snapshot=encode(result))


def failed(result: Any = "no") -> Outcome:
    return Outcome(state=State.FAILED, reason=Reason.RAISED, snapshot=encode(result))


def unknown() -> Outcome:
    return Outcome(state=State.UNKNOWN, reason=Reason.AMBIGUOUS, detail="TimeoutError")


OUTCOMES = {State.SUCCEEDED: succeeded, State.FAILED: failed, State.UNKNOWN: unknown}


def started(ledger: Ledger, call: str = "call_1", owner: str = ME, **more: Any) -> Intent:
    """Dispatch a first attempt and return its intent."""
    what = intent(call, **more)
    assert ledger.run(verbs.dispatch, what, item(), owner, 1.0) == 1
    return what


def in_state(ledger: Ledger, state: State, call: str = "call_1", **more: Any) -> Intent:
    """Return the intent of a first attempt that has `state`, owned by `ME`."""
    what = started(ledger, call, **more)
    if state is not State.DISPATCHED:
        ledger.run(verbs.finish, what.execution_id, 1, ME, OUTCOMES[state](), 2.0)
    return what


def decided(ledger: Ledger, decision: Decision, call: str = "call_1") -> Intent:
    """Return the intent of a first attempt that was unknown and is decided."""
    what = in_state(ledger, State.UNKNOWN, call)
    ledger.run(verbs.decide, what.execution_id, 1, decision, "me", "", 3.0)
    return what


def row_of(ledger: Ledger, what: Intent, attempt: int = 1) -> Execution:
    """Return the record of an attempt that is there."""
    row = ledger.first(rows.row(what.execution_id, attempt))
    assert row is not None
    return row


@contextlib.contextmanager
def plain(path: Path, timeout: float = 5.0) -> Iterator[sqlite3.Connection]:
    """Yield a connection as the host or any other program opens it."""
    conn = sqlite3.connect(path, isolation_level=None, timeout=timeout, check_same_thread=False)
    conn.row_factory = sqlite3.Row
    try:
        yield conn
    finally:
        conn.close()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the file's write lock, as another process does."""
    with plain(path) as conn:
        conn.execute("BEGIN EXCLUSIVE")
        try:
            yield conn
        finally:
            if conn.in_transaction:
                conn.execute("ROLLBACK")


def table(path: Path, name: str) -> list[Row]:
    """Return all rows of a table."""
    with plain(path) as conn:
        return [dict(row) for row in conn.execute(f"SELECT * FROM {name}")]


def audits(path: Path) -> list[Row]:
    """Return all audit rows, oldest first."""
    with plain(path) as conn:
        return [dict(row) for row in conn.execute("SELECT * FROM audit_events ORDER BY id")]
