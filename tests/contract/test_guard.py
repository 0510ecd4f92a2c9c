"""The one door: dispatch before the effect, outcome after it, and no second time."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from openworker_durable import _db, rows, verbs
from openworker_durable.errors import (
    AlreadyRecorded,
    ApprovalSpent,
    HandleSpent,
    LedgerUnavailable,
    Refused,
)
from openworker_durable.guard import ExecutionContext, Guard, current_execution, run_protected
from openworker_durable.ledger import Ledger
from openworker_durable.models import Outcome
from openworker_durable.outcomes import state_of
from openworker_durable.states import Decision, Reason, State
from tests.contract.kit import (
    ME,
    OTHER,
    audits,
    decided,
    failed,
    in_state,
    intent,
    item,
    locked,
    plain,
    row_of,
    started,
    succeeded,
    unknown,
)


@pytest.fixture
def guard(ledger: Ledger) -> Guard:
    return Guard(ledger, ME, clock=lambda: 5.0)


def raised(exc: BaseException) -> Outcome:
    return Outcome(state=state_of(exc, external=True), reason=Reason.RAISED)


def protected(guard: Guard, effect: Any, call: str = "call_1") -> Any:
    """Make one protected call as a host does."""
    handle = guard.start(intent(call), item())
    return run_protected(guard, handle, effect, succeeded, raised)


def test_g1_start_writes_nothing_and_dispatch_commits_the_row(guard: Guard) -> None:
    handle = guard.start(intent(), item())
    assert guard.ledger.commits == 0
    assert guard.dispatch(handle) == 1
    row = row_of(guard.ledger, intent())
    assert (row.state, row.owner, row.dispatched_at) == (State.DISPATCHED, ME, 5.0)
    assert guard.finish(handle, succeeded()) is State.SUCCEEDED
    assert row_of(guard.ledger, intent()).state is State.SUCCEEDED


def test_g1_the_row_is_committed_before_the_effect(guard: Guard) -> None:
    def effect() -> str:
        with plain(guard.ledger.path) as conn:
            return str(conn.execute("SELECT state FROM tool_executions").fetchone()["state"])

    assert protected(guard, effect) == "dispatched"


def test_g8_no_transaction_is_open_while_the_effect_runs(guard: Guard) -> None:
    def effect() -> str:
        with plain(guard.ledger.path, timeout=0) as conn:
            conn.execute("BEGIN EXCLUSIVE")
            conn.execute("ROLLBACK")
        return "done"

    assert protected(guard, effect) == "done"


def test_a_handle_is_used_once(guard: Guard) -> None:
    handle = guard.start(intent(), item())
    with pytest.raises(HandleSpent):
        guard.finish(handle, succeeded())
    guard.dispatch(handle)
    with pytest.raises(HandleSpent):
        guard.dispatch(handle)
    assert guard.running(handle.execution_id, 1) is not None
    guard.finish(handle, succeeded())
    with pytest.raises(HandleSpent):
        guard.finish(handle, failed())
    with pytest.raises(HandleSpent):
        guard.dispatch(handle)
    assert row_of(guard.ledger, intent()).state is State.SUCCEEDED


@pytest.mark.parametrize("state", State)
def test_g1_a_second_start_finds_the_record_and_gets_no_handle(guard: Guard, state: State) -> None:
    in_state(guard.ledger, state)
    with pytest.raises(AlreadyRecorded, match=f"found {state.value}"):
        guard.start(intent(), item())


def test_g1_a_second_start_finds_the_claim_before_any_row_is_there(guard: Guard) -> None:
    handle = guard.start(intent(), item())
    for retry in (False, True):
        with pytest.raises(AlreadyRecorded):
            guard.start(intent(), item(), retry=retry)
    guard.abandon(handle)
    guard.start(intent(), item())


def test_g1_c06_two_threads_that_start_at_once_make_one_call(guard: Guard) -> None:
    effects: list[int] = []
    for n in range(20):
        gate = threading.Barrier(2)
        lost: list[int] = []

        def one(n: int = n, gate: threading.Barrier = gate, lost: list[int] = lost) -> None:
            gate.wait(10)
            try:
                protected(guard, lambda: effects.append(n), f"c{n}")
            except AlreadyRecorded:
                lost.append(n)

        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert lost == [n]
    assert effects == list(range(20))


def test_g1_c06_two_owners_that_start_at_once_make_one_call(ledger: Ledger) -> None:
    """Both saw no row; the record itself lets only one of them dispatch."""
    mine, theirs = Guard(ledger, ME), Guard(ledger, OTHER)
    one, other = mine.start(intent(), item()), theirs.start(intent(), item())
    assert mine.dispatch(one) == 1
    effects: list[str] = []
    with pytest.raises(AlreadyRecorded):
        run_protected(theirs, other, lambda: effects.append("x"), succeeded, raised)
    assert effects == []
    assert row_of(ledger, intent()).owner == ME


def test_g5_a_spent_approval_makes_no_call_and_can_be_asked_again(guard: Guard) -> None:
    spent = item()
    guard.dispatch(guard.start(intent("c1"), spent))
    handle = guard.start(intent("c2"), spent)
    effects: list[str] = []
    with pytest.raises(ApprovalSpent):
        run_protected(guard, handle, lambda: effects.append("x"), succeeded, raised)
    assert effects == []
    assert guard.dispatch(guard.start(intent("c2"), item())) == 1


def test_g7_c15_ledger_down_before_the_call_the_call_is_not_made(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_db, "BUSY_SECONDS", 0.01)
    started(guard.ledger, "warm")
    effects: list[str] = []
    with locked(guard.ledger.path), pytest.raises(LedgerUnavailable):
        protected(guard, lambda: effects.append("x"))
    assert effects == []
    assert guard.ledger.known(rows.attempts(intent().execution_id)) == []
    protected(guard, lambda: effects.append("x"))
    assert effects == ["x"]


# -- how an attempt ends
@pytest.mark.parametrize(
    ("exc", "state"),
    [
        (ValueError("bad"), State.FAILED),
        (TimeoutError(), State.UNKNOWN),
        (KeyboardInterrupt(), State.UNKNOWN),
        (SystemExit(1), State.UNKNOWN),
        (asyncio.CancelledError(), State.UNKNOWN),
    ],
)
def test_every_exception_settles_the_attempt_and_is_raised_on(
    guard: Guard, exc: BaseException, state: State
) -> None:
    def effect() -> None:
        raise exc

    with pytest.raises(type(exc)) as found:
        protected(guard, effect)
    assert found.value is exc
    assert row_of(guard.ledger, intent()).state is state
    assert guard.running(intent().execution_id, 1) is None
    assert current_execution() is None


def test_rule_5_running_ends_with_the_attempt(guard: Guard) -> None:
    handle = guard.start(intent(), item())
    assert guard.running(handle.execution_id, 1) is None
    guard.dispatch(handle)
    future = guard.running(handle.execution_id, 1)
    assert future is not None
    assert not future.done()
    guard.finish(handle, unknown())
    assert future.result(0) is None
    assert guard.running(handle.execution_id, 1) is None


def test_g9_an_outcome_that_the_record_refuses_is_no_error_of_the_call(
    guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process declared this owner dead and took the row: the result is still given."""
    handle = guard.start(intent(), item())
    guard.dispatch(handle)
    with plain(guard.ledger.path) as conn:
        conn.execute("UPDATE tool_executions SET owner = 'somebody'")
    assert guard.finish(handle, succeeded("canary")) is State.SUCCEEDED
    assert guard.kept(handle.execution_id, 1) is None
    assert "canary" not in caplog.text
    assert row_of(guard.ledger, intent()).state is State.DISPATCHED


