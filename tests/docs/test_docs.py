"""The docs say what the code says: generated parts, links, names, examples, words."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

import openworker_durable
import openworker_durable.testing
from openworker_durable import cli, failpoints, recovery, states
from openworker_durable.errors import SeamsDoNotFit
from openworker_durable.hosts.openworker import OPENWORKER
from tests import needs
from tests.docs import generate
from tests.docs.generate import MAKERS, ROOT, SLOW, blocks, pages

GUARANTEES = ROOT / "docs" / "guarantees.md"
GLOSSARY = ROOT / "docs" / "glossary.md"
PROMISES = tuple(f"G{n}" for n in range(1, 15))

WORDS = (
    "execution", "attempt", "protected", "dispatch", "outcome", "recover", "reconcile", "retry",
    "resolve", "decision", "open", "idempotency key", "protocol version", "covered", "owner",
    "server process", "occurrence", "failpoint",
)  # fmt: skip
"""The words of the design; each has one meaning."""

NAMES = ("ticket", "binding", "runtime", "seam", "port", "guard", "handle", "sweep", "triage")
"""Names used in code that a reader meets first."""

FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.~-])/(home|root|Users|mnt|srv|var|tmp|wor[k])/",
    "a drive of somebody's machine": r"\b[A-Z]:\\Users\b",
    "a registry": r"py[p]i\.|pythonhoste[d]|crates\.i[o]|npm[j]s",
    "how it was made": r"(?i)\bsub-?agen[t]|\bhelper session|\blanguage model wrote",
    "something left to do": r"\bTOD[O]\b|\bFIXM[E]\b|\bXX[X]\b",
    "marketing": (
        r"(?i)\b(seamless(ly)?|blazing|effortless(ly)?|powerful|cutting[- ]edge|world[- ]class|"
        r"bullet-?proof|rock[- ]solid|state[- ]of[- ]the[- ]art|revolutionary|simply|easily)\b"
    ),
    "a second word for a lock": r"(?i)\bmutex\b",
}
"""What stands on no page, and why."""

IDS = [str(page.relative_to(ROOT)) for page in pages()]
each_page = pytest.mark.parametrize("page", pages(), ids=IDS)


def _prose(page: Path) -> str:
    """Return a page without its fenced code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


# -- generated parts
@pytest.mark.parametrize("name", sorted(set(MAKERS) - SLOW))
def test_generated_blocks_are_current(name: str) -> None:
    found = [blocks(page)[name] for page in pages() if name in blocks(page)]
    assert found == [MAKERS[name]()], "make it again: python -m tests.docs.generate"


@pytest.mark.crash
@needs.sigkill
def test_the_failure_table_is_what_the_demonstration_counts() -> None:
    assert blocks(ROOT / "README.md")["demo"] == MAKERS["demo"]()


def test_every_generated_block_has_a_maker_and_stands_once() -> None:
    names = [name for page in pages() for name in blocks(page)]
    marks = [m for page in pages() for m in re.findall(r"<!-- generated", page.read_text("utf-8"))]
    assert sorted(names) == sorted(MAKERS)
    assert len(marks) == len(names), "a block's beginning and end do not fit together"


def test_a_stale_block_is_noticed() -> None:
    stale = "<!-- generated: states.versions -->\nold\n<!-- end of states.versions -->"
    assert generate.renewed(stale) != stale
    assert generate.renewed(generate.renewed(stale)) == generate.renewed(stale)


def test_tables_have_a_line_for_each_rule_and_move() -> None:
    rules = blocks(ROOT / "docs" / "recovery.md")["recovery.rules_table"]
    moves = blocks(ROOT / "docs" / "state-machine.md")["states.transitions_table"]
    assert rules.count("\n") == len(recovery.RULES) + 2
    assert moves.count("\n") == len(states.MOVES) + 2


def test_every_reason_and_failpoint_is_documented() -> None:
    machine = (ROOT / "docs" / "state-machine.md").read_text("utf-8")
    kit = (ROOT / "docs" / "testing-kit.md").read_text("utf-8")
    assert [r.value for r in states.Reason if f"`{r.value}`" not in machine] == []
    assert [p for p in failpoints.FAILPOINTS if f"`{p}`" not in kit] == []


# -- links
def _links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if not re.match(r"[a-z]+:", target):
            yield target


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", _prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@each_page
def test_relative_links_resolve(page: Path) -> None:
    for target in _links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.is_file(), f"{target} leads nowhere"
        if anchor:
            assert anchor in _anchors(there), f"{target}: no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        todo += [(page.parent / link.partition("#")[0]).resolve() for link in _links(page)]
    assert [str(p.relative_to(ROOT)) for p in pages() if p not in seen] == []


# -- tests that the guarantees name
@cache
def _test_names() -> frozenset[str]:
    names: set[str] = set()
    for file in (ROOT / "tests").rglob("*.py"):
        names.update(re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text("utf-8"), re.M))
    return frozenset(names)


def _sections(page: Path) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", _prose(page), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@each_page
def test_tests_that_are_named_exist(page: Path) -> None:
    named = {n for n in re.findall(r"`(test_\w+)`", _prose(page)) if not n.endswith("_")}
    assert named - _test_names() == set()


@pytest.mark.parametrize("promise", PROMISES)
def test_every_guarantee_has_tests(promise: str) -> None:
    section = _sections(GUARANTEES)[promise]
    assert section.strip().startswith("**"), "the promise comes first"
    assert re.findall(r"`(test_\w+)`", section), f"{promise} names no test"


