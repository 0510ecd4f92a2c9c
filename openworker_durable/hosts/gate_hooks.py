"""What the adapter wraps around gates: tools whose effect a person's answer sets off.

A gate never reaches the tool registry: the engine asks, and the answer itself creates the
team, the items, the installation, the new workspace. So the guard stands where the effect is
(design, 6.4). The call's identity travels in a context variable, also into worker threads.
After a crash the recorded result is rebuilt, or a person is asked; never a second team.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .. import texts, thread
from .binding import Binding, Events, bound
from .gates import WAYS, Gate, NotMade, perform, rebuilt_approver
from .items import answer_of
from .patching import Patches

log = logging.getLogger("openworker_durable")
Approver = Callable[..., Awaitable[dict[str, Any]]]

_gate: contextvars.ContextVar[Gate | None] = contextvars.ContextVar(
    "openworker_durable_gate", default=None
)


class GateHooks:
    """Builds the wrappers for one host."""

    def attach(self, patches: Patches, engine: type, manager: type, toolchain: Any) -> None:
        """Wrap the gates and the places where their effects are."""
        for name, way in WAYS.items():
            patches.wrap(engine, way.handler, self.handler(way.asker))
            owner = toolchain if way.refused is None else manager
            patches.wrap(owner, way.effect, _effect(name, way.refused))

    def handler(self, attribute: str) -> Callable[..., Any]:
        """Give the engine, for one call, an approver that carries the call's identity."""

        def make(host: Callable[..., Events]) -> Callable[..., Events]:
            async def handle(binding: Binding, tool_call: Any) -> Events:
                engine = binding.engine
                gate = Gate(binding, tool_call)
                gate.look_back()
                before = getattr(engine, attribute)
                approver = before or rebuilt_approver(gate)
                ours = _carrying(gate, approver) if approver is not None else None
                setattr(engine, attribute, ours)
                try:
                    async for event in host(engine, tool_call):
                        if event.type.value == "tool_finished":
                            _mark(gate)
                        elif gate.warning:
                            _warn(gate, event.data)
                        yield event
                finally:
                    gate.conclude()
                    if getattr(engine, attribute) is ours:
                        setattr(engine, attribute, before)

            return bound(host, handle)

        return make


def _carrying(gate: Gate, approver: Approver) -> Approver:
    """Ask as the host does, with the gate known to the effect that may follow."""

    async def ask(args: dict[str, Any], tool_call_id: str | None = None) -> dict[str, Any]:
        with gate.asking():
            token = _gate.set(gate)
            try:
                answer = await approver(args, tool_call_id)
            except BaseException:
                gate.broken_off()
                raise
            finally:
                _gate.reset(token)
        gate.answered(answer)
        return answer

    return ask


def _effect(name: str, refused: Mapping[str, Any] | None) -> Callable[..., Any]:
    """Take the effect of a gate through the guard.

    Args:
        refused: what the host's method returns for a refusal, to which `error` is added; None
            when it raises.
    """

    def make(host: Callable[..., Any]) -> Callable[..., Any]:
        def effect(*args: Any, **kwargs: Any) -> Any:
            gate = _gate.get()
            if gate is None or gate.name != name or gate.dispatched:
                return host(*args, **kwargs)
            try:
                return gate.run(lambda: host(*args, **kwargs))
            except NotMade as exc:
                if refused is None:
                    raise
                return {**refused, "error": str(exc)}

        return effect

    return make


def _warn(gate: Gate, card: dict[str, Any]) -> None:
    """Say on the card of an open window what the prompt's own text says."""
    key = "reason" if "reason" in card else "note"
    card[key] = "\n".join(filter(None, (gate.warning, str(card.get(key) or ""))))


def _mark(gate: Gate) -> None:
    """Let the message that the engine just appended say no more than is known."""
    if not gate.dispatched:
        return
    message = gate.binding.engine.messages[-1]
    if message.get("tool_call_id") != gate.call.id:
        return
    gate.told(str(message.get("content") or ""))
    key = gate.key
    if gate.snapshot is None:
        message["content"] = texts.still_running(gate.name)
        message["source"] = thread.marked(thread.PROVISIONAL, *key)
        return
    message["content"] = gate.snapshot.text
    message["source"] = thread.marked(thread.RESULT, *key)
    if gate.failed:
        message["source"][thread.MARK]["failed"] = True
    gate.binding.appended.add(key)


async def run_gate_again(binding: Binding, call: Any) -> Gate:
    """Run the next attempt of a gate's call that a person decided to run once more.

    Returns:
        the gate; not dispatched when it could not be recorded.
    """
    gate = Gate(binding, call)
    gate.retry = True
    item = binding.manager.inbox.for_tool_call(binding.session_id, call.id)
    token = _gate.set(gate)
    try:
        gate.answered(await perform(gate, call.arguments, answer_of(item) if item else {}))
    except asyncio.CancelledError:
        gate.broken_off()  # what runs on in its thread records its own outcome (C10)
        raise
    except Exception as exc:  # its outcome is on record; the turn goes on with that
        log.warning("session %s: %s failed (%s)", binding.session_id, call.name, type(exc).__name__)
    finally:
        _gate.reset(token)
        gate.conclude()
    return gate
