"""Reading and repairing a conversation: one answer per call, in its place (G14)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openworker_durable.identity import CallRef
from openworker_durable.recovery import Answer
from openworker_durable.snapshot import Snapshot
from openworker_durable.thread import (
    INTERRUPTED,
    MARK,
    NOT_STARTED,
    PROVISIONAL,
    Message,
    Reply,
    answer_of,
    call_refs,
    carried_outcomes,
    ends_in_follow_up,
    find_call,
    follow_up_keys,
    follow_up_message,
    is_follow_up,
    mark_of,
    model_called_since,
    pairing_faults,
    replies,
    result_message,
    tool_message,
    trailing_reply,
    used_call_ids,
    with_answers,
)


def user(text: str = "hi") -> Message:
    return {"role": "user", "content": text}


def notice() -> Message:
    return {"role": "notice", "content": "a card"}


def says(text: str = "ok") -> Message:
    return {"role": "assistant", "content": text}


def calls(*ids: str, arguments: Any = "{}") -> Message:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": "pay", "arguments": arguments}}
            for i in ids
        ],
    }


def result(call_id: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": "done"}


def provisional(call_id: str) -> Message:
    return tool_message(call_id, "may have happened", PROVISIONAL, 1.0, execution_id="x", attempt=1)


def follow_up(kind: str = "happened", carries: int = 0) -> Message:
    return follow_up_message("text", "card", 1.0, "x", 1, kind, carries)


def trailing(messages: list[Message]) -> Reply:
    reply = trailing_reply(messages)
    assert reply is not None
    return reply


# -- reading
def test_trailing_reply_and_its_answers() -> None:
    messages = [user(), says(), calls("a", "b"), result("b"), notice()]
    reply = trailing(messages)
    assert (reply.index, reply.ordinal, reply.answers) == (2, 1, {"b": 3})
    assert [c.call_id for c in reply.calls] == ["a", "b"]
    assert (reply.user_line, reply.trailing, reply.answered) == (False, True, False)
    assert trailing([*messages, result("a")]).answered


def test_no_trailing_reply_once_the_model_spoke_again() -> None:
    assert trailing_reply([user(), calls("a"), result("a"), says()]) is None
    assert trailing_reply([]) is None
    assert trailing_reply([user()]) is None


def test_a_user_line_is_a_persons_and_not_a_follow_up() -> None:
    assert not trailing([calls("a"), provisional("a"), follow_up()]).user_line
    assert trailing([calls("a"), provisional("a"), follow_up(), user()]).user_line


def test_replies_yields_each_and_marks_the_last_one_trailing() -> None:
    messages = [calls("a"), result("a"), says(), calls("b"), user(), calls("c"), result("c")]
    found = list(replies(messages))
    assert [(r.index, r.ordinal, r.trailing) for r in found] == [
        (0, 0, False), (3, 2, False), (5, 3, True),
    ]  # fmt: skip
    assert [r.answers for r in found] == [{"a": 1}, {}, {"c": 6}]
    assert found[1].user_line
    assert found[2] == trailing(messages)


def test_find_call_takes_the_last_reply_that_makes_it() -> None:
    messages = [calls("a"), result("a"), calls("b", "a"), user()]
    found = find_call(messages, "a")
    assert found is not None
    assert (found[0].index, found[1]) == (2, CallRef("a", "pay", "{}"))
    assert find_call(messages, "z") is None


def test_call_refs_of_any_stored_shape() -> None:
    assert call_refs(calls("a", arguments='{"n":1')) == (CallRef("a", "pay", '{"n":1'),)
    assert call_refs(calls("a", arguments={"n": 1})) == (CallRef("a", "pay", '{"n": 1}'),)
    assert call_refs(calls("a", arguments=None)) == (CallRef("a", "pay", "{}"),)
    assert call_refs({"role": "assistant", "tool_calls": [{}]}) == (CallRef("", "", "{}"),)
    assert call_refs(says()) == ()


def test_c02_used_call_ids_are_those_of_calls_and_of_answers() -> None:
    assert used_call_ids([calls("a", "b"), result("z"), user()]) == {"a", "b", "z"}


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (result("a"), Answer.OTHER),
        (provisional("a"), Answer.PROVISIONAL),
        (tool_message("a", "t", NOT_STARTED, 1.0), Answer.OTHER),
        (tool_message("a", "t", INTERRUPTED, 1.0), Answer.OTHER),
        (result_message("a", Snapshot("t"), 1.0, "x", 1), Answer.RESULT),
        (result_message("a", Snapshot("t"), 1.0, "x", 2), Answer.OTHER),
        ({**result("a"), "source": "odd"}, Answer.OTHER),
        ({**result("a"), "source": {MARK: ["odd"]}}, Answer.OTHER),
    ],
)
def test_c09_answer_of_takes_only_our_mark_for_a_result(message: Message, answer: Answer) -> None:
    messages = [calls("a"), message]
    assert answer_of(messages, trailing(messages), "a", 1) is answer


def test_answer_of_an_unanswered_call_is_none_and_attempt_0_takes_any() -> None:
    messages = [calls("a", "b"), result_message("a", Snapshot("t"), 1.0, "x", 2)]
    assert answer_of(messages, trailing(messages), "b") is Answer.NONE
    assert answer_of(messages, trailing(messages), "a") is Answer.RESULT
    for foreign in (result("a"), tool_message("a", "t", NOT_STARTED, 1.0)):
        assert (
            answer_of([calls("a"), foreign], trailing([calls("a"), foreign]), "a") is Answer.OTHER
        )


def test_g2_result_message_is_the_stored_text_and_display() -> None:
    message = result_message("a", Snapshot("text", '{"k": 1}'), 5.0, "x", 3)
    assert message["content"] == "text"
    assert message["_display"] == {"k": 1}
    assert (message["role"], message["tool_call_id"], message["ts"]) == ("tool", "a", 5.0)
    assert "_display" not in result_message("a", Snapshot("text"), 5.0, "x", 3)
    assert set(message) <= {"role", "tool_call_id", "content", "ts", "source", "_display"}


def test_follow_up_keys_and_what_they_carry() -> None:
    messages = [
        calls("a"), result_message("a", Snapshot("t"), 1.0, "y", 2), follow_up("happened"),
        follow_up("retry", carries=2), user(), result("z"), provisional("q"),
    ]  # fmt: skip
    assert follow_up_keys(messages) == {("x", 1, "happened"), ("x", 1, "retry")}
    assert carried_outcomes(messages) == {("y", 2), ("x", 2)}


def test_follow_up_reaches_providers_as_a_user_message_with_a_card() -> None:
    message = follow_up("drop")
    assert (message["role"], message["content"], message["_display"]) == ("user", "text", "card")
    assert mark_of(message)["decision"] == "drop"
    assert is_follow_up(message)
    assert not is_follow_up(provisional("a"))
    assert mark_of(user()) == {}


def test_rule_14_model_called_since() -> None:
    assert model_called_since([])
    assert model_called_since([user(), says(), notice()])
    assert model_called_since([calls("a")])
    assert not model_called_since([calls("a"), result("a"), notice()])
    assert not model_called_since([says(), follow_up()])
    assert not model_called_since([user()])


def test_ends_in_follow_up_looks_through_notices_only() -> None:
    assert ends_in_follow_up([user(), follow_up(), notice(), notice()])
    assert not ends_in_follow_up([follow_up(), user()])
    assert not ends_in_follow_up([follow_up(), result("a")])
    assert not ends_in_follow_up([notice()])
    assert not ends_in_follow_up([])


# -- repairing
REPAIRS: dict[str, tuple[list[Message], list[str], int]] = {
    "nothing after it": ([user(), calls("a")], ["a"], 2),
    "after the others": ([calls("a", "b", "c"), result("b")], ["a", "c"], 2),
    "before the user line": ([calls("a"), user("continue")], ["a"], 1),
    "after the others, before the user line": (
        [calls("a", "b"), result("a"), user(), user()], ["b"], 2),
    "before a follow-up": ([calls("a", "b"), result("a"), follow_up()], ["b"], 2),
    "before a follow-up and a user line": (
        [calls("a", "b"), result("a"), follow_up(), user()], ["b"], 2),
    "before a notice": ([calls("a", "b"), result("a"), notice()], ["b"], 2),
    "past a notice among the answers": (
        [calls("a", "b"), notice(), result("a"), notice(), user()], ["b"], 3),
    "a notice before the user line": ([calls("a"), notice(), user()], ["a"], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", REPAIRS)
def test_g14_c08_answers_are_put_in_where_providers_want_them(name: str) -> None:
    messages, missing, where = REPAIRS[name]
    before = copy.deepcopy(messages)
    out, at = with_answers(messages, trailing(messages), [result(i) for i in missing])
    assert at == where
    assert out == before[:at] + [result(i) for i in missing] + before[at:]
    assert messages == before, "the old list is not touched"
    assert pairing_faults(out) == []


def test_g14_c08_an_answer_that_stands_too_late_does_not_draw_others_after_the_user_line() -> None:
    messages = [calls("a", "b"), user(), result("a")]
    out, at = with_answers(messages, trailing(messages), [result("b")])
    assert at == 1
    assert out[1] == result("b")


@pytest.mark.parametrize(
    "messages",
    [
        [calls("a")],
        [calls("a"), user(), result("a")],
        [calls("a", "b"), result("a"), says()],
        [calls("a"), result("a"), result("a")],
        [result("a")],
        [calls("a"), calls("b"), result("a"), result("b")],
        [calls("a"), result("b")],
        [calls("a", "a"), result("a")],
        [calls("a"), follow_up(), result("a")],
    ],
)
def test_g14_pairing_faults_sees_what_a_provider_rejects(messages: list[Message]) -> None:
    assert pairing_faults(messages) != []


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [user(), calls("a", "b"), result("b"), result("a"), user()],
        [calls("a"), notice(), result("a"), says(), calls("c"), result("c"), follow_up()],
        [calls("a", "a"), result("a"), result("a")],
    ],
)
def test_g14_pairing_faults_accepts_what_providers_accept(messages: list[Message]) -> None:
    assert pairing_faults(messages) == []


@given(
    st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, unique=True),
    st.data(),
)
def test_g14_repaired_threads_pair_whatever_follows_the_reply(
    ids: list[str], data: st.DataObject
) -> None:
    answered = data.draw(st.lists(st.sampled_from(ids), unique=True))
    between = st.lists(st.builds(notice), max_size=2)
    tail = st.lists(st.sampled_from(["notice", "user", "follow"]), max_size=3)
    made = {"notice": notice, "user": user, "follow": follow_up}
    messages = [user(), says(), calls(*ids)]
    for i in answered:
        messages += [*data.draw(between), result(i)]
    messages += [made[word]() for word in data.draw(tail)]
    reply = trailing(messages)
    missing = [result(i) for i in ids if i not in answered]
    out, at = with_answers(messages, reply, missing)
    assert pairing_faults(out) == []
    assert [m for m in out if m not in missing] == messages
    assert out[at : at + len(missing)] == missing
