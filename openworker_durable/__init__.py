"""openworker-durable: one approved action is never silently performed twice, nor forgotten.

The names here are the public ones; see the README for how to attach to OpenWorker.
"""

from __future__ import annotations

from .guard import ExecutionContext, current_execution
from .hosts.attach import Attachment, attach
from .ledger import Ledger
from .policy import MANUAL, RecoveryPolicy

__version__ = "0.1.0"

__all__ = [
    "MANUAL",
    "Attachment",
    "ExecutionContext",
    "Ledger",
    "RecoveryPolicy",
    "attach",
    "current_execution",
]
