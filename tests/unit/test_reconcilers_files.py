"""C23: what the files on disk say of a file tool's call that was cut short."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openworker_durable.protection import SHELL_TOOLS, WRITE_TOOLS
from openworker_durable.reconciler import Call, VerdictKind
from openworker_durable.reconcilers import BUILT_IN, disk
from openworker_durable.reconcilers.files import RECONCILERS
from tests import needs
from tests.unit.file_calls import call_of, looked, patch_of, prepared

K = VerdictKind


def write(folder: Path, content: str = "new\n", **more: Any) -> Call:
    return call_of(folder, "write_file", {"path": "a.txt", "content": content, **more})


def test_c23_a_written_file_shows_that_it_happened(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old\n")
    made = write(tmp_path)
    noted = prepared(made)
    assert looked(made, noted).kind is K.DID_NOT_HAPPEN
    file.write_text("new\n")
    verdict = looked(made, noted)
    assert (verdict.kind, verdict.result) == (K.HAPPENED, "a.txt")
    file.write_text("mine\n")
    assert looked(made, noted).kind is K.CANNOT_TELL
    file.unlink()
    assert looked(made, noted).kind is K.CANNOT_TELL


def test_a_file_that_was_not_there(tmp_path: Path) -> None:
    made = write(tmp_path)
    noted = prepared(made)
    assert looked(made, noted).kind is K.DID_NOT_HAPPEN
    (tmp_path / "a.txt").write_text("new\n")
    assert looked(made, noted).kind is K.HAPPENED


@pytest.mark.parametrize("there", ["", "n", "new"])
def test_a_file_that_holds_only_the_beginning_tells_nothing_and_is_described(
    tmp_path: Path, there: str
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old\n")
    made = write(tmp_path)
    noted = prepared(made)
    file.write_text(there)
    verdict = looked(made, noted)
    assert verdict.kind is K.CANNOT_TELL
    assert f"a.txt holds only the first {len(there)} of" in verdict.note


def test_a_file_that_was_written_and_put_back_since_is_not_untouched(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old\n")
    was = file.stat()
    made = write(tmp_path)
    noted = prepared(made)
    file.write_text("new\n")
    file.write_text("old\n")
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns + 10**9))
    assert looked(made, noted).kind is K.CANNOT_TELL
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert looked(made, noted).kind is K.DID_NOT_HAPPEN


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_is_another_one_now_shows_no_absence(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    (folder / "gone.txt").write_text("sea\n")
    fresh = call_of(folder, "write_file", {"path": "deep/a.txt", "content": "x"})
    patch = "*** Begin Patch\n*** Delete File: gone.txt\n*** End Patch\n"
    delete = call_of(folder, "apply_patch", {"patch": patch})
    notes = [prepared(fresh), prepared(delete)]
    assert looked(fresh, notes[0]).kind is K.DID_NOT_HAPPEN
    folder.rename(tmp_path / "elsewhere")
    if there:
        folder.mkdir()
    for made, noted in zip((fresh, delete), notes, strict=True):
        verdict = looked(made, noted)
        assert verdict.kind is K.CANNOT_TELL
        assert "its folder is not there" in verdict.note


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("write_file", {"content": "new\n", "overwrite": False}),
        ("write_file", {"content": "new\n", "overwrite": None}),
        ("replace_in_file", {"old": "", "new": "x"}),
        ("replace_in_file", {"old": "old", "new": "x", "expected_replacements": 2}),
    ],
)
def test_a_call_that_the_tool_refuses_did_not_happen_while_the_file_is_untouched(
    tmp_path: Path, name: str, arguments: dict[str, Any]
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old\n")
    made = call_of(tmp_path, name, {"path": "a.txt", **arguments})
    noted = prepared(made)
    assert looked(made, noted).kind is K.DID_NOT_HAPPEN
    file.write_text("new\n")
    assert looked(made, noted).kind is K.CANNOT_TELL


def test_an_empty_file_before_the_call_is_no_cut_off_write(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    made = write(tmp_path)
    assert looked(made, prepared(made)).kind is K.DID_NOT_HAPPEN


def test_the_same_content_once_more_happened(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("new\n")
    made = write(tmp_path)
    verdict = looked(made, prepared(made))
    assert verdict.kind is K.HAPPENED
    assert "before the call too" in verdict.note


@pytest.mark.parametrize(
    "made",
    [
        call_of(None, "write_file", {"path": "a.txt", "content": "x"}),
        call_of(Path("."), "write_file", {"path": 7, "content": "x"}),
        call_of(Path("."), "write_file", {"path": "a.txt"}),
        call_of(Path("."), "write_file", {"path": "tests", "content": "x"}),
        call_of(Path("."), "write_file", {"path": "a.txt", "content": "\ud800"}),
        call_of(Path("."), "write_file", {"path": "a\0b", "content": "x"}),
        call_of(Path("."), "replace_in_file", {"path": "no such", "old": "a", "new": "b"}),
        call_of(Path("."), "apply_patch", {"patch": "no patch"}),
        call_of(Path("."), "apply_patch", {"patch": 7}),
        call_of(Path("."), "apply_unified_diff", {"diff": "no diff"}),
        call_of(Path("."), "apply_unified_diff", {"diff": None}),
    ],
)
def test_what_cannot_be_told_beforehand_is_left_to_a_person(made: Call) -> None:
    assert prepared(made) == ""
    assert looked(made, "").kind is K.CANNOT_TELL


def test_a_replacement(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one two two\n")
    made = call_of(
        tmp_path, "replace_in_file",
        {"path": "a.txt", "old": "two", "new": "2", "expected_replacements": 2},
    )  # fmt: skip
    noted = prepared(made)
    assert looked(made, noted).kind is K.DID_NOT_HAPPEN
    file.write_text("one 2 2\n")
    verdict = looked(made, noted)
    assert verdict.kind is K.HAPPENED
    assert verdict.result == {
        "path": "a.txt", "replacements": 2, "chars_before": 12, "chars_after": 8,
    }  # fmt: skip
    file.write_text("one 2")
    assert looked(made, noted).kind is K.CANNOT_TELL


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.none() | st.text(), content=st.text(), now=st.none() | st.text())
def test_whatever_is_on_disk_it_happened_only_if_the_file_holds_all_of_it(
    tmp_path: Path, before: str | None, content: str, now: str | None
) -> None:
    file = tmp_path / "a.txt"
    put(file, before)
    made = write(tmp_path, content)
    noted = prepared(made)
    put(file, now)
    kind = looked(made, noted).kind
    assert (kind is K.HAPPENED) == (disk.content(file) == disk.written(content))
    if kind is K.DID_NOT_HAPPEN:
        assert now == before


def put(file: Path, text: str | None) -> None:
    if text is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(text.encode("utf-8"))


def test_the_note_holds_no_content_and_is_short(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("canary-old")
    noted = prepared(write(tmp_path, "canary-new"))
    assert noted
    assert "canary" not in noted


def test_every_built_in_policy_is_reconcile_with_a_reconciler() -> None:
    assert set(BUILT_IN) == {*RECONCILERS, "run_shell"} == WRITE_TOOLS | SHELL_TOOLS
    for key, declared in BUILT_IN.items():
        assert declared.policy is not None
        assert str(declared.policy) == "reconcile"
        assert declared.checked(key).reconciler is not None


def test_a_link_is_followed_once_and_what_it_led_to_is_compared(tmp_path: Path) -> None:
    target, link = tmp_path / "b.txt", tmp_path / "a.txt"
    target.write_text("old\n")
    needs.need(sys.platform != "win32", "makes symbolic links")
    link.symlink_to(target)
    made = write(tmp_path)
    noted = prepared(made)
    assert json.loads(noted)["result"] == "b.txt"
    link.unlink()
    link.write_text("somebody else's\n")
    assert looked(made, noted).kind is K.DID_NOT_HAPPEN
    target.write_text("new\n")
    assert looked(made, noted).kind is K.HAPPENED


def test_what_is_too_large_or_too_much_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LARGEST", 10)
    monkeypatch.setattr(disk, "MOST_FILES", 2)
    (tmp_path / "a.txt").write_text("x" * 11)
    assert prepared(write(tmp_path)) == ""
    assert prepared(write(tmp_path, "y" * 11, path="b.txt")) == ""
    adds = [f"*** Add File: {n}" for n in "xyz"]
    assert prepared(call_of(tmp_path, "apply_patch", patch_of(*adds[:2]))) != ""
    assert prepared(call_of(tmp_path, "apply_patch", patch_of(*adds))) == ""


def test_a_note_that_is_none_tells_nothing(tmp_path: Path) -> None:
    for noted in ("", "{}", "[]", "null", '{"files":[["a"]],"result":1}', '{"files":7}'):
        assert looked(write(tmp_path), noted).kind is K.CANNOT_TELL
