"""A halted session on either host, and a chat that records what is said in it.

The call was dispatched by a process that is gone; the sweep has raised its item. The same
tests run on the reference host and, where it can be imported, on OpenWorker itself.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openworker_durable import Authority, AuthorityKind, record_in
from openworker_durable.hosts.names import HostNames
from openworker_durable.models import Execution
from openworker_durable.rows import all_rows

SESSION = "s1"
RECORDS = {
    "the reference host": "openworker_durable.hosts.reference.sessions",
    "OpenWorker": "coworker.sessions",
}
PROVIDERS = {
    "the reference host": "openworker_durable.hosts.reference.providers",
    "OpenWorker": "coworker.providers",
}


@dataclass
class Chat:
    """Stands for the host's message gateway."""

    said: list[tuple[str, str]] = field(default_factory=list)
    buttons: list[tuple[str, str, list[Any]]] = field(default_factory=list)
    updates: list[str] = field(default_factory=list)
    rejected: list[Any] = field(default_factory=list)

    async def deliver(self, target: str, text: str) -> None:
        self.said.append((target, text))

    async def deliver_interactive(self, target: str, text: str, buttons: list[Any]) -> None:
        self.buttons.append((target, text, buttons))

    async def update_message(self, platform: str, chat: str, message: str, text: str) -> None:
        self.updates.append(text)

    async def reject_interaction(self, event: Any) -> None:
        self.rejected.append(event)

    async def stop(self) -> None:
        """Nothing runs."""


@dataclass
class Click:
    """A button pressed in a chat, with the fields both hosts read."""

    value: str
    user_id: str = "U1"
    platform: str = "slack"
    chat_id: str = "C1"
    team_id: str | None = None
    message_id: str = "m1"
    user_name: str = "Ann"


@dataclass
class Source:
    """Who wrote a chat message, and where."""

    user_id: str = "U1"
    platform: str = "slack"
    chat_id: str = "C1"
    team_id: str | None = None


@dataclass
class Line:
    """A chat message."""

    text: str
    source: Source = field(default_factory=Source)


def provider(names: HostNames, *calls: tuple[str, str, dict[str, Any]]) -> Any:
    """Return a model that makes `calls` (id, name, arguments), one a reply, then says "done"."""
    module = importlib.import_module(PROVIDERS[names.host])

    class Scripted(module.ProviderClient):  # type: ignore[misc, name-defined]  # known at run time
        """Goes by how many replies stand in the conversation, so that a restart changes nothing."""

        def capabilities(self, model: str) -> Any:
            base = importlib.import_module(f"{PROVIDERS[names.host]}.base")
            return base.ModelCapabilities()

        def complete(self, *, messages: list[Any], **_: Any) -> Any:
            said = sum(m["role"] == "assistant" for m in messages)
            if said >= len(calls):
                return module.AssistantTurn(text="done")
            call_id, name, arguments = calls[said]
            call = module.ToolCall(id=call_id, name=name, arguments=arguments)
            return module.AssistantTurn(tool_calls=[call], finish_reason="tool_calls")

        def stream(self, *, messages: list[Any], **more: Any) -> Any:
            yield module.StreamChunk(turn=self.complete(messages=messages, **more))

    return Scripted()


def _saved(names: HostNames, folder: Path) -> Any:
    call = {
        "id": "c1", "type": "function",
        "function": {"name": "send_mail", "arguments": json.dumps({"to": "ann"})},
    }  # fmt: skip
    record = importlib.import_module(RECORDS[names.host]).SessionRecord
    messages = [
        {"role": "user", "content": "mail ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    return record(
        session_id=SESSION, workspace=str(folder), model="x", mode="interactive", messages=messages
    )


def dispatched_and_gone(folder: Path) -> None:
    """Leave the row of a call whose process ended inside it."""
    with record_in(folder) as guard:
        intent = guard.intent(SESSION, "c1", "send_mail", {"to": "ann"})
        guard.dispatch(guard.start(intent, Authority(kind=AuthorityKind.PROMPT)))


async def halted(names: HostNames, folder: Path) -> Any:
    """Return a manager of an attached host whose one session waits for a decision."""
    dispatched_and_gone(folder)
    manager = names.load("manager")(
        workspace=str(folder), data_dir=str(folder), model="x", provider=provider(names)
    )
    manager.session_store.save(_saved(names, folder))
    manager.inbox_routing.set_binding("default", channel="slack", target="C1")
    manager.slack_approval_owner_ids = lambda team_id=None: {"U1"}
    manager.gateway = Chat()
    await manager._durable_runtime.sweep()
    return manager


def recovery_item(manager: Any) -> Any:
    """Return the one recovery item."""
    found = [i for i in manager.inbox.list() if i.kind == "recovery_required"]
    assert len(found) == 1
    return found[0]


def row(manager: Any) -> Execution:
    """Return the one row."""
    rows: list[Execution] = manager._durable_runtime.ledger.known(all_rows())
    assert len(rows) == 1
    return rows[0]
