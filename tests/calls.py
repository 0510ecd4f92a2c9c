"""Protected calls without a host: each attempt through a real guard, into a real record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openworker_durable import verbs
from openworker_durable.guard import Guard, run_protected
from openworker_durable.models import Authority, Execution, Outcome
from openworker_durable.outcomes import state_of
from openworker_durable.rows import all_rows
from openworker_durable.snapshot import encode
from openworker_durable.states import AuthorityKind, Decision, Reason, State


def protected(
    guard: Guard, effect: Callable[[], Any], *, call_id: str = "c1", again: bool = False
) -> Any:
    """Make one attempt of a call of the session `s`; what the effect raises is raised on.

    Args:
        again: it is the next attempt, after a person decided `retry`.
    """
    intent = guard.intent("s", call_id, "send", {"what": "x"})
    kind = AuthorityKind.PROMPT
    if again:
        last = rows(guard)[-1]
        decision = (last.execution_id, last.attempt, Decision.RETRY, "me", "", guard.clock())
        guard.ledger.run(verbs.decide, *decision)
        kind = AuthorityKind.DECISION
    handle = guard.start(intent, Authority(kind=kind), retry=again)
    return run_protected(guard, handle, effect, _returned, _raised)


def _returned(value: Any) -> Outcome:
    return Outcome(state=State.SUCCEEDED, reason=Reason.RETURNED, snapshot=encode(value))


def _raised(exc: BaseException) -> Outcome:
    state = state_of(exc, external=True)
    reason = Reason.AMBIGUOUS if state is State.UNKNOWN else Reason.RAISED
    return Outcome(state=state, reason=reason, detail=type(exc).__name__)


def rows(guard: Guard) -> list[Execution]:
    """Return the attempts on record, in the order they were made."""
    return sorted(guard.ledger.known(all_rows()), key=lambda r: (r.dispatched_at, r.attempt))
