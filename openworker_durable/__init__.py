"""openworker-durable: one approved action is never silently performed twice, nor forgotten.

The names here are the public ones; see the README for how to attach to OpenWorker.
"""

from __future__ import annotations

from .declare import Declaration, forget, recoverable, register
from .evidence import NotAllowed, submit
from .guard import ExecutionContext, Guard, Handle, current_execution
from .hosts.attach import Attachment, attach
from .install import Report, Status, install, uninstall
from .keys import async_key_hook, idempotency_key, key_hook, key_or_none, mcp_meta, send_key
from .ledger import Ledger
from .models import Authority, Execution, Intent, Outcome
from .policy import MANUAL, RecoveryPolicy, idempotent, manual, reconcile
from .reconciler import (
    Call,
    Probe,
    Reconciler,
    Verdict,
    cannot_tell,
    did_not_happen,
    failed,
    happened,
    pending,
)
from .retention import Retention
from .staged import record_in
from .states import AuthorityKind, Decision, Reason, State

__version__ = "0.1.0"

__all__ = [
    "MANUAL",
    "Attachment",
    "Authority",
    "AuthorityKind",
    "Call",
    "Decision",
    "Declaration",
    "Execution",
    "ExecutionContext",
    "Guard",
    "Handle",
    "Intent",
    "Ledger",
    "NotAllowed",
    "Outcome",
    "Probe",
    "Reason",
    "Reconciler",
    "RecoveryPolicy",
    "Report",
    "Retention",
    "State",
    "Status",
    "Verdict",
    "async_key_hook",
    "attach",
    "cannot_tell",
    "current_execution",
    "did_not_happen",
    "failed",
    "forget",
    "happened",
    "idempotency_key",
    "idempotent",
    "install",
    "key_hook",
    "key_or_none",
    "manual",
    "mcp_meta",
    "pending",
    "reconcile",
    "record_in",
    "recoverable",
    "register",
    "send_key",
    "submit",
    "uninstall",
]
