"""Policies: what they refuse, how they are kept, and what the stricter of two allows."""

from __future__ import annotations

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
        lambda: reconcile(then=reconcile()),
        lambda: RecoveryPolicy(attempts=2),
        lambda: RecoveryPolicy(key_valid=DAY),
    ],
)
def test_contradictions_are_refused(make: Any) -> None:
    with pytest.raises(PolicyError):
        make()


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


def test_a_tool_that_is_not_seen_yet_waits() -> None:
    policy = idempotent(key_valid=DAY)
    assert standing([kept(policy)], None, 2.0) is Standing.LATER
    assert standing([kept(manual())], None, 2.0) is Standing.PERSON
