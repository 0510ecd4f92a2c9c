"""The tools of one engine as they were when it was built, and what is declared about each.

Recovery by machine compares three: the tool that an attempt called, the one its engine was built
with, and the one that is there now. A tool that was replaced meanwhile equals no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..declare import NOTHING, Declaration
from ..errors import PolicyError
from ..models import Intent, ToolIdentity
from ..policy import MANUAL, Descriptor, RecoveryPolicy
from ..protection import tool_identity
from ..reconciler import PREPARED_CHARACTERS, Call, Reconciler

log = logging.getLogger("openworker_durable")

NO_TOOL = "absent"
"""The source of a tool that is not there, or not the one its engine was built with."""


class Toolbox:
    """See the module's docstring.

    Args:
        engine: the host's engine.
        declared: returns what is declared about a tool's spec; raises `PolicyError`.
    """

    def __init__(self, engine: Any, declared: Callable[[Any], Declaration]) -> None:
        self._engine = engine
        self._declared = declared
        self._frozen: dict[str, Any] = {}
        self.freeze(engine.registry.names())

    def freeze(self, names: Iterable[str]) -> None:
        """Count tools as those that the engine was built with; the first of a name stays."""
        for name in names:
            spec = self._engine.registry.get(name)
            if spec is not None:
                self._frozen.setdefault(name, (spec, tool_identity(spec)))

    def identity(self, name: str) -> ToolIdentity:
        """Return the identity of a tool as it is now, its bare name when it is not there."""
        spec = self._engine.registry.get(name)
        return tool_identity(spec) if spec is not None else ToolIdentity(name=name)

    def is_the_one(self, name: str) -> bool:
        """Say whether a tool is there and is the one that the engine was built with."""
        spec = self._engine.registry.get(name)
        built = self._frozen.get(name)
        if spec is None or built is None:
            return False
        return bool(tool_identity(spec) == built[1])

    def declaration(self, name: str) -> Declaration:
        """Return what is declared about a tool.

        Raises:
            PolicyError: it contradicts itself.
        """
        spec = self._engine.registry.get(name)
        return self._declared(spec) if spec is not None else NOTHING

    def descriptor(self, name: str) -> Descriptor:
        """Return the tool with its policy as recovery compares it with an attempt's."""
        if not self.is_the_one(name):
            return Descriptor(ToolIdentity(source=NO_TOOL, name=name))
        try:
            policy = self.declaration(name).policy or MANUAL
        except PolicyError as exc:
            log.warning("%s", exc)
            policy = MANUAL
        return Descriptor(self.identity(name), policy)

    def policy_for(self, name: str, arguments: Mapping[str, Any]) -> RecoveryPolicy:
        """Return the policy of one call of a tool, as it is recorded at dispatch.

        Raises:
            PolicyError: what is declared about the tool contradicts itself.
        """
        declared = self.declaration(name)
        policy = declared.policy or MANUAL
        if not self.is_the_one(name):
            return MANUAL
        if declared.reconciler is not None and not _knows(declared.reconciler, arguments):
            return policy.unprobed()
        return policy

    def reconciler(self, name: str) -> Reconciler | None:
        """Return the tool's reconciler, if it has one."""
        try:
            return self.declaration(name).reconciler
        except PolicyError:
            return None

    def looks_up(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Say whether the tool's reconciler knows calls with these arguments."""
        found = self.reconciler(name)
        return found is not None and _knows(found, arguments)

    @property
    def workspace(self) -> Path | None:
        """Return the folder that the session works in, if the engine says so."""
        context = getattr(self._engine, "audit_context", None) or {}
        place = context.get("workspace")
        return Path(place) if place else None

    def prepared(self, intent: Intent, attempt: int, arguments: Mapping[str, Any]) -> str:
        """Return what the tool's reconciler notes before an effect; empty when it notes nothing.

        It never keeps the call from being made.
        """
        found = self.reconciler(intent.tool.name)
        if found is None or found.prepare is None or intent.policy == str(MANUAL):
            return ""
        call = Call(intent.execution_id, attempt, intent.tool, dict(arguments), self.workspace)
        try:
            note = str(found.prepare(call) or "")
        except Exception as exc:
            log.info("nothing noted before a %s call (%s)", call.tool.name, type(exc).__name__)
            return ""
        return note if len(note) <= PREPARED_CHARACTERS else ""


def _knows(reconciler: Reconciler, arguments: Mapping[str, Any]) -> bool:
    try:
        return reconciler.knows(arguments)
    except Exception:
        return False
