"""The `recovery_required` item: its words, its four decisions, and what is no decision.

The item asks in plain words what happened to one attempt. Only an exact decision counts; a
dismissal, a bare allow or deny, an unknown word: refused, and the item stays open (C18, C19).
Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from .models import Execution
from .states import NOT_RETRIED, Decision, Reason, State

KIND = "recovery_required"
HEADER = "Unknown outcome"
HINT = (
    "Still open: that is no decision. Use the buttons, or answer with exactly one of: "
    "happened, retry, drop, unsure."
)
"""What a chat says after an answer that settles nothing."""

KEPT = "Noted: it stays open until somebody knows."
"""What a chat says after `unsure`."""

LABELS: dict[Decision, str] = {
    Decision.HAPPENED: "It happened",
    Decision.RETRY: "It did not happen: run it once",
    Decision.DROP: "It did not happen: leave it",
    Decision.UNSURE: "Not sure: keep it open",
}

_WHY: dict[str, str] = {
    Reason.OWNER_DIED.value: "OpenWorker stopped while the call was running.",
    Reason.EVIDENCE_LOST.value: "The call ended, but its result could not be kept.",
    Reason.AMBIGUOUS.value: "The call ended with an error that does not tell whether it took "
    "effect.",
    Reason.LEGACY.value: "The call was made while no record was being kept.",
    Reason.CHANGED.value: "The call in the conversation is not the one that was recorded or "
    "approved, so it was not run.",
    Reason.LOST_THREAD.value: "The conversation no longer holds this call.",
}


@dataclass(frozen=True)
class ItemDraft:
    """What a host needs to put the item before a person.

    Args:
        title, body: plain words, no secrets, no results.
        data: correlation ids and facts under `recovery`.
        options: the labels that stand for decisions.
    """

    session_id: str
    title: str
    body: str
    data: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()


def decisions_offered(row: Execution, *, retry: bool = True) -> tuple[Decision, ...]:
    """Return the decisions a person may make; a changed or lost call offers no retry."""
    if row.newer:
        return ()
    if row.reason in NOT_RETRIED or not retry:
        return (Decision.HAPPENED, Decision.DROP, Decision.UNSURE)
    return tuple(Decision)


def when_words(at: float) -> str:
    """Return a time for people: local date and minute."""
    local = datetime.fromtimestamp(at, tz=timezone.utc).astimezone()
    return local.strftime("%Y-%m-%d %H:%M")


def why_words(row: Execution) -> str:
    """Return one sentence about why the outcome is not known."""
    return _WHY.get(row.reason, "How the call ended is not known.")


def _began(row: Execution) -> str:
    """Say when the attempt started, or, where that was not seen, when it was found."""
    at = when_words(row.dispatched_at)
    if row.reason in (Reason.LEGACY.value, Reason.CHANGED.value, Reason.LOST_THREAD.value):
        return f"found {at}"
    return f"started {at}, attempt {row.attempt}"


def draft(row: Execution, *, retry: bool = True) -> ItemDraft:
    """Return the item for one unknown, undecided attempt.

    Args:
        retry: False when the conversation does not hold the call as it was recorded.
    """
    offered = decisions_offered(row, retry=retry)
    about = f"\n{row.preview}" if row.preview else ""
    if row.newer:
        body = (
            "A newer version of openworker-durable recorded this call. Upgrade the package; "
            f"until then it is not touched.{about}"
        )
    else:
        asked = f"\nLooked up: {row.found}." if row.found else ""
        body = f"{why_words(row)} It may have happened ({_began(row)}).{asked}{about}"
    return ItemDraft(
        session_id=row.session_id,
        title=f"Did {row.tool_name} happen?",
        body=body,
        options=tuple(LABELS[d] for d in offered),
        data={
            "recovery": {
                "execution_id": row.execution_id,
                "attempt": row.attempt,
                "tool_call_id": row.tool_call_id,
                "tool": row.tool_name,
                "reason": row.reason,
                "decisions": [d.value for d in offered],
            }
        },
    )


def conflict_words(row: Execution, says: State, at: float) -> tuple[str, str]:
    """Return title and body of the note about evidence that contradicts a settled attempt.

    Args:
        row: the attempt as it is settled.
        says: what the evidence says of it.
        at: when it came, epoch seconds.
    """
    happened = says is State.SUCCEEDED
    if row.superseded:
        stands = "It was made once more meanwhile, so it may have been done twice."
    elif happened:
        stands = "It stands on record as not done."
    else:
        stands = "It stands on record as done."
    word = "it happened" if happened else "it failed"
    about = f"\n{row.preview}" if row.preview else ""
    return (
        f"A late result about {row.tool_name}: {word}",
        f"{stands} What came on {when_words(at)} says that {word} (attempt {row.attempt}). Both "
        f"are kept; nothing was changed, and nothing is run.{about}",
    )


@dataclass(frozen=True)
class Word:
    """A resolution read as a decision, with the person's note."""

    decision: Decision
    note: str = ""


def read_decision(resolution: Any) -> Word | None:
    """Read a resolution from any surface.

    Args:
        resolution: a decision's name, its label, or JSON with `decision` and `note`.

    Returns:
        the decision, or None for anything else: that is no decision.
    """
    if not isinstance(resolution, str):
        return None
    for decision in Decision:
        if resolution in (decision.value, LABELS[decision]):
            return Word(decision)
    try:
        value = json.loads(resolution)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not set(value) <= {"decision", "note"}:
        return None
    inner = value.get("decision")
    note = value.get("note", "")
    if not isinstance(inner, str) or not isinstance(note, str):
        return None
    if inner not in {d.value for d in Decision}:
        return None
    return Word(Decision(inner), note)


def item_key(execution_id: str, attempt: int, generation: int) -> str:
    """Return the item's own idempotency key; a recreated item gets the next generation."""
    return f"recovery:{execution_id}:{attempt}:g{generation}"
