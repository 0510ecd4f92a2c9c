"""Reconcilers of the host's file tools: what is on disk, compared with what was intended.

Before the call they note a digest of each file as it is and as it is to become. Afterwards: all as
intended, it happened; all as before and not written to since, it did not; anything else, a file
that was cut off included, tells nothing, and a person is asked. A call is asked about only once
its own thread has ended or its process is gone, so nothing writes after the look.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..reconciler import Call, Probe, Reconciler, Verdict, cannot_tell, did_not_happen, happened
from .diffs import plan_diff
from .disk import (
    REFUSED,
    Change,
    NotKnown,
    Now,
    Plan,
    change_of,
    compare,
    content,
    digest,
    note,
    place,
    read_note,
    shown,
    text_of,
    written,
)
from .patches import plan_patch


def plan_write(call: Call, arguments: Mapping[str, Any]) -> tuple[list[Change], Any]:
    """Work out a `write_file`."""
    file = place(call, arguments.get("path"))
    before = content(file)
    after = digest(written(_text(arguments, "content")))
    if before is not None and not arguments.get("overwrite", True):
        after = REFUSED
    return [change_of(file, before, after)], shown(call, file)


def plan_replace(call: Call, arguments: Mapping[str, Any]) -> tuple[list[Change], Any]:
    """Work out a `replace_in_file`."""
    file = place(call, arguments.get("path"))
    old, new = _text(arguments, "old"), _text(arguments, "new")
    data = content(file)
    before = text_of(data)
    count = before.count(old) if old else 0
    if count < 1 or count != arguments.get("expected_replacements", 1):
        return [change_of(file, data, REFUSED)], None
    after = before.replace(old, new)
    result = {
        "path": shown(call, file), "replacements": count,
        "chars_before": len(before), "chars_after": len(after),
    }  # fmt: skip
    return [change_of(file, data, digest(written(after)))], result


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise NotKnown(f"no {name}")
    return value


class FileReconciler:
    """Compares the files of one tool's calls.

    Args:
        plan: works out beforehand what a call changes.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def prepare(self, call: Call) -> str:
        """Note the files as they are and as they are to become."""
        try:
            return note(*self._plan(call, call.arguments))
        except NotKnown:
            return ""

    def look(self, probe: Probe) -> Verdict:
        """Compare the files as they are now with both."""
        changes, result = read_note(probe.prepared)
        if not changes:
            return cannot_tell("how the files were before is not known")
        try:
            now = {c.path: compare(c) for c in changes}
        except NotKnown as exc:
            return cannot_tell(f"a file cannot be compared: {exc}")
        if set(now.values()) == {Now.AFTER}:
            return happened(result, _there(changes))
        if set(now.values()) == {Now.BEFORE}:
            return did_not_happen("the files are as they were before, and were not written to")
        names = ", ".join(f"{Path(p).name}: {_WORDS[n]}" for p, n in now.items())
        return cannot_tell(_cut_off(probe, changes[0]) or names)


_WORDS = {
    Now.AFTER: "as intended",
    Now.BEFORE: "as before",
    Now.NEITHER: "neither as before nor as intended",
}


def _there(changes: list[Change]) -> str:
    if all(c.before == c.after for c in changes):
        # The tool would have left them just so: whether it came to that makes no difference.
        return "the files hold what was to be written; they did before the call too"
    return "the files hold what was to be written"


def _cut_off(probe: Probe, change: Change) -> str:
    """Say that a whole-file write may have stopped on its way, where the file looks like it.

    It is no verdict: somebody may have shortened the file after it was written.
    """
    if probe.tool.name != "write_file":
        return ""
    try:
        whole, there = written(_text(probe.arguments, "content")), content(Path(change.path))
    except NotKnown:
        return ""
    if there is None or not whole.startswith(there):
        return ""
    name = Path(change.path).name
    return f"{name} holds only the first {len(there)} of {len(whole)} bytes to be written"


def _reconciler(name: str, plan: Plan) -> Reconciler:
    made = FileReconciler(plan)
    return Reconciler(
        made.look, name=f"files: {name}", reads_see_writes=True, prepare=made.prepare,
        delays=(0.0,), timeout=30.0,
    )  # fmt: skip


RECONCILERS: dict[str, Reconciler] = {
    name: _reconciler(name, plan)
    for name, plan in (
        ("write_file", plan_write),
        ("replace_in_file", plan_replace),
        ("apply_patch", plan_patch),
        ("apply_unified_diff", plan_diff),
    )
}
"""By the tool's name."""
