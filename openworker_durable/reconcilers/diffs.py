"""What an `apply_unified_diff` call does to the disk, worked out before it is made.

A diff is read as the host's tool reads it: whole, before anything is done; a file's path is the new
one, or the old one where the file goes away; hunks have to fit at the lines they name. Where one
does not, the tool stops on its way, so nothing is foretold of such a diff.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..reconciler import Call
from .disk import Change, Draft, NotKnown, place, shown, text_of, written

NOWHERE = "/dev/null"
"""Stands for the path of a file that is not there before, or after."""

_NO_NEWLINE = "\\ No newline at end of file"


@dataclass
class Hunk:
    """One hunk: the line it starts at, from 1, its line counts, and its lines as written."""

    start: int
    old: int
    new: int
    lines: list[str] = field(default_factory=list)


@dataclass
class FileDiff:
    """The hunks of one file."""

    old_path: str
    new_path: str
    hunks: list[Hunk] = field(default_factory=list)


def file_diffs(diff: str) -> list[FileDiff]:
    """Return the files of a diff.

    Raises:
        NotKnown: it is no diff of this form.
    """
    found: list[FileDiff] = []
    lines = iter(diff.splitlines(keepends=True))
    for line in lines:
        if line.startswith("--- "):
            found.append(FileDiff(_path(line, "--- "), _path(next(lines, ""), "+++ ")))
        elif found and line.startswith("@@ "):
            found[-1].hunks.append(_hunk(line))
        elif found and found[-1].hunks and not line.startswith(_NO_NEWLINE):
            if line[0] not in " +-":
                raise NotKnown("no line of a hunk")
            found[-1].hunks[-1].lines.append(line)
    if not found or not all(f.hunks for f in found):
        raise NotKnown("no diff")
    return found


def _path(line: str, mark: str) -> str:
    if not line.startswith(mark):
        raise NotKnown("no path of a diff")
    value = line[len(mark) :].strip().split("\t", 1)[0]
    # The tool takes the prefix off twice: when it reads a path, and when it resolves it.
    return value if value == NOWHERE else _bare(_bare(value))


def _bare(path: str) -> str:
    return path[2:] if path.startswith(("a/", "b/")) else path


def _hunk(line: str) -> Hunk:
    try:
        old, new = line.split()[1:3]
        if (old[0], new[0]) != ("-", "+"):
            raise NotKnown("no head of a hunk")
        (start, removed), (_, added) = _range(old[1:]), _range(new[1:])
    except ValueError as exc:
        raise NotKnown("no head of a hunk") from exc
    return Hunk(start, removed, added)


def _range(words: str) -> tuple[int, int]:
    start, comma, count = words.partition(",")
    return int(start), int(count) if comma else 1


def patched(text: str, hunks: list[Hunk]) -> str:
    """Return a text with hunks applied.

    Raises:
        NotKnown: one does not fit at its place.
    """
    there, made, at = text.splitlines(keepends=True), list[str](), 0
    for hunk in hunks:
        start = max(hunk.start - 1, 0)
        old = [line[1:] for line in hunk.lines if line[0] != "+"]
        new = [line[1:] for line in hunk.lines if line[0] != "-"]
        if start < at or there[start : start + len(old)] != old:
            raise NotKnown("a hunk does not fit")
        if (len(old), len(new)) != (hunk.old, hunk.new):
            raise NotKnown("a hunk is not as long as it says")
        made += [*there[at:start], *new]
        at = start + len(old)
    return "".join([*made, *there[at:]])


def _apply(call: Call, draft: Draft, one: FileDiff) -> Iterator[tuple[str, str]]:
    """Apply the diff of one file; yields lists of the tool's result and what belongs there."""
    gone, fresh = one.new_path == NOWHERE, one.old_path == NOWHERE
    file = place(call, one.old_path if gone else one.new_path)
    before = draft.read(file)
    text = patched("" if fresh else text_of(before), one.hunks)
    draft.put(file, None if gone else written(text))
    if gone:
        yield "deleted_files", shown(call, file)
        return
    yield "changed_files", shown(call, file)
    if fresh:
        yield "added_files", shown(call, file)


def plan_diff(call: Call, arguments: Mapping[str, Any]) -> tuple[list[Change], Any]:
    """Work out an `apply_unified_diff`.

    Raises:
        NotKnown: what it does cannot be told beforehand.
    """
    diff = arguments.get("diff")
    if not isinstance(diff, str):
        raise NotKnown("no diff")
    found, draft = file_diffs(diff), Draft(call)
    lists: dict[str, list[str]] = {"changed_files": [], "added_files": [], "deleted_files": []}
    for one in found:
        for name, path in _apply(call, draft, one):
            lists[name].append(path)
    counts = {"file_count": len(found), "hunk_count": sum(len(f.hunks) for f in found)}
    return draft.changes(), {**lists, **counts}
