"""Reading table rows into records, and the queries that readers run. Pure but for `sqlite3.Row`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .models import AuditEntry, Coverage, Execution
from .snapshot import Snapshot
from .sql import QUERIES, clean
from .states import PROTOCOL_VERSION, State

T = TypeVar("T")


def execution_of(row: sqlite3.Row) -> Execution:
    """Return the record of one `tool_executions` row, without its result text."""
    values: dict[str, Any] = dict(row)
    if values["protocol_version"] <= PROTOCOL_VERSION:
        values["state"] = State(values["state"])
    return Execution.model_validate(values)


def coverage_of(row: sqlite3.Row) -> Coverage:
    """Return the record of one `session_protocol` row."""
    return Coverage.model_validate(dict(row))


def snapshot_of(row: sqlite3.Row) -> Snapshot | None:
    """Return the stored result, or None when there is none (any more)."""
    if row["snapshot"] is None:
        return None
    return Snapshot.unpack(bytes(row["snapshot"]), lossy=bool(row["lossy"]))


def _audit_of(row: sqlite3.Row) -> AuditEntry:
    return AuditEntry.model_validate(
        {k: v if v is not None or k in _NULLABLE else "" for k, v in dict(row).items()}
    )


_NULLABLE = frozenset({"tool_call_id", "execution_id", "attempt", "recovery_decision"})


@dataclass(frozen=True)
class Query(Generic[T]):
    """One read: a named statement, its parameters, and how to read a row of it."""

    name: str
    params: Mapping[str, Any]
    read: Callable[[sqlite3.Row], T]

    @property
    def sql(self) -> str:
        """Return the statement's text."""
        return QUERIES[self.name]

    def cleaned(self) -> dict[str, Any]:
        """Return the parameters as SQLite can take them."""
        return {k: clean(v) for k, v in self.params.items()}


def row(execution_id: str, attempt: int) -> Query[Execution]:
    """One attempt."""
    return Query("row", {"execution_id": execution_id, "attempt": attempt}, execution_of)


def attempts(execution_id: str) -> Query[Execution]:
    """All attempts of an execution, first to last."""
    return Query("attempts", {"execution_id": execution_id}, execution_of)


def open_in_session(session_id: str) -> Query[Execution]:
    """Rows whose end the session's thread does not carry yet."""
    return Query("open_in_session", {"session_id": session_id}, execution_of)


def open_all() -> Query[Execution]:
    """Open rows of every session, oldest first."""
    return Query("open_all", {}, execution_of)


def all_rows(limit: int = 200) -> Query[Execution]:
    """The newest rows, at most `limit`."""
    return Query("all_rows", {"limit": limit}, execution_of)


def undecided_tool(session_id: str, tool_name: str) -> Query[Execution]:
    """Unknown, undecided rows of a tool in a session, oldest first, at most 20."""
    return Query("undecided_tool", {"session_id": session_id, "tool_name": tool_name}, execution_of)


def same_occurrence(occurrence: str, session_id: str) -> Query[Execution]:
    """What other sessions did for an automation's slot, oldest first, at most 20."""
    return Query(
        "same_occurrence", {"occurrence": occurrence, "session_id": session_id}, execution_of
    )


def occurrence_since(task_id: str, session_id: str, since: float) -> Query[str]:
    """The first occurrence of a task that other sessions have executed anything for since."""
    values = {
        "first": f"{task_id}@", "last": f"{task_id}A", "session_id": session_id, "since": since,
    }  # fmt: skip
    return Query("occurrence_since", values, lambda r: str(r["occurrence"]))


def occurrence_of(session_id: str) -> Query[str]:
    """The occurrence that a session's executions carry, if any does."""
    return Query("occurrence_of", {"session_id": session_id}, lambda r: str(r["occurrence"]))


def call_ids(session_id: str) -> Query[str]:
    """Every call id the ledger knows for a session, deleted lives of it included."""
    return Query("call_ids", {"session_id": session_id}, lambda r: str(r["tool_call_id"]))


def any_of_call(session_id: str, tool_call_id: str) -> Query[str]:
    """The execution id of a call by its id in the thread, if it has any row."""
    return Query(
        "any_of_call", {"session_id": session_id, "tool_call_id": tool_call_id},
        lambda r: str(r["execution_id"]),
    )  # fmt: skip


def session(session_id: str) -> Query[Coverage]:
    """The living incarnation of a session, if the ledger knows it."""
    return Query("session", {"session_id": session_id}, coverage_of)


def host_started(session_id: str, mark: int) -> Query[str]:
    """Tools the host started alone in a session since an audit row id."""
    return Query("host_started", {"session_id": session_id, "mark": mark}, lambda r: str(r["tool"]))


def probes_due(now: float) -> Query[Execution]:
    """Attempts whose next probe is due, the longest overdue first."""
    return Query("probes_due", {"now": now}, execution_of)


@dataclass(frozen=True)
class Conflict:
    """Evidence that contradicts how an attempt was settled.

    Args:
        id: of the evidence.
        execution_id, attempt: which attempt.
        state: what the evidence says.
        at: when it came, epoch seconds.
    """

    id: int
    execution_id: str
    attempt: int
    state: str
    at: float


def conflicts() -> Query[Conflict]:
    """Evidence that contradicts its attempt's settled state, oldest first."""
    return Query("conflicts", {}, lambda r: Conflict(**dict(r)))


def stored_snapshot(execution_id: str, attempt: int) -> Query[Snapshot | None]:
    """The stored result of an attempt."""
    return Query("snapshot", {"execution_id": execution_id, "attempt": attempt}, snapshot_of)


def history(execution_id: str) -> Query[AuditEntry]:
    """The audit rows of an execution, oldest first."""
    return Query("history", {"execution_id": execution_id}, _audit_of)


def evidence(execution_id: str) -> Query[dict[str, Any]]:
    """Evidence that came after an attempt was settled, oldest first."""
    return Query("evidence", {"execution_id": execution_id}, dict)
