"""How a session manager turns prompts of engines into inbox items and waits for the answers."""

from __future__ import annotations

from typing import Any

from .automation import ScheduledTask, TaskStore
from .engine import ApprovalOutcome, Approver, PermissionRequest, QuestionAsker, TurnEngine
from .inbox import STATE_PENDING, VIS_INBOX, InboxItem, InboxStore, args_preview
from .permissions import WRITE_TOOLS, standing_rule_candidate


class InboxPrompts:
    """The prompt half of `SessionManager`, whose constructor sets the attributes."""

    inbox: InboxStore
    task_store: TaskStore
    _engines: dict[str, TurnEngine]

    def persist_session(self, session_id: str) -> None:
        """Save the session's cached engine; the manager knows how."""
        raise NotImplementedError

    def inbox_approver(self, session_id: str, agent: str) -> Approver:
        """Return an approver that parks a prompt in the inbox and waits for its resolution."""
        return self._parking_approver(session_id, VIS_INBOX)

    def _parking_approver(self, session_id: str, visibility: str) -> Approver:
        async def approve(request: PermissionRequest) -> ApprovalOutcome:
            item = self.inbox.add_approval(
                session_id,
                f"Run `{request.tool_name}`?",
                body=f"{request.reason}\n{args_preview(request.arguments)}",
                visibility=visibility,
                data=self.approval_prompt_data(session_id, request),
                tool_call_id=request.tool_call_id,
            )
            await self._announce(item)
            return self.approval_outcome(await self.inbox.wait(item.id), request, session_id)

        return approve

    def inbox_question_asker(self, session_id: str, agent: str) -> QuestionAsker:
        """Return an asker that parks a question in the inbox and waits for its answer."""
        return self._parking_asker(session_id, VIS_INBOX)

    def _parking_asker(self, session_id: str, visibility: str) -> QuestionAsker:
        async def ask(args: dict[str, Any], tool_call_id: str | None = None) -> dict[str, Any]:
            item = self.inbox.add_question(
                session_id,
                str(args.get("question", "")),
                visibility=visibility,
                options=args.get("options"),
                allow_text=bool(args.get("allow_text", True)),
                tool_call_id=tool_call_id,
            )
            await self._announce(item)
            return {"answer": await self.inbox.wait(item.id)}

        return ask

    async def _announce(self, item: InboxItem) -> None:
        if item.state != STATE_PENDING:
            return
        self.persist_session(item.session_id)
        if item.visibility == VIS_INBOX:
            await self.mirror_inbox_item(item)

    async def mirror_inbox_item(self, item: InboxItem) -> None:
        """Show an item in a chat; the manager knows how."""
        raise NotImplementedError

    def approval_prompt_data(self, session_id: str, request: PermissionRequest) -> dict[str, Any]:
        """Return what a card needs beside its text."""
        data: dict[str, Any] = {"tool": request.tool_name, "arguments": request.arguments or {}}
        task = self.task_store.task_for_run_session(session_id)
        if task is None:
            return data
        target = standing_rule_candidate(request.tool_name, data["arguments"], request.metadata)
        more = {"standing_target": target} if target else {}
        return {**data, "task_id": task.id, "task_title": task.title, **more}

    def approval_outcome(
        self, resolution: str, request: PermissionRequest, session_id: str
    ) -> ApprovalOutcome:
        """Translate a resolution from any surface; an unknown word denies."""
        if resolution == "always_task":
            self.mint_task_rule(session_id, request.tool_name, request.arguments, request.metadata)
            return ApprovalOutcome.ONCE
        words = {"allow": ApprovalOutcome.ONCE, "always": ApprovalOutcome.ALWAYS_TOOL}
        try:
            return words.get(resolution) or ApprovalOutcome(resolution)
        except ValueError:
            return ApprovalOutcome.DENY

    def mint_task_rule(
        self, session_id: str, tool_name: str, arguments: Any, metadata: Any = None
    ) -> bool:
        """Allow a tool and recipient in every later run of the session's automation."""
        task = self.task_store.task_for_run_session(session_id)
        target = standing_rule_candidate(tool_name, arguments or {}, metadata)
        if task is None or target is None:
            return False
        task.always_allowed_tools.append(f"{tool_name} {target}")
        self.task_store.save(task)
        if session_id in self._engines:
            rules = self._engines[session_id].permissions.task_rules
            rules.setdefault(tool_name, set()).add(target)
        return True

    def resolve_pending(self, session_id: str, resolution: str) -> None:
        """Resolve the session's oldest pending item, whatever its kind (the web socket's way)."""
        pending = self.inbox.pending(session_id)
        if pending:
            self.inbox.resolve(pending[0].id, resolution)

    def _scheduled_approver(self, task: ScheduledTask, session_id: str) -> Approver:
        park = self._parking_approver(session_id, VIS_INBOX)
        known = WRITE_TOOLS | task.name_allowed_tools()

        async def approve(request: PermissionRequest) -> ApprovalOutcome:
            return ApprovalOutcome.ONCE if request.tool_name in known else await park(request)

        return approve

    def _seed_task_permissions(self, engine: TurnEngine, task: ScheduledTask) -> None:
        engine.permissions.task_rules = task.standing_rules()
        engine.permissions.session_allow_tools |= task.name_allowed_tools()
