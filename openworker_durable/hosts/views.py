"""What live windows of a session are told of a turn that went on by itself.

The host's windows show whatever a turn is said to start with as a line of the person; a
resumed turn starts with nothing of theirs. A follow-up is shown as the card it is after a
reload.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from .. import thread

START = "turn_start"


async def relay(manager: Any, session_id: str, engine: Any, events: AsyncIterator[Any]) -> None:
    """Tell the session's windows of a turn, to its end."""
    shown = _after_last_reply(engine.messages)
    async for event in events:
        # What an event tells of stands in the thread already, behind a follow-up before it.
        for message in engine.messages[shown:]:
            if thread.is_follow_up(message):
                card = {"type": START, "data": {"source": message["source"]}}
                await manager.broadcast_session(session_id, card)
        shown = len(engine.messages)
        data = {} if event.type.value == START else event.data
        await manager.broadcast_session(session_id, {"type": event.type.value, "data": data})


async def turn_done(manager: Any, session_id: str) -> None:
    """Tell the session's windows that nothing of it runs any more."""
    await manager.broadcast_session(session_id, {"type": "turn_done", "data": {}})


def _after_last_reply(messages: list[thread.Message]) -> int:
    """Return the place after the last thing the model said: windows have seen all before it."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "assistant":
            return index + 1
    return 0
