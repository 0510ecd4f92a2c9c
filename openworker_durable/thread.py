"""Reading and extending a saved conversation: pure functions over its list of messages.

What this package puts into a thread is marked in the message's `source` key, which the host
keeps to itself and never sends to a provider. A mark names its kind and (execution, attempt);
a tool message without one, for a recorded call, is somebody else's placeholder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .identity import CallRef
from .recovery import Answer
from .snapshot import Snapshot

Message = dict[str, Any]
MARK = "durable"
CONNECTOR = "openworker-durable"

RESULT = "result"
PROVISIONAL = "provisional"
NOT_STARTED = "not_started"
CHANGED = "changed"
INTERRUPTED = "interrupted"
REFUSED = "refused"
FOLLOW_UP = "follow_up"

_ANSWERS = {RESULT: Answer.RESULT, PROVISIONAL: Answer.PROVISIONAL}


@dataclass(frozen=True)
class Reply:
    """One assistant message with tool calls, and what answers it.

    Args:
        index: its place in the list.
        ordinal: how many assistant messages stand before it.
        calls: its calls in order.
        answers: place of the tool message for each answered call id.
        user_line: a person's message stands after it.
        trailing: no assistant message stands after it.
    """

    index: int
    ordinal: int
    calls: tuple[CallRef, ...]
    answers: dict[str, int]
    user_line: bool
    trailing: bool

    @property
    def answered(self) -> bool:
        """Say whether every call has its tool message."""
        return all(c.call_id in self.answers for c in self.calls)


def mark_of(message: Message) -> dict[str, Any]:
    """Return our mark on a message, empty when it has none."""
    source = message.get("source")
    mark = source.get(MARK) if isinstance(source, dict) else None
    return mark if isinstance(mark, dict) else {}


def is_follow_up(message: Message) -> bool:
    """Say whether a message is one of our follow-ups."""
    return mark_of(message).get("kind") == FOLLOW_UP


def call_refs(message: Message) -> tuple[CallRef, ...]:
    """Return the calls of an assistant message as it stores them."""
    out = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        raw = function.get("arguments")
        text = raw if isinstance(raw, str) else json.dumps(raw if raw is not None else {})
        out.append(CallRef(str(call.get("id") or ""), str(function.get("name") or ""), text))
    return tuple(out)


def used_call_ids(messages: Sequence[Message]) -> set[str]:
    """Return every call id that appears in the conversation."""
    used = {str(m["tool_call_id"]) for m in messages if m.get("tool_call_id")}
    for message in messages:
        used.update(ref.call_id for ref in call_refs(message))
    return used


def replies(messages: Sequence[Message]) -> Iterator[Reply]:
    """Yield every reply with calls, first to last."""
    assistants = [i for i, m in enumerate(messages) if m.get("role") == "assistant"]
    for ordinal, index in enumerate(assistants):
        if messages[index].get("tool_calls"):
            after = assistants[ordinal + 1] if ordinal + 1 < len(assistants) else len(messages)
            yield _reply(messages, index, ordinal, after, trailing=after == len(messages))


def _reply(
    messages: Sequence[Message], index: int, ordinal: int, until: int, *, trailing: bool
) -> Reply:
    answers: dict[str, int] = {}
    user_line = False
    for i in range(index + 1, until):
        message = messages[i]
        if message.get("role") == "tool":
            answers.setdefault(str(message.get("tool_call_id") or ""), i)
        elif message.get("role") == "user" and not is_follow_up(message):
            user_line = True
    return Reply(index, ordinal, call_refs(messages[index]), answers, user_line, trailing)


def trailing_reply(messages: Sequence[Message]) -> Reply | None:
    """Return the last reply with calls, when no assistant message stands after it."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") != "assistant":
            continue
        if not messages[index].get("tool_calls"):
            return None
        ordinal = sum(m.get("role") == "assistant" for m in messages[:index])
        return _reply(messages, index, ordinal, len(messages), trailing=True)
    return None


def find_call(messages: Sequence[Message], call_id: str) -> tuple[Reply, CallRef] | None:
    """Return the last reply that makes the call `call_id`, and the call."""
    found = None
    for reply in replies(messages):
        for ref in reply.calls:
            if ref.call_id == call_id:
                found = (reply, ref)
    return found


def answer_of(messages: Sequence[Message], reply: Reply, call_id: str, attempt: int = 0) -> Answer:
    """Say what stands in the thread for a call.

    Args:
        attempt: a result counts only for this attempt; 0: for any.
    """
    index = reply.answers.get(call_id)
    if index is None:
        return Answer.NONE
    mark = mark_of(messages[index])
    answer = _ANSWERS.get(str(mark.get("kind")), Answer.OTHER)
    if answer is Answer.RESULT and attempt and mark.get("attempt") != attempt:
        return Answer.OTHER
    return answer


