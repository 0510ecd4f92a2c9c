"""What the adapter wraps so that recovery items can be settled from a chat, by their owner only.

The host checks who answers for the kinds it knows; ours gets the same check, on buttons and on
replies (design, 6.5). A word that is no decision leaves the item open, with a hint (C19).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from .. import review
from .items import PENDING, recovery_of, served
from .manager_hooks import runtime_of
from .patching import Patches

_TOKEN = re.compile(r"\[oc?w:([0-9a-f]{6,})\]")
"""How a mirrored item names itself in a message, so that a reply finds it."""


class ChatHooks:
    """Builds the wrappers for one host."""

    def __init__(self, decode: Callable[[str], tuple[str, str] | None]) -> None:
        self.decode = decode

    def attach(self, patches: Patches, manager: type) -> None:
        """Wrap the manager's three doors to a chat."""
        patches.wrap(manager, "mirror_inbox_item", self.mirror)
        patches.wrap(manager, "_on_interaction", self.on_interaction)
        patches.wrap(manager, "_resolve_inbox_reply", self.resolve_reply)

    def mirror(self, host: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
        """Show a recovery item with its decisions as buttons."""

        async def mirror_inbox_item(manager: Any, item: Any) -> None:
            await host(manager, served(item))

        return mirror_inbox_item

    def on_interaction(self, host: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
        """A button of a recovery item counts only from its owner."""

        async def _on_interaction(manager: Any, event: Any) -> None:
            found = self.decode(getattr(event, "value", "") or "")
            item = manager.inbox.get(found[0]) if found else None
            if runtime_of(manager) is None or item is None or not recovery_of(item):
                await host(manager, event)
                return
            if not _may(manager, item, event):
                if manager.gateway is not None:
                    await manager.gateway.reject_interaction(event)
                return
            await host(manager, event)
            if item.state == PENDING:
                await _hint(manager, event, found[1] if found else "")

        return _on_interaction

    def resolve_reply(self, host: Callable[..., bool]) -> Callable[..., bool]:
        """A reply settles a recovery item by an exact decision; any answer resumes its session."""

        def _resolve_inbox_reply(manager: Any, event: Any) -> bool:
            runtime = runtime_of(manager)
            text = str(getattr(event, "text", "") or "")
            token = _TOKEN.search(text)
            item = manager.inbox.get(token.group(1)) if token else None
            if runtime is None or item is None:
                return host(manager, event)
            waiting = item.state == PENDING
            if not recovery_of(item):
                done = host(manager, event)
                if waiting and item.state != PENDING and not manager.is_running(item.session_id):
                    runtime.spawn(manager._durable_resume, item)
                return done
            source = getattr(event, "source", event)
            if _may(manager, item, source):
                word = _TOKEN.sub("", text).strip()
                runtime.spawn(_decide, manager, item, word, source)
            return True

        return _resolve_inbox_reply


async def _decide(manager: Any, item: Any, word: str, source: Any) -> None:
    await manager.resolve_inbox(item.id, word)
    if item.state == PENDING:
        await _hint(manager, source, word)


def _may(manager: Any, item: Any, actor: Any) -> bool:
    """Say whether who clicked or wrote may settle the item; the host's own rule."""
    if getattr(actor, "platform", "") != "slack":
        return True
    return bool(
        manager._slack_actor_owns_item(
            item,
            actor_id=str(getattr(actor, "user_id", "") or ""),
            chat_id=getattr(actor, "chat_id", "") or "",
            team_id=getattr(actor, "team_id", None),
        )
    )


async def _hint(manager: Any, where: Any, word: str) -> None:
    """Say in the chat that the item is still open, and what would have counted."""
    platform, chat = getattr(where, "platform", ""), getattr(where, "chat_id", "")
    if manager.gateway is not None and platform and chat:
        text = review.HINT if review.read_decision(word) is None else review.KEPT
        await manager.gateway.deliver(f"{platform}:{chat}", text)
