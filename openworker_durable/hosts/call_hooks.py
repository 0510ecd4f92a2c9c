"""What the adapter wraps around a host's tool calls: consent, the guard, the recorded result.

A call is allowed by the host, gets a ticket, and takes it through `_execute_sync` (its
thread) into the registry, where, after every check of the host and after its arguments were
bound to the tool's signature, the attempt is dispatched. Its outcome is committed in the same
thread, before anybody is told.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
from collections.abc import Callable
from typing import Any

from .. import texts, thread
from ..errors import (
    AlreadyRecorded,
    LedgerError,
    LedgerUnavailable,
    PolicyError,
    Refused,
    Withdrawn,
)
from ..identity import TornArguments
from ..models import Authority, Outcome
from ..outcomes import state_of
from ..snapshot import encode
from ..states import AuthorityKind, Reason, State
from .binding import Binding, Events, Ticket, binding_of, bound
from .patching import Patches
from .session import protects

log = logging.getLogger("openworker_durable")

_ticket: contextvars.ContextVar[tuple[Binding, Ticket] | None] = contextvars.ContextVar(
    "openworker_durable_ticket", default=None
)


UNRECORDABLE = (LedgerError, PolicyError, TornArguments)
"""What keeps a call from being recorded; it is then not made."""


class Held:
    """Stands for the result of a call that must stay unanswered for now."""


HELD = Held()


class CallHooks:
    """Builds the wrappers for one host."""

    def __init__(self, event: Any, event_type: Any) -> None:
        self.event, self.event_type = event, event_type
        self._warned = False

    def attach(self, patches: Patches, engine: type, registry: type, permissions: type) -> None:
        """Wrap the methods that authorise and run tool calls."""
        patches.wrap(engine, "_handle_tool_calls", self.handle_tool_calls)
        patches.wrap(engine, "_authorize", self.authorize)
        patches.wrap(engine, "_execute_sync", self.execute_sync)
        patches.wrap(engine, "_record_result", self.record_result)
        patches.wrap(engine, "_audit", self.audit)
        patches.wrap(registry, "execute", self.execute)
        patches.wrap(permissions, "evaluate", self.evaluate)

    def handle_tool_calls(self, host: Callable[..., Events]) -> Callable[..., Events]:
        """Save the thread before the first protected call and after each, and stop at a halt."""

        async def _handle_tool_calls(binding: Binding, tool_calls: Any) -> Events:
            engine = binding.engine
            protected = any(binding.protects(c.name) for c in tool_calls)
            if protected and binding.save():
                binding.acknowledge_appended()  # what earlier replies left is on disk now
            elif protected and not binding.blocked:
                binding.blocked = "the conversation cannot be saved"
            inner = host(engine, tool_calls)
            try:
                async for event in inner:
                    kind = event.type.value
                    if binding.halted and kind == "tool_started":
                        return
                    if kind == "tool_finished" and binding.appended:
                        binding.save(sync=False)
                    yield event
            finally:
                await inner.aclose()
                if engine._cancel.is_set():
                    _void_all(binding, tool_calls)

        return bound(host, _handle_tool_calls)

    # -- consent
    def authorize(self, host: Callable[..., Events]) -> Callable[..., Events]:
        """Bind the prompt to this call's intent, and note what allowed it."""

        async def _authorize(binding: Binding, tool_call: Any) -> Events:
            engine = binding.engine
            if not binding.protects(tool_call.name):
                async for item in host(engine, tool_call):
                    yield item
                return
            asked = False
            before = ours = engine.approver
            with _Asking(binding, tool_call) as must_ask:
                if must_ask:
                    ours = engine.approver = _insist(binding, before)
                try:
                    async for item in host(engine, tool_call):
                        asked = asked or _is_prompt(item)
                        if item is True:
                            _admit_call(binding, tool_call, asked=asked)
                        yield item
                finally:
                    if engine.approver is ours:  # else a window took it over meanwhile
                        engine.approver = before

        return bound(host, _authorize)

    def evaluate(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """The repeat guard: while a call of this tool is in doubt, another one asks."""

        def evaluate(permissions: Any, tool_name: str, *args: Any, **kwargs: Any) -> Any:
            decision = host(permissions, tool_name, *args, **kwargs)
            binding = getattr(permissions, "_durable", None)
            if binding is None or binding.asking_tool != tool_name:
                return decision
            why = binding.warning()
            if why and (decision.allowed or decision.needs_user):
                return type(decision)(False, why, needs_user=True)
            return decision

        return evaluate

    # -- the call itself, in its own thread
    def execute_sync(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """Take the call through the guard; commit its outcome before anybody is told."""

        def _execute_sync(engine: Any, tool_call: Any) -> tuple[Any, str]:
            binding = binding_of(engine)
            if binding is None or not binding.protects(tool_call.name):
                if binding is None:
                    self._warn_unbound(engine, tool_call)
                result: tuple[Any, str] = host(engine, tool_call)
                return result
            return _guarded(binding, host, engine, tool_call)

        return _execute_sync

    def _warn_unbound(self, engine: Any, tool_call: Any) -> None:
        spec = engine.registry.get(tool_call.name)
        if not self._warned and protects(spec, tool_call.name, engine.permissions):
            self._warned = True
            log.warning("an engine that belongs to no session runs protected calls unrecorded")

    def execute(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """Dispatch here: the tool is known and its arguments fit, nothing was sent yet."""

        def execute(registry: Any, name: str, arguments: Any = None) -> Any:
            found = _ticket.get()
            spec = registry.get(name)
            if found is None or found[1].name != name or spec is None:
                return host(registry, name, arguments)
            binding, ticket = found
            _ticket.set(None)  # nested registries inside the tool are not this call
            _bind(spec.func, arguments or {})
            _prepare(binding, ticket, arguments or {})
            guard = binding.runtime.guard
            try:
                ticket.handle = guard.start(
                    ticket.intent,
                    ticket.authority,
                    retry=ticket.retry,
                    still=lambda: not ticket.withdrawn,
                )
                bracket = guard.call(ticket.handle)
                bracket.__enter__()
            except (LedgerError, Refused) as refusal:
                ticket.refusal = refusal
                raise
            try:
                value = host(registry, name, arguments)
            except BaseException as exc:
                ticket.raised = exc
                bracket.__exit__(type(exc), exc, exc.__traceback__)
                raise
            bracket.__exit__(None, None, None)
            return value

        return execute

    def record_result(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """Append exactly the recorded text, marked as this attempt's result."""

        def _record_result(engine: Any, tool_call: Any, result: Any, status: str) -> Any:
            binding = binding_of(engine)
            if isinstance(result, Held):
                engine._audit(tool_call, stage="finished", status="unknown", reason="in doubt")
                data = {"name": tool_call.name, "status": "unknown", "reason": "outcome unknown"}
                return self.event(self.event_type("tool_finished"), data)
            ticket = binding.tickets.get(tool_call.id) if binding is not None else None
            if binding is None or ticket is None:
                return host(engine, tool_call, result, status)
            shot = ticket.snapshot
            if shot is None:
                event = host(engine, tool_call, result, status)
                if ticket.refusal is not None:
                    engine.messages[-1]["source"] = thread.marked(thread.REFUSED)
                return event
            event = host(engine, tool_call, result if shot.native else shot.text, status)
            message = engine.messages[-1]
            message["content"] = shot.text
            if shot.display and "_display" not in message:
                message["_display"] = shot.display_value()
            key = (ticket.intent.execution_id, ticket.attempt)
            message["source"] = thread.marked(thread.RESULT, *key)
            if ticket.failed:
                message["source"][thread.MARK]["failed"] = True
            binding.appended.add(key)
            binding.runtime.failpoint("message.appended")
            return event

        return _record_result

    def audit(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """Give the host's own audit rows about a protected call their correlation ids."""

        def _audit(engine: Any, tool_call: Any, **event: Any) -> Any:
            binding = binding_of(engine)
            if binding is None or not binding.protects(tool_call.name):
                return host(engine, tool_call, **event)
            ticket = binding.tickets.get(tool_call.id)
            try:
                ids = {
                    "tool_call_id": tool_call.id,
                    "execution_id": binding.execution_id(tool_call.id),
                    "attempt": (ticket.attempt or None) if ticket else None,
                }
            except LedgerError:
                return host(engine, tool_call, **event)
            return host(engine, tool_call, durable=ids, **event)

        return _audit


def _bind(func: Any, arguments: dict[str, Any]) -> None:
    """Check that the arguments fit the tool, so that a misfit is no attempt.

    Raises:
        TypeError: they do not; the tool was not called.
    """
    try:
        signature = inspect.signature(func)
    except ValueError:
        return
    signature.bind(**arguments)


def _prepare(binding: Binding, ticket: Ticket, arguments: dict[str, Any]) -> None:
    """Let the tool's reconciler note what it will compare with, before anything happens."""
    note = binding.toolbox.prepared(ticket.intent, 0, arguments)
    if note:
        ticket.intent = ticket.intent.model_copy(update={"prepared": note})


# -- consent
def _is_prompt(item: Any) -> bool:
    kind = getattr(getattr(item, "type", None), "value", "")
    return bool(kind == "permission_required")


class _Asking:
    """While one call is authorised: the repeat guard and the prompt's intent are set."""

    def __init__(self, binding: Binding, call: Any) -> None:
        self.binding, self.call = binding, call

    def __enter__(self) -> bool:
        binding, call = self.binding, self.call
        try:
            binding.look_back(call)
        except LedgerError as exc:
            binding.blocked = str(exc)
        binding.asking_tool = call.name
        binding.engine.permissions._durable = binding
        try:
            binding.runtime.asking[(binding.session_id, call.id)] = binding.intent(call)
        except UNRECORDABLE as exc:
            binding.blocked = str(exc)
        return bool(binding.warning())

    def __exit__(self, *exc: object) -> None:
        self.binding.forget_back()
        self.binding.asking_tool = ""
        self.binding.runtime.asking.pop((self.binding.session_id, self.call.id), None)


def _insist(binding: Binding, approver: Any) -> Any:
    """Return an approver that asks a person even where the given one would just allow."""

    async def approve(request: Any) -> Any:
        outcome = await approver(request)
        if outcome.value == "deny":
            return outcome
        inbox = binding.manager.inbox
        if inbox.for_tool_call(binding.session_id, request.tool_call_id or "") is None:
            ask = binding.manager.inbox_approver(binding.session_id, binding.agent)
            outcome = await ask(request)
        return outcome

    return approve


def _admit_call(binding: Binding, call: Any, *, asked: bool) -> None:
    """Make the ticket for a call that was just allowed."""
    try:
        authority = binding.authority(call, asked=asked)
        binding.tickets[call.id] = binding.ticket(call, authority)
    except UNRECORDABLE as exc:
        binding.blocked = str(exc)
    binding.runtime.failpoint("call.allowed")


def _void_all(binding: Binding, calls: Any) -> None:
    """After Stop: no prompt of the reply may still be answered."""
    for call in calls:
        item = binding.manager.inbox.for_tool_call(binding.session_id, call.id)
        if item is not None and item.state == "pending":
            binding.port.void_prompt(call.id, "the turn was stopped")


# -- the guard
def _not_made(reason: str) -> tuple[Any, str]:
    return {"error": "not executed", "reason": texts.refused(reason)}, "error"


def _guarded(binding: Binding, host: Any, engine: Any, call: Any) -> tuple[Any, str]:
    """Run one protected call in its thread: ticket, dispatch, effect, outcome."""
    if binding.halted:
        return HELD, "unknown"
    if binding.dead:
        return _not_made("its session was deleted")
    ticket = binding.tickets.get(call.id)
    try:
        if ticket is None or ticket.handle is not None:
            ticket = binding.ticket(call, Authority(kind=AuthorityKind.PROMPT))
            binding.tickets[call.id] = ticket
        if binding.blocked:
            raise LedgerUnavailable(binding.blocked)
    except UNRECORDABLE as exc:
        if ticket is not None:
            ticket.refusal = exc
        return _not_made(str(exc))
    token = _ticket.set((binding, ticket))
    try:
        result, status = host(engine, call)
    except BaseException as exc:
        _finish_raised(binding, ticket, ticket.raised or exc)
        raise
    finally:
        _ticket.reset(token)
    if ticket.refusal is not None:
        return _refused(binding, ticket)
    if not ticket.attempt:
        return result, status
    return _finish(binding, ticket, result, status)


def _refused(binding: Binding, ticket: Ticket) -> tuple[Any, str]:
    if isinstance(ticket.refusal, (AlreadyRecorded, Withdrawn)):
        binding.halted = True
        return HELD, "unknown"
    return _not_made(str(ticket.refusal))


def _finish(binding: Binding, ticket: Ticket, result: Any, status: str) -> tuple[Any, str]:
    """Commit the outcome of a call that came back to the host."""
    assert ticket.handle is not None
    guard = binding.runtime.guard
    if ticket.raised is not None:
        state = _proved(ticket)
        if state is State.UNKNOWN:
            _finish_raised(binding, ticket, ticket.raised)
            binding.halted = True
            return HELD, "unknown"
        reason = Reason.RAISED
    else:
        state, reason = State.SUCCEEDED, Reason.RETURNED
    shot = encode(result)
    detail = type(ticket.raised).__name__ if ticket.raised else ""
    outcome = ticket.handle.witness.judge(
        Outcome(state=state, reason=reason, snapshot=shot, detail=detail)
    )
    guard.finish(ticket.handle, outcome)
    if outcome.state is State.UNKNOWN:
        binding.halted = True
        result, status = HELD, "unknown"
    else:
        ticket.snapshot, ticket.failed = shot, state is State.FAILED
    _tell_if_outlived(binding, ticket)
    return result, status


def _proved(ticket: Ticket) -> State:
    """Return what the exception that a call ended with proves of it."""
    assert ticket.raised is not None
    return state_of(
        ticket.raised, external=ticket.external, never_began=ticket.declared.never_began,
        may_have_begun=ticket.declared.may_have_begun,
    )  # fmt: skip


def _finish_raised(binding: Binding, ticket: Ticket, raised: BaseException) -> None:
    """Commit that an attempt ended without telling whether it took effect."""
    if ticket.handle is None or not ticket.attempt:
        return
    outcome = Outcome(state=State.UNKNOWN, reason=Reason.AMBIGUOUS, detail=type(raised).__name__)
    binding.runtime.guard.finish(ticket.handle, outcome)
    _tell_if_outlived(binding, ticket)


def _tell_if_outlived(binding: Binding, ticket: Ticket) -> None:
    """When the turn that made the call is gone, its outcome is taken up now."""
    if binding.outlived(ticket.turn):
        binding.runtime.turn_ended(binding.session_id)
