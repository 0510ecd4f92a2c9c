"""One verb per move, each the body of one transaction; the only place that writes rows.

A verb takes a connection inside a transaction and either makes its whole move, with its
audit row, or raises a `Refused` that says what was found. Callers pass verbs to
`Ledger.run` or `Ledger.ask`; nothing else calls them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from .errors import AlreadyDecided, AlreadyRecorded, ApprovalSpent, NotOwner, Refused
from .models import Authority, Coverage, Execution, Intent, Outcome
from .policy import Descriptor, Standing, parse, standing
from .rows import coverage_of, execution_of
from .snapshot import Snapshot
from .sql import run
from .states import (
    FINAL_DECISIONS,
    NOT_RETRIED,
    PROTOCOL_VERSION,
    AuthorityKind,
    Decision,
    Reason,
    State,
    state_after,
)

BY_PERSON = frozenset({AuthorityKind.ITEM, AuthorityKind.PROMPT})
"""Authorities that a person gave for this very call."""

BY_DECISION = Authority(kind=AuthorityKind.DECISION)


def one(conn: sqlite3.Connection, name: str, **params: Any) -> sqlite3.Row | None:
    row: sqlite3.Row | None = run(conn, name, params).fetchone()
    return row


def row_now(conn: sqlite3.Connection, execution_id: str, attempt: int) -> Execution | None:
    row = one(conn, "row", execution_id=execution_id, attempt=attempt)
    return execution_of(row) if row else None


def _latest(conn: sqlite3.Connection, execution_id: str) -> Execution | None:
    row = one(conn, "latest", execution_id=execution_id)
    return execution_of(row) if row else None


def found_words(row: Execution | None) -> str:
    if row is None:
        return "no row"
    state = row.state.value if isinstance(row.state, State) else row.state
    return f"{state}, decided {row.decision.value}" if row.decision else state


def audit(
    conn: sqlite3.Connection,
    *,
    session_id: str,
    tool: str,
    stage: str,
    status: str,
    reason: str = "",
    tool_call_id: str = "",
    execution_id: str = "",
    attempt: int | None = None,
    decision: str | None = None,
) -> None:
    """Add one audit row; it commits with the move beside it (G10)."""
    run(conn, "audit",
        {
            "session_id": session_id, "tool": tool, "stage": stage, "status": status,
            "reason": reason[:500], "tool_call_id": tool_call_id, "execution_id": execution_id,
            "attempt": attempt, "decision": decision,
        },
    )  # fmt: skip


def audit_row(
    conn: sqlite3.Connection, row: Execution, stage: str, status: str, reason: str = "",
    decision: str | None = None,
) -> None:  # fmt: skip
    audit(
        conn, session_id=row.session_id, tool=row.tool_name, stage=stage, status=status,
        reason=reason, tool_call_id=row.tool_call_id, execution_id=row.execution_id,
        attempt=row.attempt, decision=decision,
    )  # fmt: skip


def _insert(
    conn: sqlite3.Connection, intent: Intent, attempt: int, state: State, reason: Reason,
    owner: str, at: float, authority: Authority | None,
) -> None:  # fmt: skip
    run(conn, "insert_execution",
        {
            "execution_id": intent.execution_id, "attempt": attempt,
            "session_id": intent.session_id, "incarnation": intent.incarnation,
            "tool_call_id": intent.tool_call_id, "tool_source": intent.tool.source,
            "tool_name": intent.tool.name, "tool_version": intent.tool.version,
            "tool_account": intent.tool.account,
            "schema_digest": intent.tool.schema_digest, "intent_digest": intent.intent_digest,
            "preview": intent.preview, "policy": intent.policy, "prepared": intent.prepared,
            "authority_kind": authority.kind.value if authority else None,
            "authority_ref": authority.ref if authority else "",
            "occurrence": intent.occurrence, "linked": intent.linked, "owner": owner,
            "protocol_version": PROTOCOL_VERSION, "state": state.value, "reason": reason.value,
            "at": at, "ended_at": None if state is State.DISPATCHED else at,
        },
    )  # fmt: skip


def dispatch(
    conn: sqlite3.Connection, intent: Intent, authority: Authority, owner: str, at: float
) -> int:
    """Record that the first attempt may start now; consumes an approval item (G1, G5).

    Returns:
        the attempt's number, 1.

    Raises:
        AlreadyRecorded: the execution has a row; its caller must do no I/O.
        ApprovalSpent: the approval item already started another attempt.
        Refused: another run of the same automation's slot has made calls meanwhile, and no
            person allowed this one knowing that.
    """
    there = _latest(conn, intent.execution_id)
    if there is not None:
        raise AlreadyRecorded(intent.execution_id, there.attempt, found_words(there), "no row")
    if intent.occurrence and authority.kind not in BY_PERSON and _slot_taken(conn, intent):
        raise Refused(intent.execution_id, 1, "another run of the same slot", "the only one")
    try:
        _insert(conn, intent, 1, State.DISPATCHED, Reason.STARTED, owner, at, authority)
    except sqlite3.IntegrityError as exc:
        raise ApprovalSpent(
            intent.execution_id, 1, f"approval {authority.ref} already used", "an unused approval"
        ) from exc
    audit(
        conn, session_id=intent.session_id, tool=intent.tool.name, stage="dispatched",
        status=State.DISPATCHED.value, reason=f"allowed by {authority.kind.value}"
        + (f"; repeats {intent.linked}, asked" if intent.linked else ""),
        tool_call_id=intent.tool_call_id, execution_id=intent.execution_id, attempt=1,
    )  # fmt: skip
    return 1


def _slot_taken(conn: sqlite3.Connection, intent: Intent) -> bool:
    """Say whether another session made calls for an automation's slot: asked at dispatch (G5)."""
    slot = {"occurrence": intent.occurrence, "session_id": intent.session_id}
    return one(conn, "same_occurrence", **slot) is not None


