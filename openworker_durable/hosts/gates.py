"""One call of a gate on its way: asked, allowed, its effect guarded, its answer recorded.

Holds after a crash: no row when nobody agreed or nothing was begun; a known result once the
gate's answer was recorded; otherwise a dispatched row, which recovery turns into a question.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import texts
from ..errors import DurableError, LedgerError, Refused
from ..guard import Handle
from ..models import Authority, Execution, Intent, Outcome
from ..outcomes import state_of
from ..snapshot import Snapshot, encode
from ..states import AuthorityKind, Reason, State
from .binding import Binding
from .items import answer_of


@dataclass(frozen=True)
class Way:
    """How a host takes one gate from the asking to the effect.

    Args:
        handler: the engine's method that handles a call of it.
        asker: the engine's attribute that asks; None where a surface has no such asking.
        effect: what is then called, of the session manager or the toolchain.
        refused: what the manager's method returns for a refusal; None for one that raises.
    """

    handler: str
    asker: str
    effect: str
    refused: Mapping[str, Any] | None


WAYS = {
    "propose_team": Way(
        "_handle_team_proposal", "team_approver", "create_team", {"approved": False}
    ),
    "propose_work_items": Way(
        "_handle_items_proposal", "items_approver", "board_create_items", {"approved": False}
    ),
    "request_directory": Way(
        "_handle_directory_request", "directory_requester", "promote_workspace", {"ok": False}
    ),
    "request_tool": Way("_handle_tool_request", "tool_requester", "install", None),
}
"""The gates; an effect that is refused by raising is the toolchain's, the others the manager's."""


class NotMade(DurableError):
    """The effect of a gate was not begun, because it could not be recorded first."""


class Gate:
    """One call of a gate; used from the event loop and from the thread of its effect.

    Args:
        binding: the session whose engine handles the call.
        call: the call, with `id`, `name` and `arguments`.
    """

    def __init__(self, binding: Binding, call: Any) -> None:
        self.binding = binding
        self.call = call
        self.name = str(call.name)
        self.handle: Handle | None = None
        self.snapshot: Snapshot | None = None
        self.failed = False
        self.retry = False
        self._value: Any = None
        self._turn = binding.turn
        self.detail = self.warning = ""
        self.repeats: Execution | None = None
        self._ended = self._left = self._told = self._recorded = False
        self._lock = threading.Lock()

    @property
    def dispatched(self) -> bool:
        """Say whether the effect has been begun."""
        return self.handle is not None and self.handle.attempt > 0

    @property
    def key(self) -> tuple[str, int]:
        """Return (execution, attempt) of the begun effect."""
        assert self.handle is not None
        return self.handle.execution_id, self.handle.attempt

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """While the person is asked: the prompt is stamped with this call's intent."""
        runtime, slot = self.binding.runtime, (self.binding.session_id, self.call.id)
        try:
            runtime.asking[slot] = self.intent()
            runtime.warnings[slot] = self.warning
        except (LedgerError, DurableError) as exc:
            self.binding.blocked = str(exc)
        try:
            yield
        finally:
            runtime.asking.pop(slot, None)
            runtime.warnings.pop(slot, None)

    def look_back(self) -> None:
        """Find what the person has to be told when they are asked (the repeat guard)."""
        try:
            self.binding.look_back(self.call)
            self.warning, self.repeats = self.binding.warning(), self.binding.repeat
        except LedgerError as exc:
            self.binding.blocked = str(exc)
        finally:
            self.binding.forget_back()

    def intent(self) -> Intent:
        """Return what the call means to do; it names the call in doubt that it may repeat.

        Raises:
            LedgerError: the session's incarnation cannot be read.
        """
        linked = self.repeats.execution_id if self.repeats else ""
        return self.binding.intent(self.call).model_copy(update={"linked": linked})

    # -- the effect
    def run(self, effect: Callable[[], Any]) -> Any:
        """Dispatch, then run the effect; its outcome is recorded once the answer is made.

        Raises:
            NotMade: it could not be recorded, so it was not begun.
        """
        binding, guard = self.binding, self.binding.runtime.guard
        try:
            if binding.blocked:
                raise NotMade(texts.refused(binding.blocked))
            handle = guard.start(self.intent(), self._authority(), retry=self.retry)
            bracket = guard.call(handle)
            bracket.__enter__()
        except (LedgerError, Refused) as exc:
            raise NotMade(texts.refused(str(exc))) from exc
        self.handle = handle
        try:
            value = effect()
        except BaseException as exc:
            bracket.__exit__(type(exc), exc, exc.__traceback__)
            self._raised(exc)
            raise
        bracket.__exit__(None, None, None)
        with self._lock:
            self._ended, self._value = True, value
            left = self._left
        if left:
            self._finish(encode(value))
        return value

    def _authority(self) -> Authority:
        if self.retry:
            return Authority(kind=AuthorityKind.DECISION)
        return self.binding.authority(self.call, asked=True)

    # -- its outcome
    def answered(self, answer: Any) -> None:
        """Note what the host made out of the effect; `told` or `conclude` records it."""
        self._told, self._value = True, answer

    def told(self, text: str) -> None:
        """Record the outcome with the very text the model is given."""
        if self.dispatched and self._told and not self._recorded:
            self._finish(Snapshot(text=text))

    def broken_off(self) -> None:
        """The asking ended early: an effect that still runs records its own outcome (C10)."""
        with self._lock:
            self._left = True
        self.conclude()

    def conclude(self) -> None:
        """Record an outcome that is known and was not recorded yet; nothing, otherwise."""
        if self.dispatched and (self._ended or self._told) and not self._recorded:
            self._finish(encode(self._value))

    def _raised(self, exc: BaseException) -> None:
        """Note a failure, which the host may still put into words of its own; or an unknown."""
        state = state_of(exc, external=False) if isinstance(exc, Exception) else State.UNKNOWN
        self.detail = type(exc).__name__
        if state is State.UNKNOWN:
            self._commit(state, Reason.AMBIGUOUS, None)
            return
        with self._lock:
            self.failed = self._ended = True
            self._value = {"error": str(exc), "error_type": self.detail}
            left = self._left
        if left:
            self.conclude()

    def _finish(self, shot: Snapshot) -> None:
        if self.failed:
            self._commit(State.FAILED, Reason.RAISED, shot)
        else:
            self._commit(State.SUCCEEDED, Reason.RETURNED, shot)

    def _commit(self, state: State, reason: Reason, shot: Snapshot | None) -> None:
        assert self.handle is not None
        self._recorded = True
        outcome = Outcome(state=state, reason=reason, snapshot=shot, detail=self.detail)
        binding = self.binding
        binding.runtime.guard.finish(self.handle, outcome)
        self.snapshot = shot
        if self._left or binding.outlived(self._turn):
            binding.runtime.turn_ended(binding.session_id)


