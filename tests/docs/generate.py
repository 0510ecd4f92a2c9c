"""Writes the parts of the docs that come from code; run it after a change of any table.

    python -m tests.docs.generate            rewrite every generated block
    python -m tests.docs.generate --check    only say which ones are stale; exit status 1 then

A block stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openworker_durable import outcomes, protection, recovery, states
from openworker_durable.demo_table import ALLOWED_BY, RECOVERY
from openworker_durable.failpoints import FAILPOINTS
from openworker_durable.hosts.seams import SEAMS
from openworker_durable.review import LABELS
from openworker_durable.sql import SCHEMA
from openworker_durable.testing import CRASH_POINTS, STEPS

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds README.md, docs/ and tests/: the checkout, or what lies beside a wheel."""

BLOCK = re.compile(
    r"<!-- generated: (?P<name>[\w.]+) -->\n(?P<body>.*?)<!-- end of (?P=name) -->", re.DOTALL
)

PLACES: dict[str, str] = {
    "after_approval": "allowed, before the call",
    "in_tool_before_effect": "inside the tool, before the effect",
    "in_tool_after_effect": "inside the tool, after the effect",
    "tool_returned": "tool returned, result not in the thread",
    "result_in_thread": "result in the thread, thread not saved",
    "after_save": "thread saved",
}
"""The crash points, for people."""

COLUMNS: dict[str, str] = {
    "execution_id": "the execution; equals the idempotency key of every attempt",
    "attempt": "counted from 1, counted at dispatch",
    "session_id": "the host's session",
    "incarnation": "nonce of this life of the session; a deleted id used again begins another",
    "tool_call_id": "id of the call in the thread",
    "tool_source": "`host`, `mcp:<server>`, or `own` for staged use",
    "tool_name": "the name the model calls",
    "tool_version": "what the tool's function declares, else empty",
    "tool_account": "whose account the tool acts for, as it declares; else empty",
    "schema_digest": "digest of the argument schema",
    "intent_digest": "digest of tool name and canonical arguments",
    "preview": "one redacted line about the arguments, at most 240 characters",
    "policy": "the recovery policy at dispatch",
    "prepared": "what the tool's reconciler noted before the effect, such as digests",
    "authority_kind": "what allowed the attempt; null where recovery made the row",
    "authority_ref": "which one; unique where it is an approval item",
    "occurrence": "task and scheduled slot, for calls made by an automation",
    "linked": "an earlier unknown execution that this one repeats with a person's yes",
    "owner": "the process that holds or held the attempt",
    "protocol_version": "the protocol version under which the row was written",
    "state": "see the moves above",
    "reason": "why the row has its state",
    "detail": "the type of an error, at most 200 characters; never its text",
    "dispatched_at": "seconds since the epoch",
    "ended_at": "seconds since the epoch; null while dispatched",
    "snapshot": "the exact text the model gets, with the display-only part; dropped some time "
    "after acknowledgement",
    "snapshot_digest": "SHA-256 of the text; stays",
    "lossy": "1 where text or display is a stand-in for something not encodable",
    "decision": "`happened`, `retry` or `drop`; `unsure` is only in the audit",
    "decided_by": "the surface it came from",
    "decided_at": "seconds since the epoch",
    "decision_note": "the person's note, as typed, at most 2000 characters",
    "probe_at": "when the next probe is due, seconds since the epoch; null: none is scheduled",
    "probes": "probes begun",
    "found": "what the last probe, or evidence, said; `did_not_happen` where that was proved",
    "acknowledged_at": "when the saved thread was seen to carry the end; null while open",
    "superseded": "1 when a later attempt replaces this unknown one",
}


def _columns() -> str:
    """Return the columns of `tool_executions`, as the schema makes them, with their meaning."""
    conn = sqlite3.connect(":memory:")
    conn.executescript(SCHEMA["tables"])
    names = [row[1] for row in conn.execute("PRAGMA table_info(tool_executions)")]
    conn.close()
    if set(names) != set(COLUMNS):
        raise SystemExit(f"columns without a meaning, or gone: {set(names) ^ set(COLUMNS)}")
    return _table("column", "meaning", [(f"`{n}`", COLUMNS[n]) for n in names])


def _table(left: str, right: str, lines: list[tuple[str, str]]) -> str:
    head = [f"| {left} | {right} |", "|---|---|"]
    return "\n".join([*head, *(f"| {a} | {b} |" for a, b in lines)]) + "\n"


def _versions() -> str:
    return f"Schema version {states.SCHEMA_VERSION}, protocol version {states.PROTOCOL_VERSION}.\n"


def _seams() -> str:
    lines = ["| seam | kind | use | why |", "|---|---|---|---|"]
    for seam in SEAMS:
        use = "wrapped" if seam.wrapped else "called"
        lines.append(f"| `{seam.name}` | {seam.kind} | {use} | {seam.why} |")
    return "\n".join(lines) + "\n"