def retry(
    conn: sqlite3.Connection, intent: Intent, owner: str, at: float,
    authority: Authority = BY_DECISION,
) -> int:  # fmt: skip
    """Record the next attempt of an execution, by decision or by policy; supersedes the last one.

    Whether a policy allows it is asked here once more, of the rows as they are now: the attempts
    made, the age of the key, and whether the tool is the one that was called.

    Args:
        intent: the call with its tool and policy as they are now.
        authority: a policy; anything else stands for the person's decision.

    Returns:
        the new attempt's number.

    Raises:
        AlreadyRecorded: a later attempt exists.
        Refused: the latest attempt is not unknown and decided `retry`, or its policy does not
            allow another one.
    """
    made = [execution_of(r) for r in run(conn, "attempts", {"execution_id": intent.execution_id})]
    there = made[-1] if made else None
    by_policy = authority.kind is AuthorityKind.POLICY
    wanted = "a policy for it" if by_policy else "decided retry"
    if there is not None and there.attempt > 1 and there.state == State.DISPATCHED:
        raise AlreadyRecorded(
            intent.execution_id, there.attempt, found_words(there), f"unknown and {wanted}"
        )
    if there is None or there.newer or not _may_retry(made, intent, at, by_policy):
        attempt = there.attempt if there else 1
        raise Refused(intent.execution_id, attempt, found_words(there), wanted)
    if there.intent_digest != intent.intent_digest:
        raise Refused(intent.execution_id, there.attempt, "another intent", "the same intent")
    word = there.decision.value if there.decision else None
    values = {"execution_id": there.execution_id, "attempt": there.attempt, "decision": word}
    if run(conn, "supersede", values).rowcount != 1:
        raise AlreadyRecorded(*there.key, found_words(there), "not superseded")
    attempt = there.attempt + 1
    ref = f"{there.execution_id}:{there.attempt}:{word or there.policy.split()[0]}"
    kind = AuthorityKind.POLICY if by_policy else AuthorityKind.DECISION
    authority = Authority(kind=kind, ref=ref)
    _insert(conn, intent, attempt, State.DISPATCHED, Reason.STARTED, owner, at, authority)
    audit(
        conn, session_id=intent.session_id, tool=intent.tool.name, stage="dispatched",
        status=State.DISPATCHED.value, reason=f"allowed by {authority.kind.value}",
        tool_call_id=intent.tool_call_id, execution_id=intent.execution_id, attempt=attempt,
        decision=word,
    )  # fmt: skip
    return attempt


def _may_retry(made: Sequence[Execution], intent: Intent, at: float, by_policy: bool) -> bool:
    if not by_policy:
        return made[-1].decision is Decision.RETRY
    return standing(made, Descriptor(intent.tool, parse(intent.policy)), at) is Standing.AGAIN


def vouch(
    conn: sqlite3.Connection, intent: Intent, reason: Reason, detail: str, owner: str, at: float
) -> Execution:
    """Record a call that recovery cannot vouch for as unknown; never called in a live turn.

    Returns:
        the row, the one already there when recovery runs twice.
    """
    there = _latest(conn, intent.execution_id)
    if there is None:
        _insert(conn, intent, 1, State.UNKNOWN, reason, owner, at, None)
        row = row_now(conn, intent.execution_id, 1)
        assert row is not None
        audit_row(conn, row, "recovery", State.UNKNOWN.value, detail or reason.value)
        return row
    return there


