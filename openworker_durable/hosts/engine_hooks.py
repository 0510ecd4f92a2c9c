"""What the adapter wraps around a host's turn engine: who may drive, and when it halts.

Every way a turn is driven comes through `run`, `retry` or `resume`; each takes the session's
lock, reads the thread again if another process wrote it, and triages before anything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .. import rows, texts, thread
from ..errors import LedgerError, SessionHeld
from ..protection import GATES
from ..recovery import GOING_ON, Trigger
from ..settle import Report
from ..states import Decision, State
from .again import run_again
from .binding import Binding, Events, binding_of, bound
from .patching import Patches

log = logging.getLogger("openworker_durable")

STATUS = "recovery_required"
"""Status of the `turn_end` event of a turn that halts at an unknown outcome."""


class EngineHooks:
    """Builds the wrappers for one host."""

    def __init__(self, event: Any, event_type: Any, tool_call: Any) -> None:
        self.event, self.event_type, self.tool_call = event, event_type, tool_call

    def attach(self, patches: Patches, engine: type) -> None:
        """Wrap the methods that drive a turn."""
        patches.wrap(engine, "run", self.run)
        patches.wrap(engine, "resume", self.resume)
        patches.wrap(engine, "retry", self.retry)
        patches.wrap(engine, "_loop", self.loop)
        patches.wrap(engine, "_astream", self.astream)

    def _emit(self, kind: str, /, **data: Any) -> Any:
        return self.event(self.event_type(kind), data)

    def _problem(self, text: str, kind: str) -> Any:
        return self._emit("error", error=text, error_type=kind)

    # -- the three ways in
    def run(self, host: Callable[..., Events]) -> Callable[..., Events]:
        """A person's message, or one delivered for them: triage comes before its line."""

        def run(binding: Binding, *args: Any, **kwargs: Any) -> Events:
            def go_on(_report: Report) -> Events:
                return host(binding.engine, *args, **kwargs)

            return self._drive(binding, Trigger.MESSAGE, go_on)

        return bound(host, run)

    def resume(self, host: Callable[..., Events]) -> Callable[..., Events]:
        """Durable resume; goes on also when every call is answered by now (rule 14)."""
        self._host_resume = host

        def resume(binding: Binding) -> Events:
            def go_on(report: Report) -> Events:
                return self._continue(binding, report, host)

            return self._drive(binding, Trigger.RESUME, go_on)

        return bound(host, resume)

    def retry(self, host: Callable[..., Events]) -> Callable[..., Events]:
        """The Retry button: like a resume where the tail asks for one, else nothing."""

        def retry(binding: Binding) -> Events:
            failed = binding.engine._tail_is_retriable_error()

            async def go_on(report: Report) -> Events:
                if not (failed or report.proceed or report.retries or report.follow_up_unseen):
                    return
                async for event in self._continue(binding, report, self._host_resume):
                    yield event

            return self._drive(binding, Trigger.RETRY_BUTTON, go_on)

        return bound(host, retry)

    async def _continue(
        self, binding: Binding, report: Report, host: Callable[..., Events]
    ) -> Events:
        """Run what is unanswered, or call the model when nothing is (rules 11 and 14)."""
        engine = binding.engine
        reply = thread.trailing_reply(engine.messages)
        if report.interrupted:
            engine._append_notice("interrupted")
            yield self._emit("interrupted", iterations=0)
            return
        if report.halted:
            yield self._emit("turn_start", input="(resumed)")
            yield self._emit("turn_end", status=STATUS, iterations=0)
            return
        if reply is not None and not reply.answered and not reply.user_line:
            absent = await self._absent(binding, reply)
            if absent:
                yield self._emit("turn_start", input="(resumed)")
                _notice(engine, texts.tools_absent(absent))
                yield self._emit("turn_end", status=STATUS, iterations=0)
                return
            async for event in host(engine):
                yield event
            return
        if report.goes_on or report.retries:
            engine._cancel.clear()
            yield self._emit("turn_start", input="(resumed)")
            async for event in engine._loop():
                yield event

    async def _absent(self, binding: Binding, reply: thread.Reply) -> list[str]:
        """Return tools of calls somebody may have allowed that cannot be reached now (C31)."""
        inbox, engine = binding.manager.inbox, binding.engine
        waiting = {
            ref.name
            for ref in reply.calls
            if ref.call_id not in reply.answers
            and engine.registry.get(ref.name) is None
            and (
                ref.name.startswith("mcp__")
                or inbox.for_tool_call(binding.session_id, ref.call_id) is not None
            )
        } - GATES
        if not waiting:
            return []
        return sorted(await binding.runtime.opening.connect(binding.session_id, waiting))

    async def _drive(
        self, binding: Binding, trigger: Trigger, go_on: Callable[[Report], Events]
    ) -> Events:
        """Hold the session, triage, then hand on to the host's own generator."""
        try:
            hold = await binding.runtime.hold_for_turn(binding.session_id)
        except SessionHeld as exc:
            yield self._problem(str(exc), "SessionHeld")
            return
        inner: Any = None
        finished = False
        try:
            binding.runtime.remember_loop()
            binding.lead()
            binding.begin_turn()
            try:
                binding.reload_if_stale()
            except (OSError, ValueError) as exc:
                text = f"the saved conversation cannot be read ({type(exc).__name__})"
                yield self._problem(text, "ThreadUnreadable")
                finished = True
                return
            if trigger in GOING_ON:
                binding.engine._cancel.clear()
            report = await self._triage(binding, trigger)
            if isinstance(report, Report) and report.interrupted:
                report = await self._not_waiting(binding)
            if isinstance(report, str):
                yield self._problem(report, "LedgerUnavailable")
                finished = True
                return
            if report.held_elsewhere:
                yield self._problem(_still_runs(report.holders), "SessionHeld")
                finished = True
                return
            inner = go_on(report)
            async for event in inner:
                yield event
            finished = True
        finally:
            binding.cut_short = not finished
            binding.withdraw()
            try:
                if inner is not None:
                    await inner.aclose()
                    binding.save_rest()
            finally:
                hold.release()

    async def _not_waiting(self, binding: Binding) -> Report | str:
        """The person would not wait for a call that runs: a line they typed goes on without it."""
        engine = binding.engine
        if not engine._steering:
            reply = thread.trailing_reply(engine.messages)
            if reply is not None:
                for ref in reply.calls:
                    if ref.call_id not in reply.answers:
                        binding.port.void_prompt(ref.call_id, "the turn was stopped")
            return Report(interrupted=True)
        report = await self._triage(binding, Trigger.MESSAGE)
        if isinstance(report, Report):
            engine._inject_steering()
            report.goes_on = True
        return report

    async def _triage(self, binding: Binding, trigger: Trigger) -> Report | str:
        """Triage; with the ledger down, go on only where no recorded call can be concerned."""
        try:
            return await binding.runtime.settler.triage(binding.port, trigger)
        except LedgerError as exc:
            log.warning("session %s: no triage (%s)", binding.session_id, exc)
            reply = thread.trailing_reply(binding.engine.messages)
            if reply is None or reply.answered:
                return Report(goes_on=True)
            return f"the conversation has open calls and its record cannot be read: {exc}"

    # -- inside a turn
    def loop(self, host: Callable[..., Events]) -> Callable[..., Events]:
        """Between iterations: follow-ups, retries, and the halt."""

        async def _loop(binding: Binding) -> Events:
            engine = binding.engine
            while True:
                async for event in self._until_halt(binding, host):
                    yield event
                if not (binding.stops() and engine._steering):
                    return
                # A line typed while the turn ran is a new message: it goes on with that.
                if isinstance(await self._triage(binding, Trigger.MESSAGE), str):
                    return
                binding.halted = False
                engine._inject_steering()
                binding.save()

        return bound(host, _loop)

    async def _until_halt(self, binding: Binding, host: Callable[..., Events]) -> Events:
        """Run the host's loop with our work between its iterations, up to its end or a halt."""
        async for event in self._between(binding):
            yield event
        if binding.stops():
            yield self._emit("turn_end", status=STATUS, iterations=0)
            return
        inner = host(binding.engine)
        iterations = 0
        try:
            async for event in inner:
                yield event
                if event.type.value != "iteration_end":
                    continue
                iterations += 1
                async for more in self._between(binding):
                    yield more
                if binding.stops():
                    yield self._emit("turn_end", status=STATUS, iterations=iterations)
                    return
        finally:
            await inner.aclose()

    async def _between(self, binding: Binding) -> Events:
        """Take up what was decided or ended meanwhile; leaves `binding.halted` right."""
        for _ in range(100):
            if not self._anything_open(binding):
                binding.halted = False
                return
            report = await self._triage(binding, Trigger.BETWEEN)
            if isinstance(report, str):
                binding.halted = True
                yield self._problem(report, "LedgerUnavailable")
                return
            binding.halted = report.halted
            due = [r for r in report.retries if r.key not in binding.unrunnable]
            if report.halted or not due or binding.engine._cancel.is_set():
                return
            async for event in run_again(binding, due[0], self.tool_call, self._emit):
                yield event

    def _anything_open(self, binding: Binding) -> bool:
        """Say whether any open row is more than a result that waits to be acknowledged."""
        if binding.halted:
            return True
        try:
            found = binding.runtime.ledger.known(rows.open_in_session(binding.session_id))
        except LedgerError:
            return False
        carried = thread.carried_outcomes(binding.engine.messages) if found else set()
        return any(
            r.state not in (State.SUCCEEDED, State.FAILED)
            or r.decision in (Decision.HAPPENED, Decision.DROP)
            or r.key not in carried
            for r in found
        )

    def astream(self, host: Callable[..., Events]) -> Callable[..., Events]:
        """Where a finished reply first appears: its calls get unique ids and are covered."""

        async def _astream(engine: Any) -> Events:
            binding = binding_of(engine)
            async for chunk in host(engine):
                if binding is not None and chunk.turn is not None and chunk.turn.tool_calls:
                    await binding.admit(chunk.turn)
                yield chunk

        return _astream


def _notice(engine: Any, text: str) -> None:
    """Show the person a line in the conversation, once; no provider sees it."""
    if not any(m.get("role") == "notice" and m.get("text") == text for m in engine.messages[-3:]):
        engine._append_notice("mcp_error", text)


def _still_runs(holders: list[str]) -> str:
    who = ", ".join(holders) or "another process"
    return f"a call of this session still runs in {who}; wait until it ends, then try again"
