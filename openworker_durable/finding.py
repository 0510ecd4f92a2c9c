"""Verbs of what is found out afterwards: probes and their verdicts, evidence, rebinding.

Each is the body of one transaction, as in `verbs`, and leaves an audit row. A schedule of probes
lives in the row: `probe_at` is the next one, and a probe counts once it has begun, so that a
process that dies in each of them does not probe for ever. Killed inside a probe, the next one of
the schedule comes all the same.
"""

from __future__ import annotations

import sqlite3

from .errors import AlreadyDecided, AlreadyRecorded, NotOwner, Refused
from .models import Evidence, Execution, Outcome
from .policy import ABSENT
from .redact import short
from .sql import run
from .states import PROTOCOL_VERSION, State
from .verbs import add_evidence, audit_row, found_words, one, row_now

FOUND_CHARACTERS = 200


def schedule_probe(conn: sqlite3.Connection, execution_id: str, attempt: int, at: float) -> bool:
    """Set the time of the first probe of an unknown, undecided attempt.

    Returns:
        False when its probes were scheduled before, or it is settled.
    """
    values = {"execution_id": execution_id, "attempt": attempt, "next_at": at}
    done = run(conn, "schedule_probe", {**values, "protocol": PROTOCOL_VERSION})
    if done.rowcount == 1:
        row = row_now(conn, execution_id, attempt)
        assert row is not None
        audit_row(conn, row, "probe", "scheduled")
    return done.rowcount == 1


def postpone(conn: sqlite3.Connection, execution_id: str, attempt: int, at: float) -> bool:
    """Set a later time for the first probe of an attempt.

    Returns:
        False when it has begun, or the attempt is settled.
    """
    values = {"execution_id": execution_id, "attempt": attempt, "next_at": at}
    return run(conn, "postpone", values).rowcount == 1


def begin_probe(
    conn: sqlite3.Connection, execution_id: str, attempt: int, probes: int, next_at: float
) -> bool:
    """Claim the next probe of an attempt, for whichever process commits first.

    Args:
        probes: how many were begun before, as the caller saw it.
        next_at: when to ask again, or to give up, if nothing more is heard of this probe.

    Returns:
        False when another one has it, or the attempt is settled.
    """
    values = {"execution_id": execution_id, "attempt": attempt, "next_at": next_at}
    done = run(conn, "begin_probe", {**values, "probes": probes, "protocol": PROTOCOL_VERSION})
    return done.rowcount == 1


def end_probe(
    conn: sqlite3.Connection, execution_id: str, attempt: int, probes: int, word: str, note: str,
    next_at: float | None,
) -> bool:  # fmt: skip
    """Record a probe that settled nothing.

    Args:
        probes: the number of this probe.
        word, note: what it came to, for the audit and the person.
        next_at: when to ask again; None: the schedule is over.

    Returns:
        False when the attempt was settled meanwhile, or another probe began.
    """
    row = row_now(conn, execution_id, attempt)
    if row is None:
        return False
    values = {"execution_id": execution_id, "attempt": attempt, "probes": probes}
    found = _said(word, note, probes)
    done = run(conn, "end_probe", {**values, "next_at": next_at, "found": found})
    audit_row(conn, row, "probe", word[:60], f"probe {probes}")
    return done.rowcount == 1


def end_probes(conn: sqlite3.Connection, execution_id: str, attempt: int, why: str) -> bool:
    """Give up the schedule of an attempt: it cannot be looked up, or all of it is used.

    Args:
        why: for the person; empty to keep what the last probe said.
    """
    row = row_now(conn, execution_id, attempt)
    if row is None:
        return False
    values = {"execution_id": execution_id, "attempt": attempt}
    done = run(conn, "end_probes", {**values, "found": why[:FOUND_CHARACTERS] or row.found})
    if done.rowcount == 1:
        audit_row(conn, row, "probe", "over", why)
    return done.rowcount == 1


def found_absent(conn: sqlite3.Connection, execution_id: str, attempt: int, probes: int) -> bool:
    """Record that a probe showed that an attempt did not happen, where it may be made again."""
    row = row_now(conn, execution_id, attempt)
    if row is None:
        return False
    values = {"execution_id": execution_id, "attempt": attempt, "probes": probes}
    done = run(conn, "end_probe", {**values, "next_at": None, "found": ABSENT})
    audit_row(conn, row, "probe", ABSENT, f"probe {probes}; it may be made again")
    return done.rowcount == 1


