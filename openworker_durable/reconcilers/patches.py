"""What an `apply_patch` call does to the disk, worked out before it is made.

A patch is an envelope of file operations: add, delete, update with hunks, move. An update is
worked out only where each hunk fits in exactly one place, so that every way to apply it comes to
the same text; a patch that touches one file twice is left to a person.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..reconciler import Call
from .disk import ABSENT, Change, NotKnown, content, digest, place, shown, text_of, written

BEGIN, END = "*** Begin Patch", "*** End Patch"
ADD, DELETE, UPDATE = "*** Add File: ", "*** Delete File: ", "*** Update File: "
MOVE = "*** Move to: "


@dataclass
class Operation:
    """One file operation of a patch.

    Args:
        kind: `ADD`, `DELETE` or `UPDATE`.
        path: of the file.
        lines: what follows its first line, as written.
        move_to: for an update, the file's new path.
    """

    kind: str
    path: str
    lines: list[str] = field(default_factory=list)
    move_to: str = ""


def operations(patch: str) -> Iterator[Operation]:
    """Yield the operations of a patch.

    Raises:
        NotKnown: it is no patch of this form.
    """
    lines = patch.splitlines(keepends=True)
    if len(lines) < 2 or lines[0].strip() != BEGIN or lines[-1].strip() != END:
        raise NotKnown("no patch")
    current: Operation | None = None
    for line in lines[1:-1]:
        kind = next((k for k in (ADD, DELETE, UPDATE) if line.startswith(k)), "")
        if kind:
            if current is not None:
                yield current
            current = Operation(kind, line[len(kind) :].strip())
        elif current is not None and line.startswith(MOVE) and not current.lines:
            current.move_to = line[len(MOVE) :].strip()
        elif current is not None and not line.startswith("*** "):
            current.lines.append(line)
        elif line.strip():
            raise NotKnown("no patch of this form")
    if current is not None:
        yield current


def hunks(lines: list[str]) -> list[tuple[str, str]]:
    """Return (old text, new text) of each hunk of an update.

    Raises:
        NotKnown: a line is no line of a hunk.
    """
    found: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("@@"):
            found.append([])
        elif line[:1] in (" ", "+", "-"):
            found[-1].append(line)
        elif line.strip():
            raise NotKnown("no hunk")
    return [
        ("".join(x[1:] for x in hunk if x[0] != "+"), "".join(x[1:] for x in hunk if x[0] != "-"))
        for hunk in found
        if hunk
    ]


def updated(text: str, lines: list[str]) -> tuple[str, int]:
    """Return a text with the hunks of an update applied, and their number.

    Raises:
        NotKnown: a hunk fits nowhere, or in more than one place.
    """
    parts = hunks(lines)
    for old, new in parts:
        at = text.find(old) if old else -1
        if at < 0 or text.find(old, at + 1) >= 0 or (at > 0 and text[at - 1] != "\n"):
            raise NotKnown("a hunk does not fit in exactly one place")
        text = text[:at] + new + text[at + len(old) :]
    return text, len(parts)


class _Plan:
    def __init__(self, call: Call) -> None:
        self.call = call
        self.changes: dict[str, Change] = {}
        self.hunks = 0
        self.changed: list[str] = []
        self.added: list[str] = []
        self.deleted: list[str] = []

    def put(self, file: Path, before: bytes | None, after: bytes | None) -> None:
        if str(file) in self.changes:
            raise NotKnown("one file twice")
        self.changes[str(file)] = Change(
            str(file), digest(before), ABSENT if after is None else digest(after)
        )
        (self.deleted if after is None else self.changed).append(shown(self.call, file))

    def take(self, made: Operation) -> None:
        file = place(self.call, made.path)
        before = content(file)
        if made.kind == ADD:
            if before is not None or any(x[:1] != "+" for x in made.lines):
                raise NotKnown("it refuses to add")
            self.put(file, None, written("".join(x[1:] for x in made.lines)))
            self.added.append(shown(self.call, file))
            self.hunks += 1
        elif made.kind == DELETE:
            if before is None:
                raise NotKnown("nothing to delete")
            self.put(file, before, None)
            self.hunks += 1
        else:
            self.update(made, file, before)

    def update(self, made: Operation, file: Path, before: bytes | None) -> None:
        text, count = updated(text_of(before), made.lines)
        if count == 0:
            raise NotKnown("no hunks")
        self.hunks += count
        target = place(self.call, made.move_to) if made.move_to else file
        if target == file:
            self.put(file, before, written(text))
            return
        if content(target) is not None:
            raise NotKnown("it refuses to move")
        self.put(target, None, written(text))
        self.put(file, before, None)


def plan_patch(call: Call, arguments: Mapping[str, Any]) -> tuple[list[Change], Any]:
    """Work out an `apply_patch`.

    Raises:
        NotKnown: what it does cannot be told beforehand.
    """
    patch = arguments.get("patch")
    if not isinstance(patch, str):
        raise NotKnown("no patch")
    plan = _Plan(call)
    made = list(operations(patch))
    for operation in made:
        plan.take(operation)
    if not made:
        raise NotKnown("nothing to do")
    result = {
        "changed_files": plan.changed, "added_files": plan.added, "deleted_files": plan.deleted,
        "file_count": len(made), "hunk_count": plan.hunks,
    }  # fmt: skip
    return list(plan.changes.values()), result
