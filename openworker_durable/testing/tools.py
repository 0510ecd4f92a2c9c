"""The tools of a process under test: they act on the effect service, or read from it.

A scenario may name a function that makes more, to put a connector's own tool to the test:

    def my_tools(tools: Tools) -> list[ToolFunction]:
        def publish(page: str, key: str) -> dict[str, Any]:
            return my_connector.publish(page, send=lambda: tools.act("publish", key, page=page))
        return [tool(publish, metadata=ACTS)]
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ..guard import current_execution
from ..hosts.reference.tools import ToolFunction, ToolMetadata, tool
from .effects import FIND, READ, SEND, post
from .scenario import Scenario

ACTS = ToolMetadata(category="mail", risk_level="high", requires_approval=True)
READS = ToolMetadata(category="mail", risk_level="low")

SENDERS = ("send", "charge", "mark", "notify")
"""Tools with one effect each: (to, key)."""

MODES: dict[str, str] = {
    "timeout_before": "raises a timeout, nothing was done",
    "timeout_after": "raises a timeout after the effect",
    "dropped": "the effect is done, the connection is cut before the answer",
    "reset_after": "raises a connection reset after the effect",
    "refused": "raises connection refused, nothing was done",
    "invalid": "raises a ValueError, nothing was done",
    "denied": "raises a PermissionError, nothing was done",
    "odd": "the effect is done, what it returns cannot be encoded as it is",
}
"""What `flaky` can do."""

_BEFORE: dict[str, BaseException] = {
    "timeout_before": TimeoutError("timed out"),
    "refused": ConnectionRefusedError("connection refused"),
    "invalid": ValueError("invalid argument"),
    "denied": PermissionError("permission denied"),
}
_AFTER: dict[str, BaseException] = {
    "timeout_after": TimeoutError("timed out"),
    "reset_after": ConnectionResetError("connection reset"),
}


def acting(tools: list[ToolFunction]) -> frozenset[str]:
    """Return the names of the tools that ask before they act."""
    known = ((t.__name__, getattr(t, "__aisuite_tool_metadata__", None)) for t in tools)
    return frozenset(name for name, about in known if about and about.requires_approval)


class Tools:
    """The tools of one process.

    Args:
        url: the effect service.
        scenario: whose tools they are.
        hit: called with the names of the two crash points inside a tool.
    """

    def __init__(self, url: str, scenario: Scenario, hit: Callable[[str], None]) -> None:
        self.url, self.hit = url, hit
        self.about = {
            "world": scenario.world, "session": scenario.session, "durable": scenario.durable,
        }  # fmt: skip

    def all(self, more: str = "") -> list[ToolFunction]:
        """Return every tool.

        Args:
            more: `module:function` that makes more of them.
        """
        tools = [tool(self._sender(name), metadata=ACTS) for name in SENDERS]
        tools += [tool(self._flaky(), metadata=ACTS), tool(self._lookup(), metadata=READS)]
        if more:
            module, _, function = more.partition(":")
            tools += getattr(importlib.import_module(module), function)(self)
        return tools

    def act(self, name: str, key: str, **more: Any) -> dict[str, Any]:
        """Do one effect, through the two crash points inside a tool.

        Args:
            name: of the tool.
            key: by which the service counts it; unique to the call, and one of its arguments.
            more: whatever else is to be sent; with `idempotency_key=` the service does it once,
                with `reference=` it only keeps that.
        """
        self.hit("in_tool_before_effect")
        now = current_execution()
        ids = {"execution_id": now.execution_id, "attempt": now.attempt} if now else {}
        answer = post(self.url + SEND, {"tool": name, "key": key, **self.about, **ids, **more})
        self.hit("in_tool_after_effect")
        return answer

    def find(self, reference: str) -> dict[str, Any] | None:
        """Return the request that was carried out with a reference or a key, if one was."""
        asked = {"reference": reference, **self.about}
        found: dict[str, Any] | None = post(self.url + FIND, asked)["found"]
        return found

    def _sender(self, name: str) -> ToolFunction:
        def sender(to: str, key: str) -> dict[str, Any]:
            return {**self.act(name, key, to=to), "to": to}

        sender.__name__ = sender.__qualname__ = name
        sender.__doc__ = f"Do one {name}."
        return sender

    def _flaky(self) -> ToolFunction:
        def flaky(key: str, mode: str) -> Any:
            """Do one thing, or fail at it, as the mode says."""
            if mode in _BEFORE:
                raise _BEFORE[mode]
            answer = self.act("flaky", key, drop=mode == "dropped")
            if mode in _AFTER:
                raise _AFTER[mode]
            if mode == "odd":
                answer.update(cycle=answer, bytes=b"\x00\xff", text="\ud800", number=float("nan"))
            return answer

        return flaky

    def _lookup(self) -> ToolFunction:
        def lookup(q: str) -> str:
            """Look something up."""
            post(self.url + READ, {"key": q, **self.about})
            return f"found {q}"

        return lookup
