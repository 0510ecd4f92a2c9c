"""What a session manager does when a person agrees to a gate, and how it asks them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import toolchain
from .engine import TurnEngine
from .gates import Requester
from .inbox import VIS_INBOX, InboxItem, InboxStore


def _answer(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text or "{}")
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


class GateEffects:
    """The gate half of `SessionManager`, whose constructor sets the attributes."""

    inbox: InboxStore
    _engines: dict[str, TurnEngine]
    _data_base: Path
    _promotion_rebuild: set[str]

    async def _announce(self, item: InboxItem) -> None:
        raise NotImplementedError

    def save(self, session_id: str, engine: TurnEngine) -> None:
        """Save a session; the manager knows how."""
        raise NotImplementedError

    # -- effects ------------------------------------------------------------------

    def _note(self, name: str, line: dict[str, Any]) -> int:
        """Append a line to one of the small files that stand for boards and teams."""
        path = self._data_base / name
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return len(path.read_text(encoding="utf-8").splitlines())

    def create_team(
        self, session_id: str, members: list[dict[str, Any]], *, enable_chat: bool = False
    ) -> dict[str, Any]:
        """Make a team of workers."""
        team = {"team_id": uuid.uuid4().hex[:12], "lead": session_id, "chat": enable_chat}
        self._note("teams.jsonl", {**team, "members": members})
        return {"approved": True, "team_id": team["team_id"], "workers": members}

    def board_create_items(self, session_id: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Put items on the board."""
        made = [{"id": self._note("board.jsonl", i), "title": i.get("title")} for i in items]
        return {"approved": True, "items": made}

    def promote_workspace(self, session_id: str, path: str) -> dict[str, Any]:
        """Make a folder the session's workspace, once; its engine is rebuilt after the turn."""
        engine = self._engines.get(session_id)
        if engine is None or not Path(path).is_dir():
            return {"ok": False, "error": "no such session or folder"}
        self._note("promotions.jsonl", {"session": session_id, "path": path})
        engine.permissions.workspace_root = Path(path)
        self.save(session_id, engine)
        self._promotion_rebuild.add(session_id)
        return {"ok": True, "path": path}

    def add_root(self, session_id: str, path: str, writable: bool) -> dict[str, Any]:
        """Let a session use one more folder."""
        self._note("roots.jsonl", {"session": session_id, "path": path, "writable": writable})
        return {"ok": True, "path": path}

    # -- asking -------------------------------------------------------------------

    def _asked(
        self, session_id: str, kind: str, title: str, visibility: str = VIS_INBOX
    ) -> Callable[[dict[str, Any], str | None], Any]:
        async def ask(args: dict[str, Any], tool_call_id: str | None) -> dict[str, Any]:
            item = self.inbox.add(
                session_id, kind, title, body=str(args.get("reason", "")), visibility=visibility,
                data={**args}, tool_call_id=tool_call_id,
            )  # fmt: skip
            await self._announce(item)
            return _answer(await self.inbox.wait(item.id))

        return ask

    def inbox_directory_requester(
        self, session_id: str, agent: str, visibility: str = VIS_INBOX
    ) -> Requester:
        """Return what asks for a folder when no window is open."""
        asked = self._asked(session_id, "directory", "May it use a folder?", visibility)

        async def request(args: dict[str, Any], tool_call_id: str | None = None) -> dict[str, Any]:
            answer = await asked(args, tool_call_id)
            if not answer.get("granted"):
                return {"granted": False, "reason": "user denied"}
            path = str(answer.get("path") or args.get("path") or "")
            if args.get("primary"):
                done = await asyncio.to_thread(self.promote_workspace, session_id, path)
                if done.get("ok"):
                    return {"granted": True, "path": path, "writable": True, "primary": True}
            self.add_root(session_id, path, bool(answer.get("writable")))
            return {"granted": True, "path": path, "writable": bool(answer.get("writable"))}

        return request

    def inbox_plan_approver(
        self, session_id: str, agent: str, visibility: str = VIS_INBOX
    ) -> Requester:
        """Return what asks for a plan when no window is open."""
        asked = self._asked(session_id, "plan", "Is the plan good?", visibility)

        async def approve(args: dict[str, Any], tool_call_id: str | None = None) -> dict[str, Any]:
            answer = await asked(args, tool_call_id)
            if not answer.get("approved"):
                return {"approved": False, "feedback": answer.get("feedback") or "user denied"}
            return {"approved": True, "mode": answer.get("mode") or "interactive"}

        return approve

    def window_gates(self, session_id: str, visibility: str) -> dict[str, Requester]:
        """Return what only an open window can ask: a rebuilt engine lacks these."""
        team = self._asked(session_id, "plan", "Make this team?", visibility)
        items = self._asked(session_id, "plan", "Make these items?", visibility)
        tool = self._asked(session_id, "tool", "Install it?", visibility)

        async def team_approver(args: dict[str, Any], call_id: str | None = None) -> dict[str, Any]:
            answer = await team(args, call_id)
            if not answer.get("approved"):
                return {"approved": False, "feedback": answer.get("feedback") or "user denied"}
            chat = bool(answer.get("enable_chat", args.get("enable_chat", False)))
            return self.create_team(session_id, args.get("members") or [], enable_chat=chat)

        async def items_approver(
            args: dict[str, Any], call_id: str | None = None
        ) -> dict[str, Any]:
            answer = await items(args, call_id)
            if not answer.get("approved"):
                return {"approved": False, "feedback": answer.get("feedback") or "user denied"}
            return self.board_create_items(session_id, args.get("items") or [])

        async def tool_requester(
            args: dict[str, Any], call_id: str | None = None
        ) -> dict[str, Any]:
            answer = await tool(args, call_id)
            if not answer.get("approved"):
                return {"installed": False, "reason": "user denied"}
            name = str(args.get("name", ""))
            try:
                path = await asyncio.to_thread(toolchain.install, name)
            except Exception as exc:
                return {"installed": False, "error": str(exc)}
            return {"installed": True, "path": path, "version": toolchain.MANAGED[name]}

        return {
            "team_approver": team_approver,
            "items_approver": items_approver,
            "tool_requester": tool_requester,
        }
