"""`openworker-durable demo`: what it says is what was seen, and it can say no."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import rows
from openworker_durable.demo import run_demo
from openworker_durable.demo_rows import Seen
from openworker_durable.ledger import DATABASE, Ledger
from openworker_durable.testing import CRASH_POINTS

pytestmark = pytest.mark.crash

Rows = dict[tuple[str, str], dict[str, Any]]


def rows_in(text: str) -> Rows:
    told = json.loads(text)
    return {(row["authorised_by"], row["crash_point"]): row for row in told["rows"]}


def test_every_row_is_ok_and_the_host_alone_repeats_or_forgets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_demo(json_out=True, keep=None) == 0
    told = rows_in(capsys.readouterr().out)
    assert list(told) == [(by, place) for by in ("prompt", "grant") for place in CRASH_POINTS]
    assert all(row["ok"] and row["killed_by"] == "SIGKILL" for row in told.values())
    assert all(row["thread_has_call"] and row["faults"] == [] for row in told.values())
    alone = [row["baseline_effects"] for row in told.values()]
    assert alone == [1, 1, 2, 2, 2, 1, 0, 0, 1, 1, 1, 1]
    assert [r["baseline_thread_has_call"] for r in told.values()] == [True] * 6 + [False] * 5 + [
        True
    ]
    assert [row["effects"] for row in told.values()] == [1, 0, 1, 1, 1, 1] * 2
    assert [row["recovery"] for row in told.values()] == [
        "executed_once", "recovery_required", "recovery_required", "rebuilt", "rebuilt",
        "nothing_to_do",
    ] * 2  # fmt: skip


def test_it_says_no_when_the_plugin_does_not_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(json_out=True, keep=None, durable=False) == 1
    told = rows_in(capsys.readouterr().out)
    assert [place for (by, place), row in told.items() if by == "prompt" and not row["ok"]] == [
        "in_tool_after_effect", "tool_returned", "result_in_thread",
    ]  # fmt: skip
    assert [place for (by, place), row in told.items() if by == "grant" and row["ok"]] == [
        "after_save"
    ]


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(json_out=False, keep=None) == 0
    told = capsys.readouterr()
    assert "2, repeated" in told.out
    assert "nothing repeated, nothing forgotten; a person is asked 4 times" in told.out
    assert "killing 24 processes" in told.err
    assert max(map(len, told.out.splitlines())) <= 80


def test_the_table_names_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(json_out=False, keep=None, durable=False) == 1
    told = capsys.readouterr().out
    assert "EXECUTED AGAIN" in told
    assert "done 2 times" in told


def test_what_is_kept_can_be_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep = tmp_path / "kept"
    assert run_demo(json_out=False, keep=keep) == 0
    assert "openworker-durable list --state" in capsys.readouterr().out
    with contextlib.closing(Ledger(keep / DATABASE)) as ledger:
        found = ledger.known(rows.all_rows())
    assert len(found) == 12
    assert sum(row.undecided for row in found) == 4


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    yield tmp_path
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_that_is_in_use_is_left_alone(
    full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_demo(json_out=True, keep=full) == 2
    assert "not an empty folder" in capsys.readouterr().err


def test_it_runs_from_any_program(tmp_path: Path) -> None:
    program = "from openworker_durable.demo import run_demo; raise SystemExit(run_demo(True, None))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(rows_in(done.stdout)) == 12


def seen(**changes: Any) -> Seen:
    facts: dict[str, Any] = {
        "authorised_by": "prompt", "crash_point": "tool_returned", "killed_by": "SIGKILL",
        "killed": True, "effects_at_kill": 1, "effects": 1, "result_at_kill": False,
        "has_result": True, "has_call": True, "asked": False,
    }  # fmt: skip
    return Seen(**facts | changes)


@pytest.mark.parametrize(
    ("changes", "recovery", "ok"),
    [
        ({}, "rebuilt", True),
        ({"result_at_kill": True}, "nothing_to_do", True),
        ({"effects_at_kill": 0}, "executed_once", True),
        ({"asked": True, "has_result": False}, "recovery_required", True),
        ({"effects_at_kill": 0, "effects": 0, "asked": True}, "recovery_required", True),
        ({"effects": 2}, "executed_again", False),
        ({"effects_at_kill": 0, "effects": 2}, "executed_again", False),
        ({"has_result": False}, "nothing_done", False),
        ({"effects_at_kill": 0, "effects": 0}, "rebuilt", False),
        ({"has_call": False}, "rebuilt", False),
        ({"killed": False}, "rebuilt", False),
        ({"faults": ["a fault"]}, "rebuilt", False),
    ],
)
def test_a_verdict_follows_from_what_was_seen(
    changes: dict[str, Any], recovery: str, ok: bool
) -> None:
    assert (seen(**changes).recovery, seen(**changes).ok) == (recovery, ok)