def found_out(
    conn: sqlite3.Connection, execution_id: str, attempt: int, probes: int, outcome: Outcome,
    word: str, at: float,
) -> bool:  # fmt: skip
    """Settle an unknown attempt by what a probe found.

    Args:
        probes: the number of this probe.
        outcome: succeeded or failed, with what the model is to see.
        word: the verdict, for the audit.

    Returns:
        False when it was settled meanwhile; what the probe found is then kept as evidence.
    """
    row = row_now(conn, execution_id, attempt)
    if row is None:
        return False
    done = _settle(conn, row, outcome, f"probe {probes}", at)
    if done:
        audit_row(conn, row, "probe", outcome.state.value, f"probe {probes}: {word[:60]}")
    else:
        add_evidence(conn, row, outcome, at)
    return done


def give_evidence(
    conn: sqlite3.Connection, execution_id: str, attempt: int, evidence: Evidence, at: float
) -> bool:
    """Settle one unknown attempt by the evidence of a named source, with its own audit event.

    Returns:
        True when it settled the attempt; False when this very event did so before.

    Raises:
        AlreadyRecorded: the event was given before with another content, or for another attempt.
        AlreadyDecided: the attempt is settled; nothing changed.
        Refused: there is no such attempt, or it is not unknown.
    """
    outcome, source, event = evidence.outcome, evidence.source, evidence.event
    digest = outcome.snapshot.digest if outcome.snapshot else None
    told = one(conn, "event", source=source, event=event)
    if told is not None:
        if tuple(told) == (execution_id, attempt, outcome.state.value, digest):
            return False
        raise AlreadyRecorded(execution_id, attempt, f"event {event} with another content", "new")
    row = row_now(conn, execution_id, attempt)
    if row is None:
        raise Refused(execution_id, attempt, "no row", "unknown and undecided")
    if row.newer or row.state == State.DISPATCHED:
        raise Refused(execution_id, attempt, found_words(row), "unknown and undecided")
    if not _settle(conn, row, outcome, f"evidence of {source}", at):
        raise AlreadyDecided(execution_id, attempt, found_words(row), "unknown and undecided")
    run(conn, "add_evidence",
        {
            "execution_id": execution_id, "attempt": attempt, "at": at,
            "state": outcome.state.value, "reason": outcome.reason.value, "digest": digest,
            "detail": outcome.detail[:200], "source": source, "event": event,
        },
    )  # fmt: skip
    audit_row(conn, row, "evidence", outcome.state.value, f"given by {source}, event {event}")
    return True


def _settle(
    conn: sqlite3.Connection, row: Execution, outcome: Outcome, found: str, at: float
) -> bool:
    shot = outcome.snapshot
    done = run(conn, "settle",
        {
            "execution_id": row.execution_id, "attempt": row.attempt, "at": at,
            "state": outcome.state.value, "reason": outcome.reason.value,
            "detail": outcome.detail[:200], "found": found[:FOUND_CHARACTERS],
            "snapshot": shot.pack() if shot else None, "digest": shot.digest if shot else None,
            "lossy": int(bool(shot and shot.lossy)), "protocol": PROTOCOL_VERSION,
        },
    )  # fmt: skip
    return done.rowcount == 1


def rebind(
    conn: sqlite3.Connection, execution_id: str, attempt: int, before: str, owner: str
) -> bool:
    """Give an attempt whose owner is gone to the life that holds its evidence.

    Args:
        before: the owner that ended; the caller has seen that it is not alive.
        owner: the caller, alive.

    Returns:
        False when it is settled, or belongs to somebody else.

    Raises:
        NotOwner: `before` and `owner` are the same.
        Refused: there is no such attempt.
    """
    if before == owner:
        raise NotOwner(execution_id, attempt, "its own owner", "an owner that ended")
    row = row_now(conn, execution_id, attempt)
    if row is None:
        raise Refused(execution_id, attempt, "no row", "an open attempt")
    values = {"execution_id": execution_id, "attempt": attempt, "before": before, "owner": owner}
    done = run(conn, "rebind", values)
    if done.rowcount == 1:
        audit_row(conn, row, "recovery", "rebound", "its evidence is held by another owner")
    return done.rowcount == 1


def _said(word: str, note: str, probes: int) -> str:
    times = f", asked {probes} times" if probes > 1 else ""
    line = short(note)
    return f"{word}{times}{': ' + line if line else ''}"[:FOUND_CHARACTERS]
