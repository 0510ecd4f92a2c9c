"""The verbs of what is found out afterwards: what each changes, refuses, and leaves in the audit.

A probe is claimed by exactly one, counts once it has begun, and its word counts only while the
attempt is unknown and undecided.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import finding, rows, verbs
from openworker_durable.ledger import Ledger
from openworker_durable.models import Execution, Intent
from openworker_durable.policy import ABSENT
from openworker_durable.snapshot import encode
from openworker_durable.states import Decision, Reason, State
from tests.contract.kit import ME, audits, in_state, plain, row_of, started, succeeded, table
from tests.contract.policies import KEYED, again, attempts, ended, lost, probed, probing, under


def schedule(led: Ledger, what: Intent, at: float = 3.0) -> bool:
    return led.run(finding.schedule_probe, what.execution_id, 1, at)


def postpone(led: Ledger, what: Intent, at: float = 8.0) -> bool:
    return led.run(finding.postpone, what.execution_id, 1, at)


def begin(led: Ledger, what: Intent, probes: int = 0, next_at: float = 9.0) -> bool:
    return led.run(finding.begin_probe, what.execution_id, 1, probes, next_at)


def end(
    led: Ledger, what: Intent, probes: int = 1, word: str = "cannot_tell", note: str = "",
    next_at: float | None = 12.0,
) -> bool:  # fmt: skip
    return led.run(finding.end_probe, what.execution_id, 1, probes, word, note, next_at)


def give_up(led: Ledger, what: Intent, why: str = "nothing can look it up") -> bool:
    return led.run(finding.end_probes, what.execution_id, 1, why)


def absent(led: Ledger, what: Intent, probes: int = 1) -> bool:
    return led.run(finding.found_absent, what.execution_id, 1, probes)


def find_out(led: Ledger, what: Intent, result: Any = "paid") -> bool:
    return led.run(finding.found_out, what.execution_id, 1, 1, ended(result), "happened", 5.0)


def told(ledger: Ledger) -> list[tuple[str, str, str]]:
    """Return the audit rows of probes: status, reason, call."""
    return [
        (a["status"], a["reason"], a["tool_call_id"])
        for a in audits(ledger.path)
        if a["stage"] == "probe"
    ]


def schedule_of(row: Execution) -> tuple[float | None, int, str]:
    return (row.probe_at, row.probes, row.found)


# -- the first one
def test_a_first_probe_is_scheduled_once(ledger: Ledger) -> None:
    what = lost(ledger, under(KEYED))
    assert schedule(ledger, what, 3.0) is True
    assert schedule(ledger, what, 4.0) is False, "recovery runs twice"
    assert schedule_of(row_of(ledger, what)) == (3.0, 0, "")
    assert told(ledger) == [("scheduled", "", "call_1")]


@pytest.mark.parametrize("over", [begin, give_up])
def test_a_schedule_that_began_or_is_over_does_not_begin_anew(
    ledger: Ledger, over: Callable[[Ledger, Intent], bool]
) -> None:
    what = probing(ledger)
    assert over(ledger, what)
    assert schedule(ledger, what) is False


def test_a_first_probe_can_be_put_off_until_it_has_begun(ledger: Ledger) -> None:
    what = lost(ledger, under(KEYED))
    assert postpone(ledger, what) is False, "none is scheduled"
    schedule(ledger, what)
    assert postpone(ledger, what, 8.0) is True
    assert schedule_of(row_of(ledger, what)) == (8.0, 0, "")
    begin(ledger, what, next_at=9.0)
    assert postpone(ledger, what, 99.0) is False
    assert row_of(ledger, what).probe_at == 9.0


def test_what_is_due_is_found_the_longest_overdue_first(ledger: Ledger) -> None:
    whats = [probing(ledger, call, at) for call, at in (("a", 5.0), ("b", 3.0), ("c", 7.1))]
    due = ledger.known(rows.probes_due(7.0))
    assert [r.tool_call_id for r in due] == ["b", "a"]
    give_up(ledger, whats[1])
    assert [r.tool_call_id for r in ledger.known(rows.probes_due(7.1))] == ["a", "c"]


# -- claiming
def test_g9_a_probe_is_claimed_by_exactly_one_of_two(ledger: Ledger, path: Path) -> None:
    """Two processes saw the same schedule; each has a connection of its own."""
    other = Ledger(path)
    try:
        for number in range(30):
            what = probing(ledger, f"c{number}")
            futures = [
                led.submit(finding.begin_probe, what.execution_id, 1, 0, at)
                for led, at in ((ledger, 9.0), (other, 11.0))
            ]
            won = [f.result() for f in futures]
            assert sorted(won) == [False, True]
            assert schedule_of(row_of(ledger, what)) == (9.0 if won[0] else 11.0, 1, "")
    finally:
        other.close()


def test_a_probe_counts_once_it_has_begun(ledger: Ledger) -> None:
    """Whoever dies in each of them does not ask for ever."""
    what = probing(ledger)
    for number in range(5):
        assert begin(ledger, what, number, 10.0 + number)
        assert schedule_of(row_of(ledger, what)) == (10.0 + number, number + 1, "")


@pytest.mark.parametrize("seen", [-1, 1, 2])
def test_a_claim_by_a_count_that_is_not_the_rows_is_none(ledger: Ledger, seen: int) -> None:
    what = probing(ledger)
    assert begin(ledger, what, seen) is False
    assert schedule_of(row_of(ledger, what)) == (3.0, 0, "")


def test_nothing_is_claimed_that_is_not_scheduled(ledger: Ledger) -> None:
    assert begin(ledger, lost(ledger, under(KEYED))) is False


# -- a probe that settled nothing
@pytest.mark.parametrize("next_at", [12.0, None])
def test_a_probe_that_settled_nothing_is_told_and_the_next_one_set(
    ledger: Ledger, next_at: float | None
) -> None:
    what = probed(ledger)
    assert end(ledger, what, 1, "pending", "the bank is at it", next_at) is True
    row = row_of(ledger, what)
    assert schedule_of(row) == (next_at, 1, "pending: the bank is at it")
    assert row.undecided
    assert told(ledger)[1:] == [("pending", "probe 1", "call_1")]


def test_the_person_is_told_how_often_was_asked(ledger: Ledger) -> None:
    what = probed(ledger)
    end(ledger, what, 1, "cannot_tell", "busy")
    begin(ledger, what, 1)
    assert end(ledger, what, 2, "error: TimeoutError", next_at=None)
    assert row_of(ledger, what).found == "error: TimeoutError, asked 2 times"
    assert told(ledger)[1:] == [
        ("cannot_tell", "probe 1", "call_1"), ("error: TimeoutError", "probe 2", "call_1"),
    ]  # fmt: skip


def test_an_old_probe_does_not_speak_for_a_newer_one(ledger: Ledger) -> None:
    """It came back after its deadline, when the next one was under way."""
    what = probed(ledger)
    begin(ledger, what, 1, 20.0)
    assert end(ledger, what, 1, next_at=None) is False
    assert absent(ledger, what, 1) is False
    assert schedule_of(row_of(ledger, what)) == (20.0, 2, "")


def test_a_probe_that_came_back_after_the_schedule_was_given_up_begins_it_not_anew(
    ledger: Ledger,
) -> None:
    what = probed(ledger)
    give_up(ledger, what, "its session is gone")
    assert end(ledger, what, 1) is False
    assert absent(ledger, what, 1) is False
    assert schedule_of(row_of(ledger, what)) == (None, 1, "its session is gone")


def test_g10_what_is_kept_of_a_note_is_one_short_line(ledger: Ledger) -> None:
    what = probed(ledger)
    end(ledger, what, 1, "w" * 500, "first\nsecond\t" + "n" * 5000, None)
    row = row_of(ledger, what)
    assert len(row.found) <= finding.FOUND_CHARACTERS
    assert row.found.isprintable()
    assert len(told(ledger)[1][0]) == 60
    other = probed(ledger, "c2")
    end(ledger, other, 1, "cannot_tell", "first\nsecond", None)
    assert row_of(ledger, other).found.isprintable()
    third = probed(ledger, "c3")
    give_up(ledger, third, "y" * 5000)
    assert len(row_of(ledger, third).found) == finding.FOUND_CHARACTERS


# -- giving up
def test_a_schedule_that_is_given_up_before_the_first_probe_is_used_up(ledger: Ledger) -> None:
    """Otherwise recovery would schedule it again, for ever."""
    what = probing(ledger)
    assert give_up(ledger, what, "nothing can look it up any more") is True
    assert schedule_of(row_of(ledger, what)) == (None, 1, "nothing can look it up any more")
    assert told(ledger)[1:] == [("over", "nothing can look it up any more", "call_1")]
    assert give_up(ledger, what, "again") is False
    assert len(told(ledger)) == 2


def test_what_the_last_probe_said_stays_where_nothing_better_is_known(ledger: Ledger) -> None:
    what = probed(ledger)
    end(ledger, what, 1, "pending", "the bank is at it")
    assert give_up(ledger, what, "")
    assert schedule_of(row_of(ledger, what)) == (None, 1, "pending: the bank is at it")


# -- absence
def test_g3_proved_absence_ends_the_schedule_and_settles_nothing(ledger: Ledger) -> None:
    what = probed(ledger)
    assert absent(ledger, what) is True
    row = row_of(ledger, what)
    assert schedule_of(row) == (None, 1, ABSENT)
    assert row.undecided
    assert told(ledger)[1:] == [(ABSENT, "probe 1; it may be made again", "call_1")]


def test_g3_no_word_of_a_probe_that_proved_nothing_is_taken_for_proof(ledger: Ledger) -> None:
    what = probed(ledger)
    end(ledger, what, 1, "not seen, which proves nothing yet", "", None)
    assert row_of(ledger, what).found != ABSENT
    other = probed(ledger, "c2")
    give_up(ledger, other, "it did not happen, I guess")
    assert row_of(ledger, other).found != ABSENT


# -- settling
@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
def test_what_a_probe_found_settles_the_attempt_with_its_result(
    ledger: Ledger, state: State
) -> None:
    what = probed(ledger)
    found = ended({"number": 7}, state)
    done = ledger.run(finding.found_out, what.execution_id, 1, 1, found, "happened", 5.0)
    assert done is True
    row = row_of(ledger, what)
    assert (row.state, row.reason, row.ended_at) == (state, Reason.RECONCILED.value, 5.0)
    assert schedule_of(row) == (None, 1, "probe 1")
    assert (row.decision, row.owner, row.acknowledged_at) == (None, ME, None)
    shot = ledger.first(rows.stored_snapshot(what.execution_id, 1))
    assert (shot, row.snapshot_digest) == (encode({"number": 7}), encode({"number": 7}).digest)
    assert told(ledger)[1:] == [(state.value, "probe 1: happened", "call_1")]
    assert table(ledger.path, "execution_evidence") == []


def test_g10_no_audit_row_holds_what_a_probe_found(ledger: Ledger) -> None:
    find_out(ledger, probed(ledger), "s3cr3t-r3sult")
    assert not [a for a in audits(ledger.path) if "s3cr3t" in repr(a)]


@pytest.mark.parametrize(
    ("decision", "says"),
    [(Decision.HAPPENED, "agrees with"), (Decision.DROP, "contradicts"),
     (Decision.RETRY, "contradicts")],
)  # fmt: skip
def test_c20_what_is_found_out_after_a_decision_is_kept_as_evidence(
    ledger: Ledger, decision: Decision, says: str
) -> None:
    what = probed(ledger)
    ledger.run(verbs.decide, what.execution_id, 1, decision, "me", "", 4.0)
    before = row_of(ledger, what)
    for _ in range(2):
        assert find_out(ledger, what) is False
    assert row_of(ledger, what) == before
    (kept,) = table(ledger.path, "execution_evidence")
    assert (kept["attempt"], kept["state"], kept["reason"]) == (1, "succeeded", "reconciled")
    assert (kept["digest"], kept["source"]) == (encode("paid").digest, "")
    late = [a for a in audits(ledger.path) if a["stage"] == "late_evidence"]
    assert [a["reason"] for a in late] == [f"{says} the record"]


def test_c20_what_is_found_out_of_a_superseded_attempt_is_a_conflict(ledger: Ledger) -> None:
    what = probed(ledger)
    end(ledger, what, next_at=None)
    with plain(ledger.path) as conn:
        conn.execute("UPDATE tool_executions SET policy = ?", (str(KEYED),))
    again(ledger, under(KEYED))
    assert find_out(ledger, what) is False
    (conflict,) = ledger.known(rows.conflicts())
    assert (conflict.attempt, conflict.state) == (1, "succeeded")
    assert [r.state for r in attempts(ledger, what)] == [State.UNKNOWN, State.DISPATCHED]


def test_what_is_found_out_twice_is_found_out_once(ledger: Ledger) -> None:
    what = probed(ledger)
    assert find_out(ledger, what) is True
    before = row_of(ledger, what)
    assert find_out(ledger, what, "another result") is False
    assert row_of(ledger, what) == before
    assert len(told(ledger)) == 2


# -- what every one of them refuses
ALL: dict[str, Callable[[Ledger, Intent], bool]] = {
    "schedule": schedule, "postpone": postpone, "begin": begin, "end": end, "give up": give_up,
    "absent": absent, "find out": find_out,
}  # fmt: skip


def decide(decision: Decision) -> Callable[[Ledger, Intent], object]:
    word = (decision, "me", "", 4.0)
    return lambda led, what: led.run(verbs.decide, what.execution_id, 1, *word)


def finish(led: Ledger, what: Intent) -> object:
    return led.run(verbs.finish, what.execution_id, 1, ME, succeeded(), 4.0)


SETTLED: dict[str, Callable[[Ledger, Intent], object]] = {
    "happened": decide(Decision.HAPPENED), "drop": decide(Decision.DROP),
    "retry": decide(Decision.RETRY), "finished": finish, "found out": find_out,
}  # fmt: skip


@pytest.mark.parametrize("way", SETTLED)
@pytest.mark.parametrize("verb", ALL)
@pytest.mark.parametrize("make", [lost, probing, probed], ids=["lost", "scheduled", "begun"])
def test_c20_no_verb_touches_a_settled_attempt(
    ledger: Ledger, make: Any, verb: str, way: str
) -> None:
    what = lost(ledger, under(KEYED)) if make is lost else make(ledger)
    SETTLED[way](ledger, what)
    before = row_of(ledger, what)
    assert before.probe_at is None, "its schedule is over"
    assert ALL[verb](ledger, what) is False
    assert row_of(ledger, what) == before


@pytest.mark.parametrize("verb", ALL)
def test_no_verb_touches_an_attempt_that_still_runs(ledger: Ledger, verb: str) -> None:
    what = started(ledger)
    before = row_of(ledger, what)
    assert ALL[verb](ledger, what) is False
    assert row_of(ledger, what) == before


@pytest.mark.parametrize("verb", ALL)
def test_of_an_attempt_that_is_not_there_nothing_is_written(ledger: Ledger, verb: str) -> None:
    what = in_state(ledger, State.SUCCEEDED, "other")
    count = len(audits(ledger.path))
    assert ALL[verb](ledger, under(KEYED)) is False
    assert attempts(ledger, under(KEYED)) == []
    assert len(audits(ledger.path)) == count
    assert row_of(ledger, what).state is State.SUCCEEDED


@pytest.mark.parametrize("verb", ["schedule", "begin", "find out"])
@pytest.mark.parametrize("make", [lost, probing], ids=["lost", "scheduled"])
def test_rule_1_a_newer_protocols_row_is_not_touched(ledger: Ledger, make: Any, verb: str) -> None:
    what = lost(ledger, under(KEYED)) if make is lost else make(ledger)
    with plain(ledger.path) as conn:
        conn.execute("UPDATE tool_executions SET protocol_version = 99")
    before = row_of(ledger, what)
    assert ALL[verb](ledger, what) is False
    assert row_of(ledger, what) == before
