"""What a mutant is, and the private copy of package and tests that it is applied in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTENTS = ("openworker_durable", "tests", "docs", "pyproject.toml", "README.md", "CHANGELOG.md")
TEST_SECONDS = 40
"""Longest that one named test may take; a mutant that makes it hang is killed by this."""


@dataclass(frozen=True)
class Edit:
    """One replacement in a file of the package.

    Args:
        file: path below `openworker_durable`.
        old: text that occurs there exactly once, so that a stale mutant fails loudly.
        new: what takes its place.
    """

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A deliberate fault that one named test must notice.

    Args:
        name: what it breaks, in a word or three.
        attacks: the promise (G), trap (T), rule (R) or case (C) of the design it goes against.
        test: node id below `tests`, without its parameters or with them.
        edits: the fault; usually one.
    """

    name: str
    attacks: str
    test: str
    edits: tuple[Edit, ...]

    @property
    def node(self) -> str:
        """Return the test's node id as pytest takes it."""
        return f"tests/{self.test}"


def mutant(name: str, attacks: str, test: str, *edits: tuple[str, str, str]) -> Mutant:
    """Write a mutant in one call; each edit is (file, old, new)."""
    return Mutant(name, attacks, test, tuple(Edit(*edit) for edit in edits))


class DoesNotApply(Exception):
    """The source no longer has the text that a mutant replaces; the mutant must be renewed."""


class Copy:
    """A private copy of the package and its tests, run with the copy's package imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignore = shutil.ignore_patterns("__pycache__", ".*_cache")
        for name in CONTENTS:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=ignore)
            elif source.exists():
                shutil.copy2(source, folder / name)
        self.package = folder / "openworker_durable"
        found = self._run("-c", "import openworker_durable; print(openworker_durable.__file__)")
        if Path(found.stdout.strip()).parent.resolve() != self.package.resolve():
            raise RuntimeError(f"the copy is not what is imported: {found.stdout}{found.stderr}")

    def _run(self, *args: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, *args], cwd=self.folder, env=env, check=False, text=True,
            capture_output=True, timeout=300,
        )  # fmt: skip

    def pytest(self, nodes: Sequence[str]) -> tuple[int, str]:
        """Run the named tests; return pytest's exit code and what it printed."""
        done = self._run(
            "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist",
            f"--timeout={TEST_SECONDS}", f"--basetemp={self.folder / 'tmp'}", *nodes,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    @contextmanager
    def with_edits(self, edits: Sequence[Edit]) -> Iterator[None]:
        """Apply edits for a while.

        Raises:
            DoesNotApply: an edit's text does not occur exactly once; nothing was changed.
        """
        before: dict[Path, str] = {}
        after: dict[Path, str] = {}
        for edit in edits:
            path = self.package / edit.file
            if not path.is_file():
                raise DoesNotApply(f"there is no {edit.file}")
            before.setdefault(path, path.read_text(encoding="utf-8"))
            text = after.get(path, before[path])
            if text.count(edit.old) != 1:
                raise DoesNotApply(f"{edit.file}: found {text.count(edit.old)} times: {edit.old!r}")
            after[path] = text.replace(edit.old, edit.new)
        try:
            for path, text in after.items():
                path.write_text(text, encoding="utf-8")
            yield
        finally:
            for path, text in before.items():
                path.write_text(text, encoding="utf-8")


def failed_tests(output: str) -> set[str]:
    """Return the node ids that a run with `-ra` reports as failed or in error."""
    return set(re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", output, re.MULTILINE))


def last_words(output: str) -> str:
    """Return the end of what pytest printed, in one line."""
    return " ".join(output.split())[-200:]