def finish(
    conn: sqlite3.Connection, execution_id: str, attempt: int, owner: str, outcome: Outcome,
    at: float,
) -> State:  # fmt: skip
    """Record how an attempt ended; only its owner may (G9).

    A row decided in the meantime keeps its decision: the outcome is appended as evidence.

    Returns:
        the state the row has now.

    Raises:
        NotOwner: another process owns the attempt.
        Refused: there is no such attempt.
    """
    row = row_now(conn, execution_id, attempt)
    if row is None:
        raise Refused(execution_id, attempt, "no row", "dispatched")
    if row.owner != owner:
        raise NotOwner(execution_id, attempt, "another owner", "this process")
    shot = outcome.snapshot
    late = row.state == State.UNKNOWN
    done = run(conn, "finish",
        {
            "execution_id": execution_id, "attempt": attempt, "owner": owner, "at": at,
            "state": outcome.state.value,
            "reason": Reason.LATE.value if late else outcome.reason.value,
            "detail": outcome.detail[:200],
            "snapshot": shot.pack() if shot else None, "digest": shot.digest if shot else None,
            "lossy": int(bool(shot and shot.lossy)),
        },
    )  # fmt: skip
    if done.rowcount == 1:
        audit_row(conn, row, "outcome", outcome.state.value, outcome.reason.value)
        return outcome.state
    add_evidence(conn, row, outcome, at)
    return State(row.state)


def add_evidence(conn: sqlite3.Connection, row: Execution, outcome: Outcome, at: float) -> None:
    """Append what came too late for a row that is settled; the same evidence again is one."""
    digest = outcome.snapshot.digest if outcome.snapshot else None
    if row.decision is None and row.state == outcome.state:
        return
    done = run(conn, "add_evidence",
        {
            "execution_id": row.execution_id, "attempt": row.attempt, "at": at,
            "state": outcome.state.value, "reason": outcome.reason.value, "digest": digest,
            "detail": outcome.detail[:200], "source": "", "event": "",
        },
    )  # fmt: skip
    if done.rowcount == 1:
        conflict = "agrees with" if row.state == outcome.state else "contradicts"
        audit_row(conn, row, "late_evidence", outcome.state.value, f"{conflict} the record")


def lose(
    conn: sqlite3.Connection, execution_id: str, attempt: int, owner: str, reason: Reason,
    at: float,
) -> bool:  # fmt: skip
    """Record that an attempt's owner is gone and left no outcome: the attempt is unknown.

    Args:
        owner: the owner that was found dead; the move is fenced by it.

    Returns:
        False when the row is no longer dispatched by that owner.
    """
    done = run(conn, "lose",
        {"execution_id": execution_id, "attempt": attempt, "owner": owner,
         "reason": reason.value, "at": at},
    )  # fmt: skip
    if done.rowcount != 1:
        return False
    row = row_now(conn, execution_id, attempt)
    assert row is not None
    audit_row(conn, row, "recovery", State.UNKNOWN.value, reason.value)
    return True


def found_in_thread(
    conn: sqlite3.Connection, execution_id: str, attempt: int, owner: str, state: State,
    shot: Snapshot, at: float,
) -> bool:  # fmt: skip
    """Settle a dispatched attempt by the result that stands in the saved thread."""
    done = run(conn, "found_in_thread",
        {"execution_id": execution_id, "attempt": attempt, "owner": owner,
         "state": state.value, "snapshot": shot.pack(), "digest": shot.digest,
         "at": at},
    )  # fmt: skip
    if done.rowcount != 1:
        return False
    row = row_now(conn, execution_id, attempt)
    assert row is not None
    audit_row(conn, row, "recovery", state.value, "its result is in the saved thread")
    return True


