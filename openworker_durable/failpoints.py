"""Named places where a test may kill the process: before and after each commit and effect.

Production code passes `no_failpoint`; only a test's own child process passes anything else.
Nothing here is global and nothing is read from the environment.
"""

from __future__ import annotations

from collections.abc import Callable

Failpoint = Callable[[str], None]
"""Called with the name of the place that was reached."""

VERBS = (
    "dispatch", "retry", "finish", "lose", "vouch", "found_in_thread", "decide",
    "cover", "acknowledge",
    "schedule_probe", "postpone", "begin_probe", "end_probe", "end_probes", "found_absent",
    "found_out", "give_evidence", "rebind",
)  # fmt: skip
"""Ledger verbs whose commits are failpoints: `commit.before:<verb>`, `commit.after:<verb>`."""

PLACES = (
    "call.allowed",
    "effect.before",
    "effect.after",
    "message.appended",
    "thread.before",
    "thread.after",
    "repair.before",
    "repair.after",
    "item.before",
    "item.after",
    "probe.before",
    "probe.after",
    "followup.before",
    "followup.after",
)

FAILPOINTS: tuple[str, ...] = PLACES + tuple(
    f"commit.{when}:{verb}" for verb in VERBS for when in ("before", "after")
)
"""Every failpoint there is; a completeness test hits each one."""


def no_failpoint(_name: str) -> None:
    """Do nothing."""