# -- what a rebuilt engine lacks
def rebuilt_approver(gate: Gate) -> Callable[..., Awaitable[dict[str, Any]]] | None:
    """Return what finishes a gate whose surface is gone, when a person was already asked.

    The host hands these askers to an engine only with a live window; one rebuilt after a restart
    lacks them. None when nobody was asked: then the host's own answer stands.
    """
    binding = gate.binding
    if binding.manager.inbox.for_tool_call(binding.session_id, gate.call.id) is None:
        return None

    async def ask(args: dict[str, Any], tool_call_id: str | None = None) -> dict[str, Any]:
        inbox = binding.manager.inbox
        item = inbox.for_tool_call(binding.session_id, gate.call.id)
        await inbox.wait(item.id)
        answer = answer_of(item)
        if answer.get("approved") is True or answer.get("granted") is True:
            return await perform(gate, args, answer)
        why = str(answer.get("feedback") or "the person declined")
        if gate.name == "request_tool":
            return {"installed": False, "reason": why}
        return {"approved": False, "feedback": why}

    return ask


async def perform(gate: Gate, args: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Do what a person agreed to, from the call's arguments and their answer.

    What blocks runs in a thread, as in the host; the rest on the event loop, as there.
    """
    manager, session_id = gate.binding.manager, gate.binding.session_id
    if gate.name == "propose_team":
        members = [m for m in args.get("members") or [] if isinstance(m, dict)]
        chat = bool(answer.get("enable_chat", args.get("enable_chat", False)))
        return dict(manager.create_team(session_id, members, enable_chat=chat))
    if gate.name == "propose_work_items":
        items = [i for i in args.get("items") or [] if isinstance(i, dict)]
        return dict(manager.board_create_items(session_id, items))
    if gate.name == "request_tool":
        return await asyncio.to_thread(_install, gate, str(args.get("name", "")).strip())
    path = str(answer.get("path") or args.get("path") or "").strip()
    done = dict(await asyncio.to_thread(manager.promote_workspace, session_id, path))
    if not done.get("ok"):
        return {"granted": False, "error": str(done.get("error", "it could not be granted"))}
    return {"granted": True, "path": done.get("path", path), "writable": True, "primary": True}


def _install(gate: Gate, name: str) -> dict[str, Any]:
    toolchain = gate.binding.runtime.names.load("toolchain")
    try:
        path = toolchain.install(name)
    except Exception as exc:
        return {"installed": False, "error": str(exc)}
    version = (toolchain.describe(name) or {}).get("version", "")
    return {"installed": True, "path": path, "version": version}