@pytest.mark.parametrize("promise", PROMISES)
def test_tests_named_after_a_guarantee_are_there(promise: str) -> None:
    """A promise whose number no test carries is a promise nobody tries."""
    number = promise.lower()
    assert [n for n in _test_names() if re.search(rf"_{number}(_|$)", n)], promise


def test_guarantees_say_what_is_not_promised_and_not_covered() -> None:
    sections = _sections(GUARANTEES)
    assert set(PROMISES) <= set(sections)
    for word in ("exactly-once", "Power loss", "own lies", "threads", "Network file systems"):
        assert word in sections["What is not promised"]
    for word in ("idempotent", "reconcile", "swallow", "Retention", "faults injected"):
        assert word in sections["Not covered yet"]


# -- names
@pytest.mark.parametrize("module", [openworker_durable, openworker_durable.testing])
def test_every_public_name_is_documented(module: Any) -> None:
    text = "\n".join(page.read_text("utf-8") for page in pages())
    names: list[str] = module.__all__
    assert [n for n in names if not re.search(rf"(?<!\w){n}(?!\w)", text)] == []


def test_commands_that_are_named_exist() -> None:
    group: Any = typer.main.get_command(cli.app)
    there = set(group.commands)
    for page in pages():
        named = re.findall(r"`openworker-durable ([a-z]+)\b", page.read_text("utf-8"))
        assert set(named) <= there, page


def test_make_targets_that_are_named_exist() -> None:
    makefile = ROOT / "Makefile"
    needs.need(makefile.is_file(), "no Makefile lies beside the tests here")
    there = set(re.findall(r"^([a-z-]+):", makefile.read_text("utf-8"), re.M))
    for page in pages():
        named = re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text("utf-8"), re.M)
        assert set(named) <= there, page


@pytest.mark.parametrize("word", [*WORDS, *NAMES])
def test_the_glossary_has_each_word_once(word: str) -> None:
    lines = re.findall(r"^\| (.+?) \| .+ \|$", GLOSSARY.read_text("utf-8"), re.M)
    having = [cell for cell in lines if f"**{word}**" in cell]
    assert len(having) == 1, f"{word}: {having}"


# -- examples
def _examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)


WITH_EXAMPLES = [page for page in pages() if _examples(page)]
FILE = re.compile(r"# (\w+\.py)$", re.M)


def _run(code: str, name: str) -> None:
    """Run an example; one that begins with a file's name is kept as that file, for the others."""
    file = FILE.match(code)
    if file:
        Path(file[1]).write_text(code, encoding="utf-8")
    if file and file[1].startswith("test_"):
        told = _tests(file[1])
        assert told.returncode == 0, told.stdout
    else:
        exec(compile(code, name, "exec"), {"__name__": "example"})


def _tests(file: str) -> subprocess.CompletedProcess[str]:
    """Run an example that is a file of tests, as its reader would."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp=t", file],
        capture_output=True, text=True, check=False, timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*_package(), os.getcwd()])},
    )  # fmt: skip


def _package() -> list[str]:
    """Return where the package under test is imported from."""
    return [str(Path(openworker_durable.__file__).parents[1])]


@pytest.mark.crash
@pytest.mark.parametrize(
    "page", WITH_EXAMPLES, ids=[str(p.relative_to(ROOT)) for p in WITH_EXAMPLES]
)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example runs by itself, in a folder that holds the files of those before it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for number, code in enumerate(_examples(page), 1):
        name = f"{page.name}, example {number}"
        if "OPENWORKER" not in code:
            _run(code, name)
        elif importlib.util.find_spec(OPENWORKER.package) is None:
            with pytest.raises(SeamsDoNotFit):
                _run(code, name)


@pytest.mark.crash
def test_a_reconciler_that_proves_nothing_is_found_out_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "connector-authors.md"
    monkeypatch.chdir(tmp_path)
    for code in _examples(page):
        file = FILE.match(code)
        if file:
            broken = code.replace("if there is None else happened", "if True else happened")
            Path(file[1]).write_text(broken, encoding="utf-8")
    told = _tests("test_letters.py")
    assert told.returncode == 1, told.stdout
    said = "k: done 2 times, at most 1 are accounted for"
    assert said in told.stdout
    assert said in " ".join(page.read_text("utf-8").split())


def test_there_are_examples() -> None:
    names = {page.name for page in WITH_EXAMPLES}
    assert {"README.md", "connector-authors.md", "host-adapter.md", "testing-kit.md"} <= names


# -- words
@each_page
@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_must_not_be_there_is_not(page: Path, what: str) -> None:
    found = re.search(FORBIDDEN[what], page.read_text("utf-8"))
    assert not found, f"{what}: {found}"


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a path of somebody's machine", "see " + os.sep.join(["", "home", "ann", "x"])),
        ("something left to do", "TO" + "DO: later"),
        ("marketing", "a seamless experience"),
    ],
)
def test_what_must_not_be_there_would_be_seen(what: str, text: str) -> None:
    assert re.search(FORBIDDEN[what], text.replace(os.sep, "/"))


@each_page
def test_lines_are_short_and_pages_end_well(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    long = [
        line for line in _prose(page).splitlines() if len(line) > 110 and not line.startswith("|")
    ]
    assert long == []
