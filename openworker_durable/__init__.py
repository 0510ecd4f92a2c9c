"""openworker-durable: one approved action is never silently performed twice, nor forgotten.

The names here are the public ones; see the README for how to attach to OpenWorker.
"""

from __future__ import annotations

from .guard import ExecutionContext, Guard, Handle, current_execution
from .hosts.attach import Attachment, attach
from .install import Report, Status, install, uninstall
from .ledger import Ledger
from .models import Authority, Execution, Intent, Outcome
from .policy import MANUAL, RecoveryPolicy, Retention
from .staged import record_in
from .states import AuthorityKind, Decision, Reason, State

__version__ = "0.1.0"

__all__ = [
    "MANUAL",
    "Attachment",
    "Authority",
    "AuthorityKind",
    "Decision",
    "Execution",
    "ExecutionContext",
    "Guard",
    "Handle",
    "Intent",
    "Ledger",
    "Outcome",
    "Reason",
    "RecoveryPolicy",
    "Report",
    "Retention",
    "State",
    "Status",
    "attach",
    "current_execution",
    "install",
    "record_in",
    "uninstall",
]
