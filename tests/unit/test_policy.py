"""Policies: what they refuse, how they are kept, and what the stricter of two allows."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from freezegun import freeze_time
from hypothesis import given
from hypothesis import strategies as st

from openworker_durable.clock import now
from openworker_durable.errors import PolicyError
from openworker_durable.models import Execution, ToolIdentity
from openworker_durable.policy import (
    ABSENT,
    MANUAL,
    Descriptor,
    PolicyKind,
    RecoveryPolicy,
    Standing,
    idempotent,
    key_usable,
    manual,
    parse,
    reconcile,
    standing,
    stricter,
)
from openworker_durable.states import Decision
from tests.unit.test_review import row

DAY = 86400.0
TOOL = ToolIdentity(name="pay")
START = datetime(2026, 3, 29, 0, 30, tzinfo=timezone.utc)
TICK = timedelta(microseconds=1)

VALIDITY = st.floats(min_value=1e-3, max_value=1e9)
KEYED = st.builds(
    idempotent, key_valid=VALIDITY, attempts=st.integers(2, 9), repeatable=st.booleans()
)
POLICIES = st.one_of(
    st.builds(manual, repeatable=st.booleans()),
    KEYED,
    st.builds(
        reconcile, then=st.none() | KEYED, attempts=st.integers(1, 9), repeatable=st.booleans()
    ),
)


def kept(policy: RecoveryPolicy, **more: Any) -> Execution:
    return row(policy=str(policy), attempt=1, **more)


@pytest.mark.parametrize(
    "make",
    [
        lambda: idempotent(key_valid=0),
        lambda: idempotent(key_valid=-1),
        lambda: idempotent(key_valid=float("nan")),
        lambda: idempotent(key_valid=DAY, attempts=1),
        lambda: idempotent(key_valid=DAY, attempts=0),
        lambda: reconcile(then=reconcile()),
        lambda: RecoveryPolicy(PolicyKind.RECONCILE, attempts=0),
        lambda: RecoveryPolicy(attempts=2),
        lambda: RecoveryPolicy(attempts=0),
        lambda: RecoveryPolicy(key_valid=DAY),
        lambda: RecoveryPolicy(PolicyKind.IDEMPOTENT),
        lambda: RecoveryPolicy(PolicyKind.RECONCILE, key_valid=DAY),
        lambda: RecoveryPolicy(PolicyKind.RECONCILE, PolicyKind.IDEMPOTENT, attempts=2),
        lambda: RecoveryPolicy(PolicyKind.RECONCILE, PolicyKind.IDEMPOTENT, DAY),
        lambda: RecoveryPolicy(PolicyKind.IDEMPOTENT, PolicyKind.IDEMPOTENT, DAY, 2),
        lambda: RecoveryPolicy(PolicyKind.MANUAL, PolicyKind.IDEMPOTENT, DAY, 2),
    ],
)
def test_contradictions_are_refused(make: Any) -> None:
    with pytest.raises(PolicyError):
        make()


def test_what_is_not_declared_is_manual() -> None:
    assert manual() == MANUAL == RecoveryPolicy()
    assert (MANUAL.sends_key, MANUAL.attempts, MANUAL.repeatable) == (False, 1, False)
    assert row().policy == str(MANUAL)


def test_the_more_attempts_count_of_a_lookup_and_of_what_follows_it() -> None:
    assert reconcile(then=idempotent(key_valid=DAY, attempts=4)).attempts == 4
    assert reconcile(then=idempotent(key_valid=DAY, attempts=4), attempts=6).attempts == 6
    assert reconcile().attempts == 1
    assert not reconcile(attempts=6).sends_key


@given(policy=POLICIES)
def test_without_a_lookup_only_what_follows_it_is_left(policy: RecoveryPolicy) -> None:
    left = policy.unprobed()
    assert left.kind is not PolicyKind.RECONCILE
    assert left.sends_key == policy.sends_key
    assert (left.key_valid, left.repeatable) == (policy.key_valid, policy.repeatable)
    assert left.attempts == (policy.attempts if policy.sends_key else 1)


@given(policy=POLICIES)
def test_a_policy_is_read_as_it_was_written(policy: RecoveryPolicy) -> None:
    assert parse(str(policy)) == policy


@given(text=st.text())
def test_anything_else_is_manual(text: str) -> None:
    found = parse(text)
    assert found == MANUAL or str(found) == text or parse(str(found)) == found


@pytest.mark.parametrize(
    "text", ["", "idempotent", "idempotent key_valid=x attempts=2", "reconcile then=reconcile",
             "Manual", "manual attempts=3", "idempotent key_valid=9 attempts=2 odd", "later"],
)  # fmt: skip
def test_g3_a_policy_that_cannot_be_read_is_manual(text: str) -> None:
    assert parse(text) == MANUAL


@given(one=POLICIES, other=POLICIES)
def test_g3_the_stricter_of_two_allows_nothing_that_one_of_them_does_not(
    one: RecoveryPolicy, other: RecoveryPolicy
) -> None:
    both = stricter(one, other)
    assert both == stricter(other, one)
    assert stricter(both, both) == both
    for policy in (one, other):
        assert both.attempts <= policy.attempts
        assert both.key_valid <= policy.key_valid or not both.sends_key
        assert not both.repeatable or policy.repeatable
        if policy.kind.value == "manual":
            assert both.kind.value == "manual"


LOOKED = st.fixed_dictionaries(
    {
        "probes": st.integers(0, 3),
        "probe_at": st.none() | st.just(1.0),
        "found": st.sampled_from(["", "cannot_tell", ABSENT]),
    }
)


@given(one=POLICIES, other=POLICIES, looked=LOOKED, attempt=st.integers(1, 9), age=VALIDITY)
def test_g3_what_the_stricter_of_two_repeats_each_of_them_would(
    one: RecoveryPolicy, other: RecoveryPolicy, looked: dict[str, Any], attempt: int, age: float
) -> None:
    """Proof that it did not happen is another ground than the key; it leaves the attempts."""
    first = row(attempt=1, dispatched_at=0.0)

    def says(policy: RecoveryPolicy) -> Standing:
        there = row(attempt=attempt, dispatched_at=0.0, policy=str(policy), **looked)
        return standing([first, there], Descriptor(TOOL, policy), age)

    if says(stricter(one, other)) is not Standing.AGAIN:
        return
    assert attempt < min(one.attempts, other.attempts)
    if looked["found"] != ABSENT:
        assert says(one) is says(other) is Standing.AGAIN


@given(one=POLICIES, other=POLICIES, looked=LOOKED, age=st.floats(0, 2 * DAY))
def test_g3_the_policy_at_dispatch_and_the_one_now_weigh_the_same(
    one: RecoveryPolicy, other: RecoveryPolicy, looked: dict[str, Any], age: float
) -> None:
    def says(then: RecoveryPolicy, now_: RecoveryPolicy) -> Standing:
        return standing(
            [kept(then, dispatched_at=0.0, **looked)], Descriptor(TOOL, now_), age
        )  # fmt: skip

    both = stricter(one, other)
    assert says(one, other) is says(other, one) is says(both, both)


EDGE = timedelta(seconds=DAY - 60)


@pytest.mark.parametrize(
    ("age", "usable"),
    [
        (timedelta(0), True),
        (-TICK, False),
        (EDGE - TICK, True),
        (EDGE, False),
        (EDGE + TICK, False),
    ],
)
def test_g3_a_key_is_usable_up_to_its_margin_and_not_a_tick_longer(
    age: timedelta, usable: bool
) -> None:
    with freeze_time(START):
        first = now()
    policy = idempotent(key_valid=DAY)
    with freeze_time(START + age):
        assert key_usable(policy, first, now()) is usable
        found = standing([kept(policy, dispatched_at=first)], Descriptor(TOOL, policy), now())
    assert found is (Standing.AGAIN if usable else Standing.PERSON)


@pytest.mark.parametrize("validity", [0.5, 30.0, 599.0, 600.0, 601.0, DAY, 366 * DAY])
def test_g3_the_margin_is_a_tenth_of_the_validity_and_at_most_a_minute(validity: float) -> None:
    edge = validity - min(validity / 10, 60)
    policy = idempotent(key_valid=validity)
    assert key_usable(policy, 0.0, math.nextafter(edge, 0.0))
    assert not key_usable(policy, 0.0, edge)


def test_g3_the_last_tick_of_the_stricter_policy_counts() -> None:
    then, after = idempotent(key_valid=DAY), idempotent(key_valid=3600)
    for recorded, now_ in ((then, after), (after, then)):
        first = [kept(recorded, dispatched_at=0.0)]
        assert standing(first, Descriptor(TOOL, now_), 3539.0) is Standing.AGAIN
        assert standing(first, Descriptor(TOOL, now_), 3540.0) is Standing.PERSON


def test_g3_a_key_from_the_future_asks_a_person_also_after_a_lookup() -> None:
    """The clock was set back since: nobody can tell how old the key is."""
    policy = reconcile(then=idempotent(key_valid=DAY))
    looked = kept(policy, dispatched_at=100.0, probes=1)
    assert standing([looked], Descriptor(TOOL, policy), 100.0) is Standing.AGAIN
    assert standing([looked], Descriptor(TOOL, policy), 99.0) is Standing.PERSON


def test_g3_the_age_of_a_key_is_that_of_the_first_dispatch() -> None:
    policy = idempotent(key_valid=DAY, attempts=5)
    first = kept(policy, dispatched_at=0.0, superseded=True)
    second = row(policy=str(policy), attempt=2, dispatched_at=DAY - 100)
    assert standing([first, second], Descriptor(TOOL, policy), DAY - 61) is Standing.AGAIN
    assert standing([first, second], Descriptor(TOOL, policy), DAY - 60) is Standing.PERSON


def test_g3_attempts_are_counted_in_the_record() -> None:
    policy = idempotent(key_valid=DAY, attempts=2)
    second = row(policy=str(policy), attempt=2, dispatched_at=1.0)
    assert standing([kept(policy), second], Descriptor(TOOL, policy), 2.0) is Standing.PERSON


@pytest.mark.parametrize(
    "other",
    [
        TOOL.model_copy(update={field: "other"})
        for field in ("source", "name", "version", "schema_digest", "account")
    ],
)
def test_g3_any_difference_of_the_tool_asks_a_person(other: ToolIdentity) -> None:
    policy = idempotent(key_valid=DAY)
    assert standing([kept(policy)], Descriptor(TOOL, policy), 2.0) is Standing.AGAIN
    assert standing([kept(policy)], Descriptor(other, policy), 2.0) is Standing.PERSON


@pytest.mark.parametrize(
    "change",
    [
        {"decision": Decision.DROP}, {"superseded": True}, {"protocol_version": 99},
        {"reason": "legacy"}, {"reason": "changed"}, {"reason": "lost_thread"},
        {"state": "succeeded"}, {"policy": "manual"}, {"policy": "something new"},
    ],
)  # fmt: skip
def test_what_no_policy_touches(change: dict[str, Any]) -> None:
    policy = idempotent(key_valid=DAY)
    assert standing([kept(policy)], Descriptor(TOOL, policy), 2.0) is Standing.AGAIN
    changed = kept(policy).model_copy(update=change)
    assert standing([changed], Descriptor(TOOL, policy), 2.0) is Standing.PERSON


def test_the_steps_of_a_lookup() -> None:
    policy = reconcile(then=idempotent(key_valid=DAY, attempts=2))

    def says(**more: Any) -> Standing:
        return standing([kept(policy, **more)], Descriptor(TOOL, policy), 2.0)

    assert says() is Standing.PROBE
    assert says(probe_at=1.0) is Standing.PROBING
    assert says(probe_at=1.0, probes=2) is Standing.PROBING
    assert says(probes=2, found="cannot_tell") is Standing.AGAIN
    assert says(probes=1, found=ABSENT) is Standing.AGAIN
    alone = reconcile()
    assert standing([kept(alone, probes=1)], Descriptor(TOOL, alone), 2.0) is Standing.PERSON
    absent = kept(alone, probes=1, found=ABSENT)
    assert standing([absent], Descriptor(TOOL, alone), 2.0) is Standing.PERSON


@pytest.mark.parametrize(
    ("policy", "attempt", "says"),
    [
        (reconcile(), 1, Standing.PERSON),
        (reconcile(attempts=2), 1, Standing.AGAIN),
        (reconcile(attempts=2), 2, Standing.PERSON),
        (reconcile(then=idempotent(key_valid=1.0, attempts=2)), 1, Standing.AGAIN),
        (idempotent(key_valid=1.0), 1, Standing.PERSON),
    ],
)
def test_g3_what_was_proved_absent_is_made_again_only_where_attempts_are_left(
    policy: RecoveryPolicy, attempt: int, says: Standing
) -> None:
    """The key is long past its end: the proof is what counts, and only under `reconcile`."""
    first = kept(policy, dispatched_at=0.0)
    there = row(
        policy=str(policy), attempt=attempt, dispatched_at=0.0, probes=1, found=ABSENT
    )  # fmt: skip
    assert standing([first, there], Descriptor(TOOL, policy), DAY) is says


@pytest.mark.parametrize("found", ["did_not_happen: not there", "Did_not_happen", "cannot_tell"])
def test_g3_only_the_word_of_proof_itself_is_proof(found: str) -> None:
    policy = reconcile(attempts=2)
    there = kept(policy, probes=1, found=found)
    assert standing([there], Descriptor(TOOL, policy), 2.0) is Standing.PERSON


def test_the_proof_of_another_attempt_is_none() -> None:
    policy = reconcile(attempts=5)
    first = kept(policy, probes=1, found=ABSENT, superseded=True)
    second = row(policy=str(policy), attempt=2, dispatched_at=2.0)
    assert standing([first, second], Descriptor(TOOL, policy), 3.0) is Standing.PROBE


@pytest.mark.parametrize("reason", ["owner_died", "evidence_lost", "ambiguous"])
def test_reasons_of_calls_that_were_made_under_this_record_may_be_settled(reason: str) -> None:
    policy = idempotent(key_valid=DAY)
    there = kept(policy, reason=reason)
    assert standing([there], Descriptor(TOOL, policy), 2.0) is Standing.AGAIN


def test_a_tool_that_is_not_seen_yet_waits() -> None:
    policy = idempotent(key_valid=DAY)
    assert standing([kept(policy)], None, 2.0) is Standing.LATER
    assert standing([kept(manual())], None, 2.0) is Standing.PERSON
