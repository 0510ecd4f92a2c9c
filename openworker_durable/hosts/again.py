"""The next attempt of a call, by a person's decision or by its tool's policy, through the guard.

What cannot be made now stays as it is: a decided retry waits and a person is told; a retry by
policy is given up by this process, and a person decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from .. import thread
from ..errors import PolicyError
from ..identity import TornArguments, is_mangled, parse_arguments
from ..models import Authority, Execution
from ..protection import GATES
from ..states import AuthorityKind
from .binding import Binding, Events
from .gate_hooks import run_gate_again
from .items import close

log = logging.getLogger("openworker_durable")


async def run_again(
    binding: Binding, row: Execution, tool_call: Any, emit: Callable[..., Any]
) -> Events:
    """Run the next attempt of an execution decided `retry`, once, through the guard."""
    engine = binding.engine
    found = thread.find_call(engine.messages, row.tool_call_id)
    missing = await binding.runtime.opening.connect(binding.session_id, {row.tool_name} - GATES)
    try:
        arguments = parse_arguments(found[1].arguments) if found else None
    except TornArguments:
        arguments = None
    if found is None or missing or arguments is None or is_mangled(arguments):
        _note_not_run(binding, row, "its tool is not available")
        return
    call = tool_call(id=row.tool_call_id, name=row.tool_name, arguments=arguments)
    if row.tool_name in GATES:
        async for event in _run_gate_again(binding, row, call, emit):
            yield event
        return
    kind = AuthorityKind.DECISION if row.decision is not None else AuthorityKind.POLICY
    try:
        ticket = binding.ticket(call, Authority(kind=kind), retry=True)
    except PolicyError as exc:
        _note_not_run(binding, row, str(exc))
        return
    binding.tickets[call.id] = ticket
    yield emit("tool_started", name=call.name)
    was_blocked, binding.blocked = binding.blocked, ""
    _result, status = await asyncio.to_thread(engine._execute_sync, call)
    binding.blocked = was_blocked
    binding.halted = False
    if ticket.attempt:
        _close_notice(binding, row)
    else:
        why = type(ticket.refusal).__name__ if ticket.refusal else "its tool refused it"
        _note_not_run(binding, row, why)
    yield emit("tool_finished", name=call.name, status=status)


async def _run_gate_again(
    binding: Binding, row: Execution, call: Any, emit: Callable[..., Any]
) -> Events:
    yield emit("tool_started", name=call.name)
    gate = await run_gate_again(binding, call)
    if not gate.dispatched:
        _note_not_run(binding, row, "it could not be recorded")
    yield emit("tool_finished", name=call.name, status="error" if gate.failed else "ok")


def _close_notice(binding: Binding, row: Execution) -> None:
    """It has run: nothing waits any more."""
    item = binding.manager.inbox.for_tool_call(binding.session_id, _notice_key(row))
    if item is not None and item.state == "pending":
        close(binding.manager.inbox, item, "it has run")


def _notice_key(row: Execution) -> str:
    return f"recovery:{row.execution_id}:{row.attempt}:waits"


def _note_not_run(binding: Binding, row: Execution, why: str) -> None:
    """A retry that never started stays decided; the person is told, and it is tried later."""
    binding.unrunnable.add(row.key)
    log.warning("execution %s could not be retried now (%s)", row.execution_id, why)
    if row.decision is None:
        binding.runtime.gave_up.add(row.key)  # a person is asked
    elif binding.runtime.server.held:
        binding.manager.inbox.add(
            binding.session_id,
            "notification",
            f"`{row.tool_name}` could not be run again yet",
            body=f"{why}. It is tried again the next time this session runs.\n{row.preview}",
            data={thread.MARK: {"notice": True}},
            tool_call_id=_notice_key(row),
        )
