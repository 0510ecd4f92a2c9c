"""Short ways to say what tests of policies and probes need: calls lost, made again, looked up."""

from __future__ import annotations

from typing import Any

from openworker_durable import finding, rows, verbs
from openworker_durable.ledger import Ledger
from openworker_durable.models import Authority, Execution, Intent, Outcome, ToolIdentity
from openworker_durable.policy import RecoveryPolicy, idempotent, reconcile
from openworker_durable.snapshot import encode
from openworker_durable.states import AuthorityKind, Reason, State
from tests.contract.kit import ME, intent, item

DAY = 86400.0
KEYED = idempotent(key_valid=DAY)
LOOKED_UP = reconcile(then=KEYED)
BY_POLICY = Authority(kind=AuthorityKind.POLICY)
TOOL = ToolIdentity(
    source="mcp:bank", name="mcp__bank__pay", version="1", schema_digest="5" * 16, account="ann"
)


def under(
    policy: RecoveryPolicy, call: str = "call_1", *, tool: ToolIdentity = TOOL, **more: Any
) -> Intent:
    """Return the intent of one call of `TOOL` whose policy is this one now."""
    return intent(call, policy=str(policy), **more).model_copy(update={"tool": tool})


def lost(ledger: Ledger, what: Intent, at: float = 1.0, attempt: int = 1) -> Intent:
    """Lose an attempt of a call right away; the first one is dispatched before."""
    if attempt == 1:
        ledger.run(verbs.dispatch, what, item(), ME, at)
    assert ledger.run(verbs.lose, what.execution_id, attempt, ME, Reason.OWNER_DIED, at)
    return what


def again(ledger: Ledger, what: Intent, at: float = 2.0, owner: str = ME) -> int:
    """Ask for the next attempt by policy; returns its number."""
    return ledger.run(verbs.retry, what, owner, at, BY_POLICY)


def probing(ledger: Ledger, call: str = "call_1", at: float = 3.0) -> Intent:
    """Return a lost call whose first probe is scheduled."""
    what = lost(ledger, under(LOOKED_UP, call))
    assert ledger.run(finding.schedule_probe, what.execution_id, 1, at)
    return what


def probed(ledger: Ledger, call: str = "call_1", *, next_at: float = 9.0) -> Intent:
    """Return a lost call whose first probe has begun."""
    what = probing(ledger, call)
    assert ledger.run(finding.begin_probe, what.execution_id, 1, 0, next_at)
    return what


def ended(result: Any = "paid", state: State = State.SUCCEEDED) -> Outcome:
    """Return what a probe that settles an attempt found."""
    return Outcome(state=state, reason=Reason.RECONCILED, snapshot=encode(result))


def attempts(ledger: Ledger, what: Intent) -> list[Execution]:
    return ledger.known(rows.attempts(what.execution_id))