def decide(
    conn: sqlite3.Connection, execution_id: str, attempt: int, decision: Decision, by: str,
    note: str, at: float,
) -> Execution:  # fmt: skip
    """Record a person's word on an unknown attempt; the first final one wins.

    `unsure` moves nothing and is only kept in the audit.

    Returns:
        the row as it is now.

    Raises:
        AlreadyDecided: a final decision, or a known outcome, stands.
        Refused: there is no such attempt, or it is not unknown.
    """
    row = row_now(conn, execution_id, attempt)
    if row is None:
        raise Refused(execution_id, attempt, "no row", "unknown and undecided")
    if row.newer:
        raise Refused(execution_id, attempt, "a newer protocol's row", "one this version knows")
    if not row.undecided or row.superseded:
        error = Refused if row.state == State.DISPATCHED else AlreadyDecided
        raise error(execution_id, attempt, found_words(row), "unknown and undecided")
    if decision is Decision.RETRY and row.reason in NOT_RETRIED:
        raise Refused(execution_id, attempt, f"a {row.reason} call", "the call that was recorded")
    if decision is Decision.RETRY and _is_deleted(conn, row):
        raise Refused(execution_id, attempt, "a deleted session", "the session of the call")
    if decision in FINAL_DECISIONS:
        run(conn, "decide",
            {"execution_id": execution_id, "attempt": attempt, "decision": decision.value,
             "by": by, "note": note[:2000], "at": at, "protocol": PROTOCOL_VERSION,
             "state": state_after(decision).value},
        )  # fmt: skip
        row = row_now(conn, execution_id, attempt)
        assert row is not None
    state = row.state.value if isinstance(row.state, State) else row.state
    audit_row(conn, row, "decision", state, f"by {by}" if by else "", decision.value)
    return row


def _is_deleted(conn: sqlite3.Connection, row: Execution) -> bool:
    life = one(conn, "life", session_id=row.session_id, incarnation=row.incarnation)
    return life is not None and life["deleted_at"] is not None


def acknowledge(conn: sqlite3.Connection, execution_id: str, attempt: int, at: float) -> bool:
    """Record that the saved thread carries this attempt's result or follow-up."""
    done = run(conn, "acknowledge", {"execution_id": execution_id, "attempt": attempt, "at": at})
    return done.rowcount == 1


def open_session(conn: sqlite3.Connection, session_id: str, fresh: str) -> Coverage:
    """Return the living incarnation of a session, begun with the nonce `fresh` if need be."""
    row = one(conn, "session", session_id=session_id)
    if row is None:
        run(
            conn,
            "open_session",
            {"session_id": session_id, "incarnation": fresh, "protocol": PROTOCOL_VERSION},
        )
        row = one(conn, "session", session_id=session_id)
        assert row is not None
    return coverage_of(row)


def cover(
    conn: sqlite3.Connection, session_id: str, fresh: str, digest: str, ordinal: int, at: float
) -> Coverage:
    """Record that this reply's calls are admitted: from now on, no row means never started.

    Must be committed before the reply enters the history.

    Raises:
        Refused: a newer protocol holds the session.
    """
    there = open_session(conn, session_id, fresh)
    done = run(conn, "cover",
        {"session_id": session_id, "digest": digest, "ordinal": ordinal, "at": at,
         "protocol": PROTOCOL_VERSION},
    )  # fmt: skip
    if done.rowcount != 1:
        raise Refused(session_id, 0, f"protocol {there.protocol_version}", str(PROTOCOL_VERSION))
    row = one(conn, "session", session_id=session_id)
    assert row is not None
    return coverage_of(row)


def tombstone(conn: sqlite3.Connection, session_id: str, at: float) -> int:
    """Record that a session was deleted: its rows stay and can be settled, its ids stay taken.

    Returns:
        the number of its undecided rows that remain to be settled.
    """
    run(conn, "tombstone", {"session_id": session_id, "at": at})
    rows = [execution_of(r) for r in run(conn, "open_in_session", {"session_id": session_id})]
    left = 0
    for row in rows:
        if row.undecided or row.state == State.DISPATCHED:
            left += 1
        else:
            acknowledge(conn, row.execution_id, row.attempt, at)
    audit(
        conn, session_id=session_id, tool="", stage="session_deleted", status="tombstone",
        reason=f"{left} to settle",
    )  # fmt: skip
    return left


def note(
    conn: sqlite3.Connection, session_id: str, tool: str, stage: str, status: str, reason: str,
    tool_call_id: str = "", execution_id: str = "", attempt: int | None = None,
) -> None:  # fmt: skip
    """Add an audit row that belongs to no move, such as a voided approval."""
    audit(
        conn, session_id=session_id, tool=tool, stage=stage, status=status, reason=reason,
        tool_call_id=tool_call_id, execution_id=execution_id or "", attempt=attempt,
    )  # fmt: skip


def expire(
    conn: sqlite3.Connection, snapshots_before: float, rows_before: float
) -> tuple[int, int]:
    """Drop snapshots and rows whose results have long been safe in their threads.

    Open rows, and rows any of whose attempts is open, never expire.

    Args:
        snapshots_before, rows_before: epoch seconds; only older acknowledgements count.

    Returns:
        (snapshots dropped, rows dropped).
    """
    shots = run(conn, "drop_snapshots", {"before": snapshots_before}).rowcount
    rows = run(conn, "drop_rows", {"before": rows_before}).rowcount
    return shots, rows