def marked(kind: str, execution_id: str = "", attempt: int = 0) -> dict[str, Any]:
    """Return the `source` value that marks a message as ours."""
    mark: dict[str, Any] = {"kind": kind}
    if execution_id:
        mark |= {"execution_id": execution_id, "attempt": attempt}
    return {"connector": CONNECTOR, "kind": "durable", MARK: mark}


def tool_message(
    call_id: str, text: str, kind: str, at: float, *, execution_id: str = "", attempt: int = 0
) -> Message:
    """Return a tool message of ours in the host's shape."""
    return {
        "role": "tool",
        "tool_call_id": call_id,
        "content": text,
        "ts": at,
        "source": marked(kind, execution_id, attempt),
    }


def result_message(
    call_id: str, shot: Snapshot, at: float, execution_id: str, attempt: int
) -> Message:
    """Return the tool message rebuilt from a stored result, exactly as the model saw it live."""
    message = tool_message(
        call_id, shot.text, RESULT, at, execution_id=execution_id, attempt=attempt
    )
    if shot.display:
        message["_display"] = shot.display_value()
    return message


def follow_up_message(
    text: str, card: str, at: float, execution_id: str, attempt: int, kind: str, carries: int
) -> Message:
    """Return the message that carries a decision or a late outcome into the thread.

    Args:
        text: what the model reads.
        card: what the person sees.
        kind: `happened`, `drop`, `retry` or `outcome`; with execution and attempt, its key.
        carries: the attempt whose result the text holds, 0 for none.
    """
    source = marked(FOLLOW_UP, execution_id, attempt)
    source[MARK] |= {"decision": kind, "carries": carries}
    source |= {"sender_name": "OpenWorker", "channel_name": "recovery", "text": card, "ts": at}
    return {"role": "user", "content": text, "ts": at, "source": source, "_display": card}


def follow_up_keys(messages: Sequence[Message]) -> set[tuple[str, int, str]]:
    """Return the keys (execution, attempt, decision or `outcome`) that stand in the thread."""
    return {
        (str(m["execution_id"]), int(m["attempt"]), str(m.get("decision")))
        for m in map(mark_of, messages)
        if m.get("kind") == FOLLOW_UP
    }


def carried_outcomes(messages: Sequence[Message]) -> set[tuple[str, int]]:
    """Return (execution, attempt) of every outcome that stands in the thread."""
    out = set()
    for mark in map(mark_of, messages):
        if mark.get("kind") == RESULT:
            out.add((str(mark.get("execution_id")), int(mark.get("attempt") or 0)))
        elif mark.get("kind") == FOLLOW_UP and mark.get("carries"):
            out.add((str(mark.get("execution_id")), int(mark["carries"])))
    return out


def with_answers(
    messages: Sequence[Message], reply: Reply, answers: Sequence[Message]
) -> tuple[list[Message], int]:
    """Return the conversation with tool messages put in right after the reply's others.

    Returns:
        (new list, place of the first one put in).
    """
    at = max([reply.index, *reply.answers.values()]) + 1
    if reply.user_line:
        first_user = next(
            i for i in range(reply.index + 1, len(messages)) if messages[i].get("role") == "user"
        )
        at = min(at, first_user)
    return [*messages[:at], *answers, *messages[at:]], at


def model_called_since(messages: Sequence[Message]) -> bool:
    """Say whether the model has answered everything that stands in the thread."""
    for message in reversed(messages):
        role = message.get("role")
        if role == "assistant":
            return True
        if role in ("tool", "user"):
            return False
    return True


def ends_in_follow_up(messages: Sequence[Message]) -> bool:
    """Say whether the last message that providers see is one of our follow-ups."""
    for message in reversed(messages):
        if message.get("role") != "notice":
            return is_follow_up(message)
    return False


def pairing_faults(messages: Sequence[Message]) -> list[str]:
    """Return what a provider would reject: calls not answered exactly once, in time (G14)."""
    faults: list[str] = []
    waiting: list[str] = []
    for i, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            call_id = str(message.get("tool_call_id") or "")
            if call_id in waiting:
                waiting.remove(call_id)
            else:
                faults.append(f"message {i}: answers no open call")
        elif role in ("user", "assistant"):
            faults += [f"message {i}: call {c} is not answered before it" for c in waiting]
            waiting = [ref.call_id for ref in call_refs(message)] if role == "assistant" else []
    return faults + [f"call {c} is not answered" for c in waiting]
