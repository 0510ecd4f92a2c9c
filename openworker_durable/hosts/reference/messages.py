"""Shapes of the messages that an engine appends to its thread."""

from __future__ import annotations

import json
import time
from typing import Any

from .providers import AssistantTurn, Message, ToolCall

RAW_KEPT = 200
SIDECARS = frozenset({"source", "_display", "ts", "reasoning", "usage"})


def user_message(content: Any, source: Any = None, display: str | None = None) -> Message:
    """Return a line of the person, with its display-only companions."""
    message: Message = {"role": "user", "content": content, "ts": time.time()}
    if source is not None:
        message["source"] = source
    if display is not None:
        message["_display"] = display
    return message


def assistant_message(turn: AssistantTurn, model: str | None = None) -> Message:
    """Return a reply as the thread keeps it; arguments become JSON text."""
    message: Message = {"role": "assistant", "content": turn.text or "", "ts": time.time()}
    if turn.usage is not None:
        message["usage"] = dict(turn.usage.as_dict(), model=model)
    if turn.reasoning:
        message["reasoning"] = turn.reasoning
    message.update(turn.extras)
    if turn.tool_calls:
        message["tool_calls"] = [_stored_call(call) for call in turn.tool_calls]
    return message


def _stored_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def read_call(stored: dict[str, Any]) -> ToolCall:
    """Return a call of the thread; arguments that are not JSON are lost, as in the host."""
    function = stored.get("function") or {}
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        arguments = {}
    return ToolCall(stored.get("id", ""), function.get("name", ""), arguments)


def tool_result_message(tool_call: ToolCall, result: Any) -> Message:
    """Return the answer to a call that ran."""
    answer: Message = {"role": "tool", "tool_call_id": tool_call.id, "content": _as_text(result)}
    return {**answer, "ts": time.time()}


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


def tool_error_message(tool_call: ToolCall, reason: str) -> Message:
    """Return the answer to a call that did not run."""
    return tool_result_message(tool_call, {"error": "not executed", "reason": reason})


def notice_message(kind: str, text: str | None = None) -> Message:
    """Return a mark for the person, which no provider sees."""
    notice: Message = {"role": "notice", "kind": kind, "ts": time.time()}
    return {**notice, "text": text} if text else notice


def preview(value: Any, max_chars: int = 300) -> str:
    """Return a value as one short line."""
    line = "\\n".join(_as_text(value).split("\n"))
    return line if len(line) <= max_chars else f"{line[: max_chars - 3]}..."


def is_mangled(tool_call: ToolCall) -> bool:
    """Tell whether a provider could not parse the arguments."""
    return list(tool_call.arguments or ()) == ["_raw"]


def shorten_mangled(turn: AssistantTurn) -> None:
    """Cut the unparsed text of a reply's calls down to a sample."""
    for call in filter(is_mangled, turn.tool_calls):
        call.arguments = {"_raw": str(call.arguments["_raw"] or "")[:RAW_KEPT]}


def outbound(messages: list[Message]) -> list[Message]:
    """Drop what only the person may see; everything else goes to the provider as it is."""
    return [
        {key: value for key, value in message.items() if key not in SIDECARS}
        for message in messages
        if message.get("role") != "notice"
    ]


def last_text(messages: list[Message]) -> str | None:
    """Return what the model said last."""
    replies = [m["content"] for m in messages if m.get("role") == "assistant" and m["content"]]
    return replies[-1] if replies else None
