"""The built-in reconcilers beside OpenWorker's own file tools: what is foretold is what they do."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openworker_durable.models import ToolIdentity
from openworker_durable.reconciler import Call, Probe, Verdict, VerdictKind
from openworker_durable.reconcilers.files import RECONCILERS
from openworker_durable.reconcilers.git import RECONCILER
from tests import needs

pytestmark = needs.host

PATCH = (
    "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n-two\n+2\n*** Add File: sub/b.txt\n+bee\n"
    "*** Delete File: c.txt\n*** End Patch\n"
)
MOVE = (
    "*** Begin Patch\n*** Update File: a.txt\n*** Move to: d.txt\n@@\n one\n-two\n+2\n"
    "*** End Patch\n"
)
DIFF = (
    "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\t2026\n@@ -2,2 +2,2 @@\n one\n-two\n+2\n"
    "--- /dev/null\n+++ b/sub/b.txt\n@@ -0,0 +1 @@\n+bee\n\\ No newline at end of file\n"
    "--- a/c.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-sea\n"
)
TWICE = (
    "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+1\n*** Update File: a.txt\n@@\n-1\n"
    "+eins\n*** Add File: e.txt\n*** End Patch"
)
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "write": ("write_file", {"path": "new/é.txt", "content": "a\r\nb\n"}),
    "overwrite": ("write_file", {"path": "a.txt", "content": ""}),
    "replace": ("replace_in_file", {"path": "a.txt", "old": "two", "new": "deux"}),
    "replace in crlf": ("replace_in_file", {"path": "crlf.txt", "old": "x\ny", "new": "z"}),
    "patch": ("apply_patch", {"patch": PATCH}),
    "move": ("apply_patch", {"patch": MOVE}),
    "patch one file twice": ("apply_patch", {"patch": TWICE}),
    "diff": ("apply_unified_diff", {"diff": DIFF}),
}


LINE = st.sampled_from(["a\n", "b\n", "c\n", "\n", "a\r\n", "b\x0c", "- a\n", "a\r", "c"])
TEXT = st.lists(LINE, max_size=6).map("".join)
NAME = st.sampled_from(["a.txt", "b.txt", "sub/c.txt"])
LETTER = st.sampled_from("abc")
ADDED = st.builds(
    lambda n, b: [f"*** Add File: {n}", *(f"+{x}" for x in b)], NAME, st.lists(LETTER)
)
DELETED = NAME.map(lambda n: [f"*** Delete File: {n}"])
HUNK = st.lists(st.builds("{}{}".format, st.sampled_from(" +-"), LETTER), min_size=1, max_size=2)
MOVING = st.none() | st.none() | st.builds("*** Move to: {}".format, NAME)
UPDATED = st.builds(
    lambda n, m, hs: [f"*** Update File: {n}", *([m] if m else []), *(x for h in hs for x in h)],
    NAME, MOVING, st.lists(HUNK.map(lambda h: ["@@", *h]), min_size=1, max_size=2),
)  # fmt: skip
STRAY = st.sampled_from([[""], ["x"], ["+x"], ["*** End of File"], ["*** Move to: b.txt"]])
PART = st.one_of(UPDATED, UPDATED, ADDED, DELETED, st.builds(list.__add__, UPDATED, STRAY),
                 st.builds(list.__add__, DELETED, STRAY))  # fmt: skip
PATCHES = st.lists(PART, min_size=1, max_size=3).map(
    lambda ps: "\n".join(["*** Begin Patch", *(x for p in ps for x in p), "*** End Patch", ""])
)


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, str, str]:
    """Return a text, a patch and a diff that mean one edit of it."""
    before = draw(st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=9))
    after = list(before)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(after)))
        after[at : at + draw(st.integers(0, 2))] = draw(st.lists(st.sampled_from("abxy")))
    around = draw(st.integers(0, 3))
    diff = list(difflib.unified_diff(before, after, "a/a.txt", "b/a.txt", n=around, lineterm=""))
    hunks = ["@@" if x.startswith("@@") else x for x in diff[2:]]
    patch = ["*** Begin Patch", "*** Update File: a.txt", *hunks, "*** End Patch"]
    return "".join(f"{x}\n" for x in before), "\n".join(patch), "".join(f"{x}\n" for x in diff)


def tools(folder: Path) -> dict[str, Callable[..., Any]]:
    from aisuite.toolkits import files

    return {t.__name__: t for t in files(root=str(folder), allow_write=True)}


def looked(made: Call, noted: str) -> Verdict:
    probe = Probe("x", 1, made.tool, made.arguments, made.workspace, prepared=noted)
    answer = RECONCILERS[made.tool.name].look(probe)
    assert isinstance(answer, Verdict)
    return answer


@pytest.mark.parametrize("name", CALLS)
def test_what_is_foretold_is_what_the_tool_does_and_returns(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"zero\none\ntwo\nthree\n")
    (tmp_path / "c.txt").write_bytes(b"sea\n")
    (tmp_path / "crlf.txt").write_bytes(b"x\r\ny\r\n")
    tool, arguments = CALLS[name]
    made = Call("x", 1, ToolIdentity(name=tool), arguments, tmp_path)
    prepare = RECONCILERS[tool].prepare
    assert prepare is not None
    noted = prepare(made)
    assert looked(made, noted).kind is VerdictKind.DID_NOT_HAPPEN
    returned = tools(tmp_path)[tool](**arguments)
    verdict = looked(made, noted)
    assert verdict.kind is VerdictKind.HAPPENED
    assert verdict.result == returned


def beside_the_tool(tool: str, arguments: dict[str, Any], there: dict[str, str]) -> None:
    """Make a call in a fresh folder, and compare it with what was foretold."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for file, text in there.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(text.encode())
        made = Call("x", 1, ToolIdentity(name=tool), arguments, folder)
        prepare = RECONCILERS[tool].prepare
        assert prepare is not None
        noted = prepare(made)
        before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        try:
            returned = tools(folder)[tool](**arguments)
        except (ValueError, OSError):
            verdict = looked(made, noted)
            assert verdict.kind is not VerdictKind.HAPPENED
            if verdict.kind is VerdictKind.DID_NOT_HAPPEN:
                assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
        else:
            verdict = looked(made, noted)
            assert (verdict.kind, verdict.result) == (VerdictKind.HAPPENED, returned)


