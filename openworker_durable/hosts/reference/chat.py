"""A chat that inbox items can be mirrored to: bindings, buttons, replies, and who may answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .inbox import STATE_PENDING, InboxItem, InboxStore

_TOKEN = re.compile(r"\[ow:([0-9a-f]{6,})\]")
_YES = re.compile(r"\b(approve|allow|yes)\b")
_NO = re.compile(r"\b(deny|reject|no)\b")
_OWNED = frozenset({"approval", "directory", "plan"})


@dataclass
class Binding:
    """Where the items of one inbox are shown as well."""

    name: str
    channel: str | None = None
    target: str = ""


@dataclass
class InboxRouting:
    """Which inbox a session's items go to, and which chat each inbox is bound to."""

    _bindings: dict[str, Binding] = field(default_factory=lambda: {"default": Binding("default")})

    def set_binding(self, name: str, *, channel: str | None = None, target: str = "") -> None:
        """Bind an inbox to a chat."""
        self._bindings[name] = Binding(name, channel, target)

    def binding_for(self, name: str) -> Binding:
        """Return an inbox's binding, an empty one when it has none."""
        return self._bindings.get(name) or Binding(name)

    def route_for(self, session_id: str, persona_id: str | None = None) -> str:
        """Return the inbox of a session: here, always the one."""
        return "default"

    def bindings(self) -> list[dict[str, Any]]:
        """Return all bindings."""
        return [vars(binding) for binding in self._bindings.values()]


@dataclass
class Gateway:
    """Stands for the message platforms: keeps what was sent."""

    said: list[tuple[str, str]] = field(default_factory=list)
    shown: list[tuple[str, str, list[Any]]] = field(default_factory=list)
    updates: list[str] = field(default_factory=list)
    rejected: list[Any] = field(default_factory=list)

    async def deliver(self, target: str, text: str) -> None:
        """Send a text."""
        self.said.append((target, text))

    async def deliver_interactive(self, target: str, text: str, buttons: list[Any]) -> None:
        """Send a text with buttons."""
        self.shown.append((target, text, buttons))

    async def update_message(self, platform: str, chat: str, message: str, text: str) -> None:
        """Put a text in place of buttons."""
        self.updates.append(text)

    async def reject_interaction(self, event: Any) -> None:
        """Tell somebody, in private, that this was not theirs to press."""
        self.rejected.append(event)

    async def stop(self) -> None:
        """Nothing runs."""


class Chat:
    """The chat half of `SessionManager`, whose constructor sets the attributes."""

    inbox: InboxStore
    inbox_routing: InboxRouting
    gateway: Gateway | None
    resolve_inbox: Callable[[str, str], Awaitable[bool]]

    def slack_approval_owner_ids(self, team_id: str | None = None) -> set[str]:
        """Return who may answer prompts in a Slack channel; without any, nothing is mirrored."""
        return set()

    def _slack_actor_owns_item(
        self, item: InboxItem, *, actor_id: str, chat_id: str, team_id: str | None
    ) -> bool:
        binding = self.inbox_routing.binding_for(item.inbox)
        if binding.channel == "slack" and binding.target != chat_id:
            return False
        return bool(actor_id) and actor_id in self.slack_approval_owner_ids(team_id)

    async def mirror_inbox_item(self, item: InboxItem) -> None:
        """Show an item in the chat that its inbox is bound to."""
        from .interactions import buttons_for

        binding = self.inbox_routing.binding_for(item.inbox)
        if not binding.channel or self.gateway is None:
            return
        if binding.channel == "slack" and not self.slack_approval_owner_ids():
            return
        target, text = f"{binding.channel}:{binding.target}", f"{item.title}\n{item.body}"
        buttons = buttons_for(item)
        if buttons:
            await self.gateway.deliver_interactive(target, text, buttons)
        else:
            await self.gateway.deliver(target, f"{text}\n[ow:{item.id}]")

    def _may_answer(self, item: InboxItem, actor: Any) -> bool:
        # Only these kinds are anybody's own: one of another kind is everybody's to answer.
        if getattr(actor, "platform", "") != "slack" or item.kind not in _OWNED:
            return True
        return self._slack_actor_owns_item(
            item, actor_id=actor.user_id or "", chat_id=actor.chat_id, team_id=actor.team_id
        )

    async def _on_interaction(self, event: Any) -> None:
        from .interactions import decode

        found = decode(event.value)
        item = self.inbox.get(found[0]) if found else None
        if found is None or item is None:
            return
        if not self._may_answer(item, event):
            if self.gateway is not None:
                await self.gateway.reject_interaction(event)
            return
        already = item.state != STATE_PENDING
        resolved = await self.resolve_inbox(item.id, found[1])
        if (resolved or already) and self.gateway is not None:
            text = f"{item.title}: {item.resolution}"
            await self.gateway.update_message(event.platform, event.chat_id, event.message_id, text)

    def _resolve_inbox_reply(self, event: Any) -> bool:
        """Take a chat message that names an item as its answer; nothing is resumed by it."""
        token = _TOKEN.search(event.text)
        if token is None:
            return False
        item = self.inbox.get(token.group(1))
        if item is not None and self._may_answer(item, event.source):
            self.inbox.resolve(item.id, _word(event.text))
        return True


def _word(text: str) -> str:
    if _YES.search(text.lower()):
        return "allow"
    return "deny" if _NO.search(text.lower()) else _TOKEN.sub("", text).strip()
