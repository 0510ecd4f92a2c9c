"""C23: what is foretold of patches and diffs, and what the files say afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from openworker_durable.reconciler import VerdictKind
from tests.unit.file_calls import call_of, looked, patch_of, prepared

K = VerdictKind

PATCH = """*** Begin Patch
*** Update File: a.txt
@@
 one
-two
+2
*** Add File: sub/b.txt
+bee
*** Delete File: c.txt
*** End Patch
"""


def test_a_patch_of_several_files_is_all_or_nothing_or_left_to_a_person(tmp_path: Path) -> None:
    a, b, c = (tmp_path / n for n in ("a.txt", "sub/b.txt", "c.txt"))
    a.write_text("zero\none\ntwo\nthree\n")
    c.write_text("sea\n")
    made = call_of(tmp_path, "apply_patch", {"patch": PATCH})
    noted = prepared(made)
    assert looked(made, noted).kind is K.DID_NOT_HAPPEN
    a.write_text("zero\none\n2\nthree\n")
    half = looked(made, noted)
    assert half.kind is K.CANNOT_TELL
    assert "a.txt: as intended" in half.note
    assert "c.txt: as before" in half.note
    b.parent.mkdir()
    b.write_text("bee\n")
    c.unlink()
    assert looked(made, noted).kind is K.HAPPENED


@pytest.mark.parametrize("text", ["one\ntwo\none\ntwo\n", "none\ntwo\n", "one\n", "xone\ntwo\n"])
def test_a_hunk_that_does_not_fit_in_exactly_one_place_is_not_guessed(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "a.txt").write_text(text)
    patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n-two\n+2\n*** End Patch\n"
    assert prepared(call_of(tmp_path, "apply_patch", {"patch": patch})) == ""


@pytest.mark.parametrize(
    "lines",
    [
        ("*** Delete File: a.txt", "+left over"),
        ("*** Delete File: a.txt", "*** Move to: b.txt"),
        ("*** Add File: b.txt", "*** Move to: c.txt"),
        ("*** Add File: b.txt", "+x", ""),
        ("*** Update File: a.txt", "@@", "-one", "", "+1"),
        ("*** Update File: a.txt", "@@", "-one", "+1", "*** End of File"),
        ("*** Update File: a.txt", "@"),
        ("*** Update File: a.txt", "*** Move to: b.txt"),
        ("*** Update File: a.txt", "+only new"),
        ("*** Rename File: a.txt",),
        ("+x", "*** Delete File: a.txt"),
    ],
)
def test_nothing_is_foretold_of_a_patch_at_which_the_tool_stops_on_its_way(
    tmp_path: Path, lines: tuple[str, ...]
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert prepared(call_of(tmp_path, "apply_patch", patch_of(*lines))) == ""


def test_a_hunk_is_looked_for_only_after_the_one_before_it(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x\nend\nx\n")
    made = call_of(
        tmp_path, "apply_patch",
        patch_of("*** Update File: a.txt", "@@", " end", "@@", "-x", "+y"),
    )  # fmt: skip
    noted = prepared(made)
    file.write_text("x\nend\ny\n")
    assert looked(made, noted).kind is K.HAPPENED


def test_a_patch_that_goes_over_a_file_twice_is_foretold_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\n")
    step = ("*** Update File: a.txt", "@@")
    made = call_of(tmp_path, "apply_patch", patch_of(*step, "-one", "+two", *step, "-two", "+3"))
    noted = prepared(made)
    file.write_text("two\n")
    assert looked(made, noted).kind is K.CANNOT_TELL
    file.write_text("3\n")
    verdict = looked(made, noted)
    assert verdict.kind is K.HAPPENED
    assert verdict.result["changed_files"] == ["a.txt", "a.txt"]


DIFF = """diff --git a/a.txt b/a.txt
--- a/a.txt
+++ b/a.txt\t2026-01-01
@@ -1,2 +1,2 @@
 one
-two
+2
--- /dev/null
+++ b/sub/b.txt
@@ -0,0 +1 @@
+bee
\\ No newline at end of file
--- a/c.txt
+++ /dev/null
@@ -1 +0,0 @@
-sea
"""


def test_a_unified_diff(tmp_path: Path) -> None:
    a, b, c = (tmp_path / n for n in ("a.txt", "sub/b.txt", "c.txt"))
    a.write_text("one\ntwo\n")
    c.write_text("sea\n")
    made = call_of(tmp_path, "apply_unified_diff", {"diff": DIFF})
    noted = prepared(made)
    assert looked(made, noted).kind is K.DID_NOT_HAPPEN
    a.write_text("one\n2\n")
    b.parent.mkdir()
    b.write_text("bee\n")
    half = looked(made, noted)
    assert half.kind is K.CANNOT_TELL
    assert "c.txt: as before" in half.note
    c.unlink()
    verdict = looked(made, noted)
    assert verdict.kind is K.HAPPENED
    assert verdict.result == {
        "changed_files": ["a.txt", "sub/b.txt"], "added_files": ["sub/b.txt"],
        "deleted_files": ["c.txt"], "file_count": 3, "hunk_count": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        ("+++ b/a.txt\t2026-01-01", "--- b/a.txt"),
        ("@@ -1,2 +1,2 @@", "@@ -1,2 +1,3 @@"),
        ("@@ -1,2 +1,2 @@", "@@ -2,2 +2,2 @@"),
        ("@@ -1,2 +1,2 @@", "@@ 1,2 1,2 @@"),
        ("@@ -1,2 +1,2 @@", "@@ -x +y @@"),
        ("@@ -1,2 +1,2 @@", "@@ -1 @@"),
        (" one\n", "one\n"),
        ("-two\n", "-zwei\n"),
        ("+2\n", "+2\n@@ -1,1 +1,1 @@\n-one\n+1\n"),
        ("@@ -1 +0,0 @@\n-sea\n", ""),
    ],
)
def test_nothing_is_foretold_of_a_diff_that_does_not_fit(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "c.txt").write_text("sea\n")
    for diff, noted in ((DIFF, True), (DIFF.replace(*change), False)):
        made = call_of(tmp_path, "apply_unified_diff", {"diff": diff})
        assert bool(prepared(made)) == noted
