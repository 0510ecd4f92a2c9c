"""Which slot an automation's run was started for: the occurrence of its executions."""

from __future__ import annotations

import contextlib
from typing import Any

from .. import rows
from ..errors import LedgerError
from ..ledger import Ledger


def slot(task: Any) -> str:
    """Return the occurrence of a task's run: the task and the slot that is due."""
    due = getattr(task, "next_run", None)
    return f"{getattr(task, 'id', '')}@{due if due is not None else ''}"


def occurrence_of_run(manager: Any, session_id: str, ledger: Ledger) -> str:
    """Return the occurrence of an automation's run whose engine is rebuilt, else nothing.

    A run started by hand has no slot of its own; it is named by its session. The slot of a run
    that was cut off before it executed anything may have been done by another run since: then
    it is that run's.
    """
    task = manager.task_store.task_for_run_session(session_id)
    if task is None:
        return ""
    for run in manager.task_store.runs(task.id):
        if run.session_id == session_id and run.trigger != "manual":
            due = getattr(task, "next_run", None)
            if due is not None and due <= run.started_at:
                return slot(task)
            with contextlib.suppress(LedgerError):
                done = rows.occurrence_since(task.id, session_id, run.started_at)
                return ledger.first(done) or f"{task.id}@{session_id}"
    return f"{task.id}@{session_id}"
