"""What a call's requests prove, told try by try."""

from __future__ import annotations

import contextvars
import socket

import pytest

from openworker_durable.models import Outcome
from openworker_durable.snapshot import Snapshot
from openworker_durable.states import Reason, State
from openworker_durable.witness import Witness, witness

RETURNED = Outcome(state=State.SUCCEEDED, reason=Reason.RETURNED, snapshot=Snapshot("text"))
RAISED = Outcome(
    state=State.FAILED, reason=Reason.RAISED, snapshot=Snapshot("no"), detail="ValueError"
)


def watched(*tries: tuple[str, str, int | BaseException]) -> Witness:
    """Return a witness of tries: method, what, and the status or exception it ended with."""
    seen = Witness()
    for method, what, end in tries:
        noted = seen.sent(method, what)
        if isinstance(end, int):
            noted.answered(end)
        else:
            noted.failed(end)
    return seen


LOST = TimeoutError()


@pytest.mark.parametrize(
    ("tries", "state", "detail"),
    [
        ([], State.SUCCEEDED, ""),
        ([("POST", "a", 200)], State.SUCCEEDED, ""),
        ([("POST", "a", 500)], State.SUCCEEDED, ""),
        ([("POST", "a", LOST)], State.UNKNOWN, "POST: TimeoutError"),
        ([("patch", "a", ConnectionResetError())], State.UNKNOWN, "PATCH: ConnectionResetError"),
        ([("POST", "a", ConnectionRefusedError())], State.SUCCEEDED, ""),
        ([("POST", "a", socket.gaierror())], State.SUCCEEDED, ""),
        ([("GET", "a", LOST)], State.SUCCEEDED, ""),
        ([("PUT", "a", LOST), ("DELETE", "a", LOST)], State.SUCCEEDED, ""),
        ([("POST", "a", LOST), ("GET", "b", 200)], State.UNKNOWN, "POST: TimeoutError"),
        ([("POST", "a", LOST), ("POST", "a", 409)], State.UNKNOWN,
         "POST: TimeoutError, sent 2 times"),
        ([("POST", "a", LOST), ("POST", "b", 200)], State.UNKNOWN, "POST: TimeoutError"),
        ([("POST", "a", 200), ("POST", "a", LOST)], State.UNKNOWN,
         "POST: TimeoutError, sent 2 times"),
        ([("POST", "a", LOST), ("POST", "a", 200)], State.SUCCEEDED,
         "POST, sent 2 times; an earlier one may have been carried out too"),
    ],
)  # fmt: skip
def test_c04_what_was_sent_says_more_than_what_the_tool_returned(
    tries: list[tuple[str, str, int | BaseException]], state: State, detail: str
) -> None:
    judged = watched(*tries).judge(RETURNED)
    assert (judged.state, judged.detail) == (state, detail)
    assert (judged.snapshot is None) == (state is State.UNKNOWN)


@pytest.mark.parametrize(
    ("tries", "state"),
    [
        ([], State.FAILED),
        ([("POST", "a", 403)], State.FAILED),
        ([("POST", "a", ConnectionRefusedError())], State.FAILED),
        ([("POST", "token", 200), ("POST", "a", 403)], State.FAILED),
        ([("POST", "token", 200), ("POST", "a", ConnectionRefusedError())], State.FAILED),
        ([("GET", "a", 200)], State.FAILED),
        ([("POST", "a", 201)], State.UNKNOWN),
        ([("POST", "a", LOST)], State.UNKNOWN),
    ],
)
def test_c29_a_failure_stays_one_unless_its_last_request_was_accepted(
    tries: list[tuple[str, str, int | BaseException]], state: State
) -> None:
    assert watched(*tries).judge(RAISED).state is state


def test_a_reply_that_refuses_and_breaks_off_has_refused() -> None:
    seen = Witness()
    refused = seen.sent("POST", "a")
    refused.answered(403)
    refused.failed(LOST)
    assert seen.judge(RETURNED) == RETURNED
    accepted = seen.sent("POST", "b")
    accepted.answered(200)
    accepted.failed(LOST)
    assert seen.judge(RETURNED).state is State.UNKNOWN


def test_an_unknown_outcome_stays_as_it_is() -> None:
    unknown = Outcome(state=State.UNKNOWN, reason=Reason.AMBIGUOUS, detail="EOFError")
    assert watched(("POST", "a", 200)).judge(unknown) == unknown


def test_it_watches_its_own_block_only() -> None:
    outer, inner = Witness(), Witness()
    assert witness() is None
    with outer.watching():
        with inner.watching():
            assert witness() is inner
        assert witness() is outer
    assert witness() is None


def test_what_is_sent_after_the_call_is_not_noted() -> None:
    seen = Witness()
    with seen.watching():
        later = contextvars.copy_context()
    later.run(lambda: (witness() or Witness()).sent("POST", "a").failed(LOST))
    assert seen.tries == []
    assert seen.judge(RETURNED) == RETURNED
