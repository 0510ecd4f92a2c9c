"""Reconcilers of the host's file tools: what is on disk, compared with what was intended.

Before the call they note a digest of each file as it is and as it is to become. Afterwards: all as
intended, it happened; all as before, it did not; a `write_file` of which the file holds only the
beginning was cut off; anything else tells nothing, and a person is asked. A call is asked about
only once its own thread has ended or its process is gone, so nothing writes after the look.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..reconciler import (
    Call,
    Probe,
    Reconciler,
    Verdict,
    cannot_tell,
    did_not_happen,
    failed,
    happened,
)
from .disk import (
    Change,
    NotKnown,
    Now,
    Plan,
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
    if before is not None and arguments.get("overwrite") is False:
        raise NotKnown("it refuses to overwrite")
    after = written(_text(arguments, "content"))
    return [Change(str(file), digest(before), digest(after))], shown(call, file)


def plan_replace(call: Call, arguments: Mapping[str, Any]) -> tuple[list[Change], Any]:
    """Work out a `replace_in_file`."""
    file = place(call, arguments.get("path"))
    old, new = _text(arguments, "old"), _text(arguments, "new")
    data = content(file)
    before = text_of(data)
    count = before.count(old) if old else 0
    if count < 1 or count != arguments.get("expected_replacements", 1):
        raise NotKnown("it refuses to replace")
    after = before.replace(old, new)
    result = {
        "path": shown(call, file), "replacements": count,
        "chars_before": len(before), "chars_after": len(after),
    }  # fmt: skip
    return [Change(str(file), digest(data), digest(written(after)))], result


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
        except NotKnown:
            return cannot_tell("a file cannot be read")
        if set(now.values()) == {Now.AFTER}:
            return happened(result, "the files hold what was to be written")
        if set(now.values()) == {Now.BEFORE}:
            return did_not_happen("the files are as they were before")
        return self._in_between(probe, now)

    def _in_between(self, probe: Probe, now: Mapping[str, Now]) -> Verdict:
        cut = _cut_off(probe)
        if cut is not None:
            return cut
        names = ", ".join(f"{Path(p).name}: {_WORDS[n]}" for p, n in now.items())
        return cannot_tell(names)


_WORDS = {
    Now.AFTER: "as intended",
    Now.BEFORE: "as before",
    Now.NEITHER: "neither as before nor as intended",
}


def _cut_off(probe: Probe) -> Verdict | None:
    """Return that a whole-file write stopped on its way, where the file shows it."""
    if probe.tool.name != "write_file":
        return None
    try:
        file = place(probe, probe.arguments.get("path"))
        whole = written(_text(probe.arguments, "content"))
        there = content(file)
    except NotKnown:
        return None
    if there is None or not whole.startswith(there):
        return None
    name = shown(probe, file)
    return failed(
        {
            "error": f"The write was cut off: {name} holds only the first {len(there)} of "
            f"{len(whole)} bytes that were to be written. Its earlier content is gone."
        },
        "the file holds only the beginning",
    )


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
    )
}
"""By the tool's name."""
