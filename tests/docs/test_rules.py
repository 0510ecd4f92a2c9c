"""Rules of this project's own tests and code that a reader would otherwise have to watch over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*ROOT.glob("openworker_durable/**/*.py"), *ROOT.glob("tests/**/*.py")])

SLEEP = re.compile(r"\bsleep\((?!0\))")
SKIP = re.compile(r"\b(skipif|importorskip|xfail)\b|pytest\.skip|mark\.skip")
BARE = re.compile(
    r"#\s*(type: ignore|no" + r"qa|pragma: no cover)(\[[^\]]*\]|: [A-Z0-9, ]+)?(?!.*(#|-) \w)"
)
LONGEST = 500


def _lines(pattern: re.Pattern[str], *, but: str, below: str = "tests") -> list[str]:
    """Return where a pattern stands in the tests, but for the one module that may have it."""
    here = Path(__file__)
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        if path.is_relative_to(ROOT / below) and path not in (here, ROOT / but)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_tests_wait_in_one_place() -> None:
    assert _lines(SLEEP, but="tests/waiting.py") == []


def test_what_tests_need_is_said_in_one_place() -> None:
    assert _lines(SKIP, but="tests/needs.py") == []


def test_what_a_checker_is_told_to_ignore_has_its_reason_beside_it() -> None:
    found = [*_lines(BARE, but=""), *_lines(BARE, but="", below="openworker_durable")]
    assert found == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (SLEEP, "time.sleep(0.1)"), (SLEEP, "await asyncio.sleep(PAUSE)"),
        (SKIP, "@pytest.mark.skipif(True)"), (SKIP, "pytest.skip('no')"),
        (BARE, "x = y  # type: ignore[misc]"), (BARE, "x  # no" + "qa: E501"),
    ],
)  # fmt: skip
def test_the_rules_would_see_it(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


@pytest.mark.parametrize(
    "text",
    ["x = y  # type: ignore[misc]  # the host ships no types", "x  # no" + "qa: E501 - a table"],
)
def test_a_reason_beside_it_is_seen(text: str) -> None:
    assert not BARE.search(text)


def test_files_stay_short() -> None:
    long = [p.name for p in SOURCES if len(p.read_text("utf-8").splitlines()) > LONGEST]
    assert long == []