PLAIN = st.lists(LETTER, max_size=4, unique=True).map(lambda x: "".join(f"{t}\n" for t in x))
FILES = st.fixed_dictionaries({}, optional=dict.fromkeys(("a.txt", "b.txt", "sub/c.txt"), TEXT))


@settings(max_examples=800)
@given(patch=PATCHES, there=FILES)
def test_any_patch_is_foretold_as_the_tool_applies_it(patch: str, there: dict[str, str]) -> None:
    beside_the_tool("apply_patch", {"patch": patch}, there)


@settings(max_examples=300)
@given(edit=edits(), other=TEXT)
def test_any_edit_is_foretold_as_the_tools_make_it(edit: tuple[str, str, str], other: str) -> None:
    text, patch, diff = edit
    for there in (text, other):
        beside_the_tool("apply_patch", {"patch": patch}, {"a.txt": there})
        beside_the_tool("apply_unified_diff", {"diff": diff}, {"a.txt": there})


@settings(max_examples=200)
@given(
    old=st.sampled_from("abc\n") | TEXT, new=TEXT, count=st.integers(0, 3), there=FILES,
    overwrite=st.sampled_from([True, False, None, 0]),
)  # fmt: skip
def test_any_write_or_replacement_is_foretold_as_the_tool_makes_it(
    old: str, new: str, count: int, there: dict[str, str], overwrite: Any
) -> None:
    write = {"path": "a.txt", "content": new, "overwrite": overwrite}
    beside_the_tool("write_file", write, there)
    replace = {"path": "a.txt", "old": old, "new": new, "expected_replacements": count}
    beside_the_tool("replace_in_file", replace, there)


@needs.git
@needs.sh
def test_a_commit_is_found_with_a_result_of_the_shells_own_shape(tmp_path: Path) -> None:
    from coworker.tools.shell import LocalExecutor, shell_tools

    executor = LocalExecutor(cwd=tmp_path)
    try:
        run_shell = {t.__name__: t for t in shell_tools(executor)}["run_shell"]
        run_shell(command="git init -q; git config user.name A; git config user.email a@b.example")
        arguments = {"command": "git commit -q --allow-empty -m 'one thing'"}
        made = Call("x", 1, ToolIdentity(name="run_shell"), arguments, tmp_path)
        assert RECONCILER.knows(arguments)
        assert RECONCILER.prepare is not None
        noted = RECONCILER.prepare(made)
        returned = run_shell(**arguments)
    finally:
        executor.close()
        executor._proc.wait(timeout=10)
        executor._reader.join(timeout=10)
        executor._proc.stdin.close()
        executor._proc.stdout.close()
    verdict = RECONCILER.look(Probe("x", 1, made.tool, arguments, tmp_path, prepared=noted))
    assert isinstance(verdict, Verdict)
    assert verdict.kind is VerdictKind.HAPPENED
    assert verdict.result.keys() == returned.keys()
    lost = ("output", "exit_code")
    assert {k: v for k, v in verdict.result.items() if k not in lost} == {
        k: v for k, v in returned.items() if k not in lost
    }
