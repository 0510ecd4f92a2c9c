"""How the command line says things: words for people, stable keys for programs.

Text from the record (names, previews, notes) reaches a terminal only through `safe`.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import review
from .models import AuditEntry, Execution
from .policy import PolicyKind, parse
from .states import AuthorityKind, Decision, Reason, State

SHORT_ID = 10
"""Characters of an id in a table; every command takes them back."""

_NO_TIME = (OverflowError, OSError, TypeError, ValueError)
_GONE = frozenset({"Cc", "Cf", "Co", "Zl", "Zp"})

REASONS: dict[str, str] = {
    Reason.STARTED.value: "It was started; no outcome is recorded.",
    Reason.RETURNED.value: "The call returned.",
    Reason.RAISED.value: "The call failed.",
    Reason.LATE.value: "Its outcome came after it had been taken for unknown.",
    Reason.THREAD.value: "Its result was found in the saved conversation.",
    Reason.DECIDED.value: "A decision settled it.",
    Reason.RECONCILED.value: "It was looked up afterwards.",
    Reason.EVIDENCE.value: "A named source said how it ended.",
}
"""Why a row has its state; `review` has the sentences for the unknown ones."""

AUTHORITIES: dict[AuthorityKind | None, str] = {
    AuthorityKind.ITEM: "an approval",
    AuthorityKind.PROMPT: "a person, when asked",
    AuthorityKind.RULE: "a standing rule",
    AuthorityKind.GRANT: "a grant for the session",
    AuthorityKind.POLICY: "its recovery policy",
    AuthorityKind.DECISION: "a decision",
    None: "not known",
}

_DECIDED: dict[Decision, str] = {
    Decision.HAPPENED: "decided: it happened",
    Decision.DROP: "decided: leave it",
    Decision.RETRY: "decided: run it once",
}


def safe(value: object) -> Text:
    """Return text that can be shown: no markup, no control characters, only what fits."""
    spaced = str(value).replace("\n", " ").replace("\t", " ")
    kept = "".join(c for c in spaced if unicodedata.category(c) not in _GONE)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return Text(kept.encode(encoding, "backslashreplace").decode(encoding))


def console() -> Console:
    """Return a console on the standard output of now; plain when that is no terminal."""
    return Console(highlight=False, markup=False, emoji=False)


def _local(at: float | None) -> str:
    try:
        return "" if at is None else review.when_words(at)
    except _NO_TIME:
        return "?"


def utc(at: float | None) -> str | None:
    """Return epoch seconds as ISO 8601 in UTC, to the millisecond."""
    try:
        moment = None if at is None else datetime.fromtimestamp(at, tz=timezone.utc)
    except _NO_TIME:
        moment = None
    if moment is None:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _stamp_utc(stamp: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def state_words(row: Execution, alive: bool | None) -> str:
    """Return an attempt's state in plain words, claiming no more than is known (G12).

    Args:
        row: the attempt.
        alive: whether its owner still runs; None when that cannot be told.
    """
    if row.newer:
        return "kept by a newer version"
    if row.state == State.DISPATCHED:
        return {True: "running", False: "cut off; may have happened", None: "started"}[alive]
    if row.superseded:
        return "unknown, then run once more"
    if row.decision is not None:
        return _DECIDED[row.decision]
    if row.state == State.UNKNOWN:
        return "unknown: a person is asked" if row.probe_at is None else "unknown: looked up"
    return "done" if row.state == State.SUCCEEDED else "failed"


def reason_words(row: Execution) -> str:
    """Return one sentence about why an attempt has its state."""
    return REASONS.get(row.reason) or review.why_words(row)


def policy_words(text: str) -> str:
    """Return a kept policy in plain words; one that cannot be read counts as `manual`."""
    policy = parse(text)
    told = [policy.kind.value]
    if policy.then is not PolicyKind.MANUAL:
        told.append(f"then {policy.then.value}")
    if policy.sends_key:
        told.append(f"key valid for {policy.key_valid:g} seconds")
    if policy.attempts > 1:
        told.append(f"at most {policy.attempts} attempts")
    if policy.repeatable:
        told.append("may be called while unknown")
    return ", ".join(told)


def attempt_json(row: Execution, alive: bool | None) -> dict[str, Any]:
    """Return one attempt for programs; the keys are those of docs/cli.md."""
    decision = {
        "decision": row.decision.value, "by": row.decided_by, "at": utc(row.decided_at),
        "note": row.decision_note,
    } if row.decision else None  # fmt: skip
    return {
        "attempt": row.attempt,
        "state": row.state.value if isinstance(row.state, State) else row.state,
        "state_words": state_words(row, alive),
        "reason": row.reason,
        "reason_words": reason_words(row),
        "detail": row.detail,
        "recorded_at": utc(row.dispatched_at),
        "started_at": utc(row.dispatched_at) if row.authority_kind else None,
        "ended_at": utc(row.ended_at),
        "authority": {
            "kind": row.authority_kind.value if row.authority_kind else None,
            "ref": row.authority_ref,
        },
        "policy": row.policy,
        "probes": row.probes,
        "probe_at": utc(row.probe_at),
        "found": row.found,
        "owner": row.owner,
        "owner_alive": alive if row.state == State.DISPATCHED else None,
        "result_digest": row.snapshot_digest,
        "result_lossy": row.lossy,
        "decision": decision,
        "superseded": row.superseded,
        "acknowledged_at": utc(row.acknowledged_at),
        "protocol_version": row.protocol_version,
    }


def execution_json(row: Execution, is_open: bool) -> dict[str, Any]:
    """Return what is the same for all attempts of an execution, for programs."""
    return {
        "execution_id": row.execution_id,
        "session_id": row.session_id,
        "incarnation": row.incarnation,
        "tool_call_id": row.tool_call_id,
        "tool": {
            "source": row.tool_source, "name": row.tool_name, "version": row.tool_version,
            "account": row.tool_account, "schema_digest": row.schema_digest,
        },
        "intent_digest": row.intent_digest,
        "preview": row.preview,
        "occurrence": row.occurrence,
        "linked": row.linked,
        "open": is_open,
    }  # fmt: skip


def event_json(entry: AuditEntry) -> dict[str, Any]:
    """Return one audit row for programs."""
    moment = _stamp_utc(entry.timestamp)
    return {
        "id": entry.id,
        "at": utc(moment.timestamp()) if moment else entry.timestamp,
        "session_id": entry.session_id,
        "tool": entry.tool,
        "tool_call_id": entry.tool_call_id,
        "attempt": entry.attempt,
        "stage": entry.stage,
        "status": entry.status,
        "reason": entry.reason,
        "recovery_decision": entry.recovery_decision,
    }


def table(columns: dict[str, dict[str, Any]], lines: Iterable[Iterable[object]]) -> Table:
    """Return a table without lines, whose cells wrap rather than run over the edge."""
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name, options in columns.items():
        made.add_column(name, **{"overflow": "fold", **options})
    for line in lines:
        made.add_row(*(safe(cell) for cell in line))
    return made


LIST_COLUMNS: dict[str, dict[str, Any]] = {
    "when": {"no_wrap": True}, "tool": {"ratio": 3}, "state": {"ratio": 4},
    "try": {"no_wrap": True, "justify": "right"}, "session": {"ratio": 2},
    "id": {"no_wrap": True},
}  # fmt: skip


def list_line(row: Execution, is_open: bool, alive: bool | None) -> tuple[object, ...]:
    """Return the cells of one execution in `list`."""
    words = state_words(row, alive)
    if is_open and row.state != State.DISPATCHED and not row.undecided and not row.newer:
        words += "; not confirmed in thread"
    when = _local(row.dispatched_at)
    short = row.execution_id[:SHORT_ID]
    return (when, row.tool_name, words, row.attempt, row.session_id, short)


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Return lines of `name  value`, leaving out the empty ones."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value not in ("", None):
            grid.add_row(Text(name), safe(value))
    return grid


def execution_facts(row: Execution, is_open: bool) -> list[tuple[str, object]]:
    """Return what `show` says of an execution as a whole."""
    version = f", version {row.tool_version}" if row.tool_version else ""
    account = f", for {row.tool_account}" if row.tool_account else ""
    return [
        ("execution", row.execution_id),
        ("tool", f"{row.tool_name} (from {row.tool_source}{version}{account})"),
        ("preview", row.preview),
        ("session", row.session_id),
        ("call", row.tool_call_id),
        ("slot", row.occurrence),
        ("repeats", row.linked),
        ("open", "yes" if is_open else "no"),
    ]


def attempt_facts(row: Execution, alive: bool | None) -> list[tuple[str, object]]:
    """Return what `show` says of one attempt."""
    ref = f" ({row.authority_ref})" if row.authority_ref else ""
    stand_in = ", of a stand-in" if row.lossy else ""
    decided = ""
    if row.decision is not None:
        by = row.decided_by or "unnamed"
        decided = f"{review.LABELS[row.decision]} ({by}, {_local(row.decided_at)})"
    return [
        ("state", state_words(row, alive)),
        ("why", reason_words(row) + (f" ({row.detail})" if row.detail else "")),
        ("started" if row.authority_kind else "recorded", _local(row.dispatched_at)),
        ("ended", _local(row.ended_at)),
        ("allowed by", AUTHORITIES[row.authority_kind] + ref),
        ("policy", policy_words(row.policy)),
        ("probes", row.probes or None),
        ("next probe", _local(row.probe_at)),
        ("found", row.found),
        ("result", row.snapshot_digest and f"SHA-256 {row.snapshot_digest}{stand_in}"),
        ("decision", decided),
        ("note", row.decision_note),
    ]


def event_line(entry: AuditEntry) -> tuple[object, ...]:
    """Return the cells of one audit row in `history`."""
    moment = _stamp_utc(entry.timestamp)
    when = moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else entry.timestamp
    attempt = "" if entry.attempt is None else entry.attempt
    said = "; ".join(word for word in (entry.recovery_decision, entry.reason) if word)
    return (when, attempt, entry.stage, entry.status, said)


def evidence_json(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return evidence that came after an attempt was settled, for programs."""
    return {
        "attempt": evidence["attempt"], "at": utc(evidence["at"]), "state": evidence["state"],
        "reason": evidence["reason"], "detail": evidence["detail"],
        "result_digest": evidence["digest"],
    }  # fmt: skip


def evidence_line(evidence: Mapping[str, Any]) -> tuple[str, object]:
    """Return what `show` says of evidence that came after an attempt was settled."""
    detail = f" ({evidence['detail']})" if evidence["detail"] else ""
    when = _local(evidence["at"])
    return (f"attempt {evidence['attempt']}", f"{when}: {evidence['state']}{detail}")
