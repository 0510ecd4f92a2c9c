"""The states of an attempt and the only moves between them.

One table, `MOVES`, says everything: the ledger's guards, the SQL checks, the page
docs/state-machine.md and the tests are derived from it. This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

SCHEMA_VERSION = 2
"""Layout of the tables. A store with a higher number is refused, never touched."""

PROTOCOL_VERSION = 1
"""Meaning of states and fields. A row with a higher number is never run (recovery rule 1)."""


class State(str, Enum):
    """How far an attempt got, as committed in the ledger."""

    DISPATCHED = "dispatched"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


KNOWN = frozenset({State.SUCCEEDED, State.FAILED})
"""Outcomes with nothing more to find out; rows in these states never change again."""


class Decision(str, Enum):
    """A word on an unknown attempt; the first final one wins, `unsure` keeps it open."""

    HAPPENED = "happened"
    RETRY = "retry"
    DROP = "drop"
    UNSURE = "unsure"


FINAL_DECISIONS = frozenset({Decision.HAPPENED, Decision.RETRY, Decision.DROP})


class Reason(str, Enum):
    """Why an attempt has the state it has."""

    STARTED = "started"
    RETURNED = "returned"
    RAISED = "raised"
    AMBIGUOUS = "ambiguous"
    OWNER_DIED = "owner_died"
    EVIDENCE_LOST = "evidence_lost"
    LEGACY = "legacy"
    CHANGED = "changed"
    LOST_THREAD = "lost_thread"
    LATE = "late"
    THREAD = "thread"
    DECIDED = "decided"
    RECONCILED = "reconciled"
    EVIDENCE = "evidence"


NOT_RETRIED = frozenset({Reason.CHANGED.value, Reason.LOST_THREAD.value})
"""Reasons of unknown rows whose call cannot be run as it was recorded."""


class AuthorityKind(str, Enum):
    """What allowed an attempt to start."""

    ITEM = "item"
    PROMPT = "prompt"
    RULE = "rule"
    GRANT = "grant"
    POLICY = "policy"
    DECISION = "decision"


@dataclass(frozen=True)
class Move:
    """One allowed change: from a state (None: no row yet) to a state.

    Args:
        verb: the ledger verb that makes it.
        before: state of the row before, or None when the move inserts the row.
        after: state of the row afterwards.
        next_attempt: True when `after` is a new row, attempt + 1, superseding the old.
        meaning: one sentence for docs/state-machine.md.
    """

    verb: str
    before: State | None
    after: State
    meaning: str
    next_attempt: bool = False


MOVES: tuple[Move, ...] = (
    Move("dispatch", None, State.DISPATCHED, "The first attempt may start now."),
    Move("finish", State.DISPATCHED, State.SUCCEEDED, "The call returned."),
    Move("finish", State.DISPATCHED, State.FAILED, "The call failed, and nothing was done."),
    Move("finish", State.DISPATCHED, State.UNKNOWN, "The call ended; its effect is in doubt."),
    Move("found_in_thread", State.DISPATCHED, State.SUCCEEDED, "The saved thread has its result."),
    Move("found_in_thread", State.DISPATCHED, State.FAILED, "The saved thread has its failure."),
    Move("lose", State.DISPATCHED, State.UNKNOWN, "Its owner is gone and left no outcome."),
    Move("vouch", None, State.UNKNOWN, "Recovery found a call it cannot vouch for."),
    Move("finish", State.UNKNOWN, State.SUCCEEDED, "Its own outcome arrived late."),
    Move("finish", State.UNKNOWN, State.FAILED, "Its own failure arrived late."),
    Move("decide", State.UNKNOWN, State.SUCCEEDED, "Decided: it happened."),
    Move("decide", State.UNKNOWN, State.FAILED, "Decided: it did not happen, leave it."),
    Move("found_out", State.UNKNOWN, State.SUCCEEDED, "A reconciler found that it happened."),
    Move("found_out", State.UNKNOWN, State.FAILED, "A reconciler found that it did not happen."),
    Move("give_evidence", State.UNKNOWN, State.SUCCEEDED, "A named source gave its result."),
    Move("give_evidence", State.UNKNOWN, State.FAILED, "A named source gave its error."),
    Move(
        "retry", State.UNKNOWN, State.DISPATCHED, "By decision or policy: run it once more.", True
    ),
)


def allowed(before: State | None, after: State, *, next_attempt: bool = False) -> bool:
    """Say whether some verb may take an attempt from `before` to `after`."""
    return any(
        m.before is before and m.after is after and m.next_attempt == next_attempt for m in MOVES
    )


def state_after(decision: Decision) -> State:
    """Return the state an undecided unknown row has once `decision` is committed."""
    if decision is Decision.HAPPENED:
        return State.SUCCEEDED
    if decision is Decision.DROP:
        return State.FAILED
    return State.UNKNOWN


def transitions_table() -> str:
    """Return the moves as the markdown table that docs/state-machine.md shows."""
    lines = ["| from | to | verb | meaning |", "|---|---|---|---|"]
    for m in MOVES:
        before = m.before.value if m.before else "(no row)"
        after = m.after.value + (", attempt + 1" if m.next_attempt else "")
        lines.append(f"| {before} | {after} | `{m.verb}` | {m.meaning} |")
    return "\n".join(lines) + "\n"
