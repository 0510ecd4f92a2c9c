"""What an `apply_patch` call does to the disk, worked out before it is made.

A patch is an envelope of file operations: add, delete, update with hunks, move, made one after the
other. A line that belongs to no operation, a hunk that fits nowhere or in several places: the tool
stops there, on its way, so nothing is foretold of such a patch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..reconciler import Call
from .disk import Change, Draft, NotKnown, place, shown, text_of, written

BEGIN, END = "*** Begin Patch", "*** End Patch"
ADD, DELETE, UPDATE = "*** Add File: ", "*** Delete File: ", "*** Update File: "
MOVE = "*** Move to: "

_BODY = {ADD: "+", DELETE: "", UPDATE: " +-@"}
"""With what the lines of an operation begin."""


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

    def take(self, line: str) -> None:
        """Add a line to the operation.

        Raises:
            NotKnown: it is no line of such an operation.
        """
        first = self.kind == UPDATE and not self.lines and not self.move_to
        if first and line.startswith(MOVE):
            self.move_to = line[len(MOVE) :].strip()
        elif line[0] in _BODY[self.kind] and (line[0] != "@" or line.startswith("@@")):
            self.lines.append(line)
        elif self.kind != DELETE or line.strip("\r\n"):
            raise NotKnown("a line of no operation")


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
        kind = next((k for k in _BODY if line.startswith(k)), "")
        if kind:
            if current is not None:
                yield current
            current = Operation(kind, line[len(kind) :].strip())
        elif current is not None:
            current.take(line)
        elif line.strip("\r\n"):
            raise NotKnown("no patch of this form")
    if current is not None:
        yield current


def hunks(lines: list[str]) -> list[tuple[list[str], list[str]]]:
    """Return (old lines, new lines) of each hunk of an update."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("@@"):
            found.append([])
        else:
            found[-1].append(line)
    return [
        ([x[1:] for x in hunk if x[0] != "+"], [x[1:] for x in hunk if x[0] != "-"])
        for hunk in found
        if hunk
    ]


def updated(text: str, lines: list[str]) -> tuple[str, int]:
    """Return a text with the hunks of an update applied, and their number.

    Raises:
        NotKnown: there are none; or one fits nowhere after the one before it, or in more than one
            place.
    """
    there = text.splitlines(keepends=True)
    parts = hunks(lines)
    done = 0
    for old, new in parts:
        size = len(old)
        fits = [i for i in range(done, len(there) - size + 1) if there[i : i + size] == old]
        if not old or len(fits) != 1:
            raise NotKnown("a hunk does not fit in exactly one place")
        there[fits[0] : fits[0] + size] = new
        done = fits[0] + len(new)
    if not parts:
        raise NotKnown("no hunks")
    return "".join(there), len(parts)


class _Patching:
    def __init__(self, call: Call) -> None:
        self.call, self.draft = call, Draft(call)
        self.hunks = 0
        self.changed: list[str] = []
        self.added: list[str] = []
        self.deleted: list[str] = []

    def take(self, made: Operation) -> None:
        file = place(self.call, made.path)
        before = self.draft.read(file)
        if made.kind == UPDATE:
            self._update(made, before)
            return
        if (before is None) != (made.kind == ADD):
            raise NotKnown("it refuses")
        self.hunks += 1
        if made.kind == DELETE:
            self.draft.put(file, None)
            self.deleted.append(shown(self.call, file))
            return
        self.draft.put(file, written("".join(x[1:] for x in made.lines)))
        self.changed.append(shown(self.call, file))
        self.added.append(shown(self.call, file))

    def _update(self, made: Operation, before: bytes | None) -> None:
        file = place(self.call, made.path)
        text, count = updated(text_of(before), made.lines)
        target = place(self.call, made.move_to) if made.move_to else file
        if target != file:
            if self.draft.read(target) is not None:
                raise NotKnown("it refuses to move")
            self.draft.put(file, None)
            self.deleted.append(shown(self.call, file))
        self.draft.put(target, written(text))
        self.changed.append(shown(self.call, target))
        self.hunks += count


def plan_patch(call: Call, arguments: Mapping[str, Any]) -> tuple[list[Change], Any]:
    """Work out an `apply_patch`.

    Raises:
        NotKnown: what it does cannot be told beforehand.
    """
    patch = arguments.get("patch")
    if not isinstance(patch, str):
        raise NotKnown("no patch")
    made, patching = list(operations(patch)), _Patching(call)
    for operation in made:
        patching.take(operation)
    if not made:
        raise NotKnown("nothing to do")
    result = {
        "changed_files": patching.changed, "added_files": patching.added,
        "deleted_files": patching.deleted, "file_count": len(made), "hunk_count": patching.hunks,
    }  # fmt: skip
    return patching.draft.changes(), result
