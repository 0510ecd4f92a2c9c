"""Random walks: the real record against a small pure model of what it must hold."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from openworker_durable import rows, verbs
from openworker_durable.errors import AlreadyDecided, AlreadyRecorded, NotOwner, Refused
from openworker_durable.ledger import DATABASE, Ledger
from openworker_durable.models import Execution
from openworker_durable.states import FINAL_DECISIONS, KNOWN, Decision, Reason, State, state_after
from tests.contract.kit import OUTCOMES, audits, intent, item

CALLS = ("c0", "c1", "c2")
ENDS = (State.SUCCEEDED, State.FAILED, State.UNKNOWN)
REACHED: Counter[int] = Counter()
"""How often the walks dispatched a first, second, third ... attempt."""

EXECUTION = {call: intent(call).execution_id for call in CALLS}


@dataclass(frozen=True)
class Attempt:
    """What the model knows of one row."""

    state: State
    owner: str
    decision: Decision | None = None
    acknowledged: float | None = None
    superseded: bool = False

    @property
    def undecided(self) -> bool:
        return self.state is State.UNKNOWN and self.decision is None

    @property
    def closable(self) -> bool:
        return self.state is not State.DISPATCHED and not self.undecided


@dataclass
class Model:
    """The rows as they must be, and how much was dispatched and decided."""

    attempts: dict[str, list[Attempt]] = field(default_factory=lambda: {c: [] for c in CALLS})
    dispatched: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CALLS, 0))
    retries: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CALLS, 0))
    audits: int = 0

    def put(self, call: str, attempt: int, **changes: Any) -> None:
        rows_ = self.attempts[call]
        rows_[attempt - 1] = replace(rows_[attempt - 1], **changes)


class Walk(RuleBasedStateMachine):
    """Two processes, each a ledger and an owner name, on one file; either may crash."""

    calls = st.sampled_from(CALLS)
    sides = st.sampled_from((0, 1))
    ends = st.sampled_from(ENDS)

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / DATABASE
        self.lives = 0
        self.now = 1.0
        self.model = Model()
        self.ledgers = [Ledger(self.path), Ledger(self.path)]
        self.owners = [self.life(), self.life()]
        self.terminal: dict[tuple[str, int], Execution] = {}

    def life(self) -> str:
        self.lives += 1
        return f"owner-{self.lives}"

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def teardown(self) -> None:
        if hasattr(self, "ledgers"):
            for ledger in self.ledgers:
                ledger.close()
            self.folder.cleanup()

    def there(self, call: str) -> list[Attempt]:
        return self.model.attempts[call]

    @rule(call=calls, side=sides)
    def dispatch(self, call: str, side: int) -> None:
        args = (intent(call), item(), self.owners[side], self.tick())
        if self.there(call):
            with pytest.raises(AlreadyRecorded):
                self.ledgers[side].run(verbs.dispatch, *args)
            return
        assert self.ledgers[side].run(verbs.dispatch, *args) == 1
        REACHED[1] += 1
        self.there(call).append(Attempt(State.DISPATCHED, self.owners[side]))
        self.model.dispatched[call] += 1
        self.model.audits += 1

    @rule(call=calls, side=sides)
    def vouch(self, call: str, side: int) -> None:
        self.ledgers[side].run(
            verbs.vouch, intent(call), Reason.LEGACY, "", self.owners[side], self.tick()
        )
        if not self.there(call):
            self.there(call).append(Attempt(State.UNKNOWN, self.owners[side]))
            self.model.audits += 1

    @rule(call=calls, side=sides, end=ends, back=st.sampled_from((0, 1)))
    def finish(self, call: str, side: int, end: State, back: int) -> None:
        """End the latest attempt, or (late) one before it."""
        attempt = len(self.there(call)) - back
        args = (EXECUTION[call], attempt, self.owners[side], OUTCOMES[end](), self.tick())
        row = self.there(call)[attempt - 1] if attempt >= 1 else None
        if row is None or row.owner != self.owners[side]:
            with pytest.raises(Refused if row is None else NotOwner):
                self.ledgers[side].run(verbs.finish, *args)
            return
        late = row.undecided and not row.superseded and end in KNOWN
        if row.state is State.DISPATCHED or late:
            assert self.ledgers[side].run(verbs.finish, *args) is end
            self.model.put(call, attempt, state=end)
            self.model.audits += 1
            return
        known = len(self.ledgers[0].fetch(rows.evidence(EXECUTION[call])))
        assert self.ledgers[side].run(verbs.finish, *args) is row.state
        more = len(self.ledgers[0].fetch(rows.evidence(EXECUTION[call]))) - known
        assert more in (0, 1)
        assert more == 0 or row.decision is not None or row.state is not end
        self.model.audits += more

    @rule(call=calls, side=sides, end=ends)
    def finish_as_owner(self, call: str, side: int, end: State) -> None:
        """The same, with the owner that really has it, so that it lands more often."""
        if self.there(call) and self.there(call)[-1].owner in self.owners:
            self.finish(call, self.owners.index(self.there(call)[-1].owner), end, 0)

    @rule(side=sides)
    def crash(self, side: int) -> None:
        """Drop a process without finishing anything, and start another."""
        self.ledgers[side].close()
        self.ledgers[side] = Ledger(self.path)
        self.owners[side] = self.life()

    @rule(call=calls, side=sides)
    def lose(self, call: str, side: int) -> None:
        """Recovery declares an attempt unknown only when its owner is gone."""
        attempt = len(self.there(call))
        if not attempt:
            return
        row = self.there(call)[-1]
        owner = self.owners[side] if row.owner in self.owners else row.owner
        lost = self.ledgers[side].run(
            verbs.lose, EXECUTION[call], attempt, owner, Reason.OWNER_DIED, self.tick()
        )
        assert lost is (row.state is State.DISPATCHED and row.owner == owner)
        if lost:
            self.model.put(call, attempt, state=State.UNKNOWN)
            self.model.audits += 1

    @rule(call=calls, side=sides, decision=st.sampled_from(Decision), back=st.sampled_from((0, 1)))
    def decide(self, call: str, side: int, decision: Decision, back: int) -> None:
        attempt = len(self.there(call)) - back
        row = self.there(call)[attempt - 1] if attempt >= 1 else None
        args = (EXECUTION[call], attempt, decision, "me", "", self.tick())
        if row is None or not row.undecided:
            open_or_none = row is None or row.state is State.DISPATCHED
            with pytest.raises(Refused) as refused:
                self.ledgers[side].run(verbs.decide, *args)
            assert (type(refused.value) is AlreadyDecided) is not open_or_none
            return
        self.ledgers[side].run(verbs.decide, *args)
        self.model.audits += 1
        if decision in FINAL_DECISIONS:
            self.model.put(call, attempt, decision=decision, state=state_after(decision))
            self.model.retries[call] += decision is Decision.RETRY

    @rule(call=calls, side=sides)
    def retry(self, call: str, side: int) -> None:
        there = self.there(call)
        args = (intent(call), self.owners[side], self.tick())
        if not there or there[-1].decision is not Decision.RETRY:
            with pytest.raises(Refused):
                self.ledgers[side].run(verbs.retry, *args)
            return
        assert self.ledgers[side].run(verbs.retry, *args) == len(there) + 1
        REACHED[len(there) + 1] += 1
        self.model.put(call, len(there), superseded=True)
        there.append(Attempt(State.DISPATCHED, self.owners[side]))
        self.model.dispatched[call] += 1
        self.model.audits += 1

    @rule(call=calls, side=sides, steps=st.integers(1, 6))
    def on_to_the_next_attempt(self, call: str, side: int, steps: int) -> None:
        """Go the shortest way to a retry from wherever the call is; each step is checked."""
        for _ in range(steps):
            there = self.there(call)
            if not there:
                self.dispatch(call, side)
            elif there[-1].state is State.DISPATCHED:
                self.finish_as_owner(call, side, State.UNKNOWN)
                self.lose(call, side)
            elif there[-1].undecided:
                self.decide(call, side, Decision.RETRY, 0)
            else:
                self.retry(call, side)
            self.the_record_is_as_the_model_says()

    @rule(call=calls, side=sides, back=st.sampled_from((0, 1)))
    def acknowledge(self, call: str, side: int, back: int) -> None:
        attempt, at = len(self.there(call)) - back, self.tick()
        row = self.there(call)[attempt - 1] if attempt >= 1 else None
        landed = self.ledgers[side].run(verbs.acknowledge, EXECUTION[call], attempt, at)
        assert landed is (row is not None and row.closable and row.acknowledged is None)
        if landed:
            self.model.put(call, attempt, acknowledged=at)

    @precondition(lambda self: self.model.audits)
    @rule(side=sides, age=st.integers(0, 20))
    def expire(self, side: int, age: int) -> None:
        before = self.now - age
        _, dropped = self.ledgers[side].run(verbs.expire, before, before)
        gone = [
            call for call, found in self.model.attempts.items()
            if found and all(r.acknowledged is not None and r.acknowledged < before for r in found)
        ]  # fmt: skip
        assert dropped == sum(len(self.there(call)) for call in gone)
        for call in gone:
            # An expired execution is begun afresh by the walk; a host never reuses its id.
            self.model.attempts[call] = []
            self.model.dispatched[call] = self.model.retries[call] = 0
            for key in [k for k in self.terminal if k[0] == EXECUTION[call]]:
                del self.terminal[key]

    # -- after every step
    @invariant()
    def the_record_is_as_the_model_says(self) -> None:
        if not hasattr(self, "ledgers"):
            return
        for call in CALLS:
            found = self.ledgers[0].known(rows.attempts(EXECUTION[call]))
            assert [r.attempt for r in found] == list(range(1, len(found) + 1)), "contiguous"
            assert [
                Attempt(State(r.state), r.owner, r.decision, r.acknowledged_at, r.superseded)
                for r in found
            ] == self.there(call)
            assert all(r.superseded for r in found[:-1])
            assert not any(r.superseded for r in found[-1:]), "one latest attempt"
            assert self.model.dispatched[call] <= 1 + self.model.retries[call]
            for row in found:
                if row.state in KNOWN:
                    settled = row.model_copy(update={"acknowledged_at": None})
                    assert self.terminal.setdefault(row.key, settled) == settled
        still = {r.key for r in self.ledgers[1].known(rows.open_all())}
        assert still == {
            (EXECUTION[call], i + 1)
            for call in CALLS
            for i, row in enumerate(self.there(call))
            if row.acknowledged is None
        }
        assert (len(audits(self.path)) if self.path.exists() else 0) == self.model.audits


def test_g3_g5_g9_random_walks_of_the_record_agree_with_the_model() -> None:
    REACHED.clear()
    run_state_machine_as_test(
        Walk,
        settings=settings(
            max_examples=80,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert REACHED[2] >= 10, "the walks are deep enough to retry"