def _short_outcomes() -> str:
    """Return the table as markdown with one line for each library, for the docs."""
    sides = [_by_library(outcomes.NEVER_BEGAN), _by_library(outcomes.MAY_HAVE_BEGUN)]
    lines = ["| library | the effect never began: failed | it may have happened: unknown |"]
    lines.append("|---|---|---|")
    for library in sorted(set().union(*sides), key=lambda name: (name != "Python", name)):
        cells = (", ".join(f"`{n}`" for n in sorted(side.get(library, []))) for side in sides)
        lines.append(f"| {library} | {' | '.join(cells)} |")
    lines.append("| anything else | a tool that only touches this machine | any other tool |")
    return "\n".join(lines) + "\n"


def _by_library(names: frozenset[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        library = name.partition(".")[0].replace("_core", "")
        own = library in sys.stdlib_module_names
        found.setdefault("Python" if own else library, []).append(name.removeprefix("builtins."))
    return found


def _protected() -> str:
    """Return which tools the named tables protect, and where they reach."""
    named = dict.fromkeys(sorted(protection.WRITE_TOOLS), "writes files")
    named |= dict.fromkeys(sorted(protection.SHELL_TOOLS), "runs commands")
    named |= protection.LASTING_EFFECTS
    lines = ["| tool | why it is protected | reaches |", "|---|---|---|"]
    for name, why in named.items():
        reaches = "this machine only" if name in protection.LOCAL_TOOLS else "beyond this machine"
        lines.append(f"| `{name}` | {why} | {reaches} |")
    return "\n".join(lines) + "\n"


def _decisions() -> str:
    return _table("decision", "label", [(f"`{d.value}`", text) for d, text in LABELS.items()])


def _steps() -> str:
    return _table("step", "meaning", [(f"`{n}`", text) for n, text in STEPS.items()])


def _places() -> str:
    return _listed("Crash points", CRASH_POINTS) + "\n" + _listed("Failpoints", FAILPOINTS)


def _listed(title: str, names: tuple[str, ...]) -> str:
    text = f"{title}: " + ", ".join(f"`{name}`" for name in names) + "."
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False) + "\n"


def demo_rows() -> list[dict[str, Any]]:
    """Run `openworker-durable demo --json` in a process of its own and return its rows."""
    done = subprocess.run(
        [sys.executable, "-m", "openworker_durable.cli", "demo", "--json"],
        capture_output=True, text=True, check=False, timeout=100, cwd=ROOT,
    )  # fmt: skip
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


def _failures() -> str:
    """Return what the demonstration counted, as the README shows it."""
    lines = [
        "| killed | effects, host alone | effects, with the record | what recovery did |",
        "|---|---|---|---|",
    ]
    allowed_by = ""
    for row in demo_rows():
        if row["authorised_by"] != allowed_by:
            allowed_by = row["authorised_by"]
            lines.append(f"| *{ALLOWED_BY[allowed_by]}* | | | |")
        alone = str(row["baseline_effects"])
        alone = f"**{alone}**" if row["baseline_effects"] > 1 else alone
        if not row["baseline_thread_has_call"]:
            alone += ", and no trace of the call"
        place, did = PLACES[row["crash_point"]], RECOVERY[row["recovery"]]
        lines.append(f"| {place} | {alone} | {row['effects']} | {did} |")
    return "\n".join(lines) + "\n"


Maker = Callable[[], str]

MAKERS: dict[str, Maker] = {
    "recovery.rules_table": recovery.rules_table,
    "states.transitions_table": states.transitions_table,
    "states.versions": _versions,
    "sql.columns": _columns,
    "outcomes.table": outcomes.table,
    "outcomes.short": _short_outcomes,
    "hosts.seams": _seams,
    "policy.protected": _protected,
    "review.decisions": _decisions,
    "testing.steps": _steps,
    "testing.places": _places,
    "demo": _failures,
}
"""What makes each block."""

SLOW = frozenset({"demo"})
"""Blocks whose making starts and kills processes."""


def pages() -> list[Path]:
    """Return every page of the docs, README and changelog first."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> dict[str, str]:
    """Return the generated blocks of a page as they stand there, by name."""
    text = page.read_text(encoding="utf-8")
    return {m["name"]: m["body"].strip("\n") + "\n" for m in BLOCK.finditer(text)}


def renewed(text: str) -> str:
    """Return a page's text with every block made again."""

    def again(match: re.Match[str]) -> str:
        name = match["name"]
        body = MAKERS[name]()
        return f"<!-- generated: {name} -->\n\n{body}\n<!-- end of {name} -->"

    return BLOCK.sub(again, text)


def main(arguments: list[str] | None = None) -> int:
    """Rewrite the pages, or with `--check` only look; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.generate")
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(arguments).check
    stale = 0
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = renewed(before)
        if after != before:
            stale += 1
            print(f"{'stale' if check else 'rewritten'}: {page.relative_to(ROOT)}")
            if not check:
                page.write_text(after, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