def test_c20_an_outcome_after_a_decision_keeps_the_decision(guard: Guard) -> None:
    handle = guard.start(intent(), item())
    guard.dispatch(handle)
    name = handle.execution_id
    guard.ledger.run(verbs.lose, name, 1, ME, Reason.EVIDENCE_LOST, 6.0)
    guard.ledger.run(verbs.decide, name, 1, Decision.DROP, "me", "", 7.0)
    assert guard.finish(handle, succeeded()) is State.FAILED
    assert len(guard.ledger.fetch(rows.evidence(name))) == 1


# -- retries go through the same door
def test_g3_retry_goes_through_the_same_door(guard: Guard) -> None:
    what = decided(guard.ledger, Decision.RETRY)
    with pytest.raises(AlreadyRecorded):
        guard.start(what, item())
    handle = guard.start(what, item(), retry=True)
    with guard.call(handle) as context:
        assert context == ExecutionContext(what.execution_id, 2)
    guard.finish(handle, succeeded())
    assert row_of(guard.ledger, what, 2).state is State.SUCCEEDED


@pytest.mark.parametrize("state", [None, *State])
def test_g3_retry_without_a_decision_makes_no_call(guard: Guard, state: State | None) -> None:
    what = in_state(guard.ledger, state) if state else intent()
    handle = guard.start(what, item(), retry=True)
    effects: list[str] = []
    with pytest.raises(Refused):
        run_protected(guard, handle, lambda: effects.append("x"), succeeded, raised)
    assert effects == []
    assert len(guard.ledger.known(rows.attempts(what.execution_id))) == (1 if state else 0)


# -- what the adapter may know
def test_g6_current_execution_inside_and_outside(guard: Guard) -> None:
    assert current_execution() is None
    seen = protected(guard, current_execution)
    assert seen == ExecutionContext(intent().execution_id, 1)
    assert seen.idempotency_key == intent().execution_id
    assert current_execution() is None


def test_g6_current_execution_in_threads_that_inherit_the_context(guard: Guard) -> None:
    seen: dict[str, ExecutionContext | None] = {}

    def look(name: str) -> None:
        seen[name] = current_execution()

    def effect() -> None:
        context = contextvars.copy_context()
        threads = [
            threading.Thread(target=context.run, args=(look, "inherits")),
            threading.Thread(target=look, args=("does not",)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    protected(guard, effect)
    assert seen == {"inherits": ExecutionContext(intent().execution_id, 1), "does not": None}


async def test_g6_current_execution_in_asyncio_to_thread(guard: Guard) -> None:
    def call(name: str) -> str:
        seen = protected(guard, current_execution, name)
        assert isinstance(seen, ExecutionContext)
        return seen.execution_id

    names = [f"c{i}" for i in range(4)]
    found = await asyncio.gather(*(asyncio.to_thread(call, name) for name in names))
    assert found == [intent(name).execution_id for name in names]

    handle = guard.start(intent("x"), item())
    with guard.call(handle):
        assert await asyncio.to_thread(current_execution) == current_execution() is not None
    assert await asyncio.to_thread(current_execution) is None


def test_g10_one_call_leaves_two_audit_rows(guard: Guard) -> None:
    protected(guard, lambda: "done")
    found = audits(guard.ledger.path)
    assert [(x["stage"], x["status"], x["attempt"]) for x in found] == [
        ("dispatched", "dispatched", 1), ("outcome", "succeeded", 1),
    ]  # fmt: skip
