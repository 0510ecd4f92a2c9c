"""The soak: a share of it on every run of the tests, and proof that it can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.testing import soak as soak_module
from openworker_durable.testing.soak import main, soak
from openworker_durable.testing.soak_runs import Run, _Soak

pytestmark = [pytest.mark.crash, pytest.mark.soak]

FIRST = 7_000_000


def test_random_kills_do_no_harm(tmp_path: Path) -> None:
    totals = soak(range(FIRST, FIRST + 25), workers=2, folder=tmp_path)
    assert [run.story() for run in totals.failed] == []
    assert (totals.runs, totals.kills > 20) == (25, True)


def test_a_seed_tells_the_same_story_again(tmp_path: Path) -> None:
    told: list[Run] = []
    for n in range(2):
        soak([FIRST], workers=1, folder=tmp_path / str(n), told=lambda run, _all: told.append(run))
    first, second = told
    assert first.replies == second.replies
    assert first.lives[0].scenario.steps == second.lives[0].scenario.steps
    assert first.lives[0].scenario.kill == second.lives[0].scenario.kill


def without_the_plugin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str, str]:
    """Run a few seeds with the plugin left out of every process."""
    doomed = _Soak._doomed

    def alone(self: _Soak, scenario: Any) -> Any:
        from dataclasses import replace

        found, after = doomed(self, scenario)
        return replace(found, durable=False), after

    monkeypatch.setattr(_Soak, "_doomed", alone)
    code = main(["--runs", "6", "--seed", "9", "--workers", "2", *more])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_it_finds_the_faults_of_the_host_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = without_the_plugin(monkeypatch, capsys)
    assert code == 1
    assert "VIOLATION seed 9000" in err
    assert "--only 9000" in out
    assert out.splitlines()[-1].endswith(" failed")
    assert not out.splitlines()[-1].endswith(" 0 failed")


def test_its_json_names_the_seeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _err = without_the_plugin(monkeypatch, capsys, "--json")
    told = json.loads(out)
    assert (code, told["runs"], told["passed"] + told["failed"]) == (1, 6, 6)
    assert {v["seed"] // soak_module.APART for v in told["violations"]} == {9}
    assert all(v["faults"] for v in told["violations"])


def test_the_command_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", str(FIRST), "--only", str(FIRST + 1)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 0 failed"
