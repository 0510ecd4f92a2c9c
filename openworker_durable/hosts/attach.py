"""Attaching to a host and detaching again: all seams or none.

`attach` checks every seam first and refuses as a whole when one is missing. Detaching puts
every method back; sessions go on under the host alone, and what it does then is seen as
legacy when the plugin is back (G4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..failpoints import Failpoint, no_failpoint
from ..retention import KEEP, Retention
from .call_hooks import CallHooks
from .chat_hooks import ChatHooks
from .driving_hooks import DrivingHooks
from .engine_hooks import EngineHooks
from .gate_hooks import GateHooks
from .http_hooks import HTTP
from .listing_hooks import ListingHooks
from .manager_hooks import ManagerHooks
from .mcp_hooks import MCP
from .names import HostNames
from .patching import Patches
from .runtime import Runtime
from .seams import SeamReport
from .store_hooks import StoreHooks
from .terminal import TerminalHooks, app_of, check_all


@dataclass
class Attachment:
    """One host with the plugin attached.

    Args:
        names: the host's names.
        report: what was found of each seam.
        runtimes: one for each state folder opened since.
    """

    names: HostNames
    report: SeamReport
    patches: Patches
    runtimes: list[Runtime] = field(default_factory=list)

    def detach(self) -> None:
        """Put every method back and close every ledger; twice is once."""
        self.patches.restore()
        while self.runtimes:
            runtime = self.runtimes.pop()
            _let_go(runtime.manager)
            runtime.close()
        _attached.pop(self.names.package, None)


def _let_go(manager: Any) -> None:
    """Leave nothing of ours on a host's objects; they go on as if it had never been there."""
    stores = [getattr(manager, n, None) for n in ("inbox", "session_store", "audit_store")]
    engines = getattr(manager, "_engines", {}).values()
    for thing in (manager, *stores, *engines, *(getattr(e, "permissions", None) for e in engines)):
        for name in [n for n in getattr(thing, "__dict__", {}) if n.startswith("_durable")]:
            delattr(thing, name)


_attached: dict[str, Attachment] = {}


def attach(
    names: HostNames, *, retention: Retention = KEEP, failpoint: Failpoint = no_failpoint
) -> Attachment:
    """Attach to a host's classes; once attached, again is the same attachment.

    Args:
        names: how the host's classes are found.
        retention: how long settled rows and their results are kept.
        failpoint: see `failpoints`; only tests pass one.

    Raises:
        SeamsDoNotFit: nothing was attached.
    """
    there = _attached.get(names.package)
    if there is not None:
        return there
    report = check_all(names)
    report.require()
    patches = Patches()
    done = Attachment(names, report, patches)
    event, event_type = names.load("events"), names.load("event_type")
    engine = names.load("engine")
    try:
        EngineHooks(event, event_type, names.load("tool_call")).attach(patches, engine)
        CallHooks(event, event_type).attach(
            patches, engine, names.load("registry"), names.load("permissions")
        )
        StoreHooks(names.load("item")).attach(
            patches, names.load("inbox"), names.load("audit"), names.load("conversations")
        )
        ManagerHooks(names, failpoint, retention, done.runtimes).attach(
            patches, names.load("manager")
        )
        DrivingHooks().attach(patches, names.load("manager"))
        ListingHooks().attach(
            patches, names.load("inbox"), names.load("conversations"), names.load("manager")
        )
        GateHooks().attach(patches, engine, names.load("manager"), names.load("toolchain"))
        ChatHooks(names.load("decode")).attach(patches, names.load("manager"))
        HTTP.attach(patches)
        MCP.attach(patches, names.load("registry"))
        terminal = app_of(names)
        if terminal is not None:
            TerminalHooks(names, failpoint, retention, done.runtimes).attach(patches, terminal)
    except BaseException:
        patches.restore()
        raise
    _attached[names.package] = done
    return done


def attached(names: HostNames) -> Attachment | None:
    """Return the attachment to a host, or None."""
    return _attached.get(names.package)
