"""C23: what the files on disk say of a file tool's call that was cut short."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openworker_durable.models import ToolIdentity
from openworker_durable.reconciler import Call, Probe, Verdict, VerdictKind
from openworker_durable.reconcilers import BUILT_IN
from openworker_durable.reconcilers.files import RECONCILERS

K = VerdictKind


def call_of(folder: Path | None, name: str, arguments: dict[str, Any]) -> Call:
    return Call("x1", 1, ToolIdentity(name=name), arguments, folder)


def looked(call: Call, prepared: str) -> Verdict:
    known = {f.name: getattr(call, f.name) for f in fields(call)}
    answer = RECONCILERS[call.tool.name].look(Probe(**known, prepared=prepared))
    assert isinstance(answer, Verdict)
    return answer


def prepared(call: Call) -> str:
    prepare = RECONCILERS[call.tool.name].prepare
    assert prepare is not None
    return prepare(call)


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
def test_a_write_that_stopped_on_its_way_is_a_failure_that_says_so(
    tmp_path: Path, there: str
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old\n")
    made = write(tmp_path)
    noted = prepared(made)
    file.write_text(there)
    verdict = looked(made, noted)
    assert verdict.kind is K.FAILED
    assert f"only the first {len(there)} of 4 bytes" in verdict.result["error"]


def test_an_empty_file_before_the_call_is_no_cut_off_write(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    made = write(tmp_path)
    assert looked(made, prepared(made)).kind is K.DID_NOT_HAPPEN


def test_the_same_content_once_more_happened(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("new\n")
    made = write(tmp_path)
    assert looked(made, prepared(made)).kind is K.HAPPENED


@pytest.mark.parametrize(
    "made",
    [
        call_of(None, "write_file", {"path": "a.txt", "content": "x"}),
        call_of(Path("."), "write_file", {"path": 7, "content": "x"}),
        call_of(Path("."), "write_file", {"path": "a.txt"}),
        call_of(Path("."), "write_file", {"path": "tests", "content": "x"}),
        call_of(Path("."), "write_file", {"path": "a.txt", "content": "\ud800"}),
        call_of(Path("."), "write_file", {"path": "README.md", "content": "", "overwrite": False}),
        call_of(Path("."), "replace_in_file", {"path": "no such", "old": "a", "new": "b"}),
        call_of(Path("."), "replace_in_file", {"path": "README.md", "old": "", "new": "b"}),
        call_of(Path("."), "apply_patch", {"patch": "no patch"}),
        call_of(Path("."), "apply_patch", {"patch": 7}),
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
    assert (kind is K.HAPPENED) == (now == content)
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
    assert set(BUILT_IN) == {"write_file", "replace_in_file", "apply_patch", "run_shell"}
    for key, declared in BUILT_IN.items():
        assert declared.policy is not None
        assert str(declared.policy) == "reconcile"
        assert declared.checked(key).reconciler is not None
