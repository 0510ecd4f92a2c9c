"""Which slot an automation's run was started for: the occurrence of its executions."""

from __future__ import annotations

from typing import Any


def slot(task: Any) -> str:
    """Return the occurrence of a task's run: the task and the slot that is due."""
    due = getattr(task, "next_run", None)
    return f"{getattr(task, 'id', '')}@{due if due is not None else ''}"


def occurrence_of_run(manager: Any, session_id: str) -> str:
    """Return the occurrence of an automation's run whose engine is rebuilt, else nothing.

    A run started by hand has no slot of its own; it is named by its session.
    """
    task = manager.task_store.task_for_run_session(session_id)
    if task is None:
        return ""
    for run in manager.task_store.runs(task.id):
        if run.session_id == session_id and run.trigger != "manual":
            due = getattr(task, "next_run", None)
            if due is not None and due <= run.started_at:
                return slot(task)
    return f"{task.id}@{session_id}"
