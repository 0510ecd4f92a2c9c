"""What `doctor` finds: versions, the record, the host's seams, the protected tools."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from . import __version__, owner, protection
from .cli_read import Stop, is_locked, journal_mode, open_ids, read
from .cli_words import facts, safe, table
from .hosts import seams
from .hosts.attach import attached
from .hosts.names import REFERENCE, HostNames
from .hosts.openworker import OPENWORKER
from .hosts.terminal import check_all
from .hosts.version import commit_of, version_of
from .install import NOTHING_BLOCKED, Report, installed
from .ledger import DATABASE
from .states import PROTOCOL_VERSION, SCHEMA_VERSION, State

_SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}
_TOOL = "any_tool"


def examine(state: Path, report: Report | None = None) -> dict[str, Any]:
    """Return everything `doctor` says, with the keys of docs/cli.md; raises nothing.

    Args:
        state: the state folder.
        report: what `install` did in this process; None to look at the host only.
    """
    ledger, host = _ledger(state), _host(report)
    problems = [ledger["error"]["error"]] if ledger["error"] else []
    if ledger["states"] and ledger["file_mode"] and int(ledger["file_mode"], 8) & 0o077:
        problems.append(
            f"{ledger['path']} can be read by others (mode {ledger['file_mode']}); chmod 600 it."
        )
    if not host["fits"]:
        unfit = [f"{s['name']}: {s['problem']}" for s in host["seams"] if s["problem"]]
        some = "; ".join(unfit[:3]) + ("; and others" if len(unfit) > 3 else "")
        did = "nothing is attached" if report else "nothing would be attached"
        problems.append(f"{host['name']} does not fit, so {did}: {some}.{_blocked(report)}")
    return {
        "ok": not problems,
        "problems": problems,
        "package": {
            "version": __version__,
            "schema_version": SCHEMA_VERSION,
            "protocol_version": PROTOCOL_VERSION,
        },
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "ledger": ledger,
        "host": host,
        "tools": list(_tools()),
    }


def _ledger(state: Path) -> dict[str, Any]:
    path = state / DATABASE
    found: dict[str, Any] = {
        "state_dir": str(state.absolute()), "path": str(path.absolute()), "schema_version": None,
        "protocol_version": None, "journal_mode": None, "synchronous": None, "file_mode": None,
        "states": None, "open": None, "error": None,
        "server_running": is_locked(state / owner.LOCK_FOLDER / "server.lock"),
    }  # fmt: skip
    try:
        found |= read(state, _look_inside, any_version=True)
        found["journal_mode"] = journal_mode(path)
        found |= read(state, _count)
    except Stop as stop:
        found["error"] = {"code": stop.code, "error": str(stop)}
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            found["file_mode"] = f"{path.stat().st_mode & 0o777:04o}"
    return found


def _look_inside(conn: sqlite3.Connection) -> dict[str, Any]:
    versions = dict(conn.execute("SELECT key, value FROM durable_meta").fetchall())
    return {
        key: int(versions[key]) for key in ("schema_version", "protocol_version") if key in versions
    }


def _count(conn: sqlite3.Connection) -> dict[str, Any]:
    damage = conn.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise sqlite3.DatabaseError(f"malformed: {damage}")
    counted = conn.execute("SELECT state, COUNT(*) FROM tool_executions GROUP BY state").fetchall()
    return {
        "states": {s.value: 0 for s in State} | {str(k): int(n) for k, n in counted},
        "open": len(open_ids(conn)),
        "synchronous": _SYNCHRONOUS[conn.execute("PRAGMA synchronous").fetchone()[0]],
    }


def _host(report: Report | None) -> dict[str, Any]:
    importable = importlib.util.find_spec(OPENWORKER.package) is not None
    names = report.names if report else OPENWORKER if importable else REFERENCE
    there = installed(names)
    if there is not None and there.findings:
        found = seams.SeamReport(names.host, there.findings)
    else:
        found = _look_at(names)
    own = names.package == REFERENCE.package
    return {
        "name": found.host,
        "openworker_importable": importable,
        "version": __version__ if own else version_of(names.package),
        "commit": "" if own else commit_of(names.package),
        "attached": attached(names) is not None,
        "blocked": list(there.blocked) if there else [],
        "fits": found.fits,
        "seams": [
            {
                "name": f.seam.name, "use": "wrapped" if f.seam.wrapped else "called",
                "why": f.seam.why, "problem": f.problem,
            }
            for f in found.findings
        ],
    }  # fmt: skip


def _look_at(names: HostNames) -> seams.SeamReport:
    try:
        return check_all(names)
    except Exception as exc:  # a host's modules may raise anything when imported
        problem = f"importing it failed ({type(exc).__name__})"
        return seams.SeamReport(names.host, [seams.Finding(s, problem) for s in seams.SEAMS])


def _blocked(report: Report | None) -> str:
    """Return what became of the protected tools of a host that does not fit."""
    if report is None:
        return ""
    if report.blocked:
        return " Its protected tools are blocked; upgrade, or start it without the plugin."
    return f" {NOTHING_BLOCKED}."


def _tools() -> Iterator[dict[str, Any]]:
    """Yield both sides of the protected-tools table, by asking the code that decides."""

    def line(what: str, found: protection.Protection) -> dict[str, Any]:
        return {
            "what": what, "protected": found.protected,
            "beyond_this_machine": found.external, "why": found.why,
        }  # fmt: skip

    named = [
        *sorted(protection.WRITE_TOOLS),
        *sorted(protection.SHELL_TOOLS),
        *protection.LASTING_EFFECTS,
    ]
    for name in named:
        yield line(name, protection.protection(name))
    asks, risky = SimpleNamespace(requires_approval=True), SimpleNamespace(risk_level="high")
    mcp = "mcp__server__tool"
    yield line("any other: its metadata requires approval", protection.protection(_TOOL, asks))
    yield line("any other: its risk level is high or medium", protection.protection(_TOOL, risky))
    yield line(
        "any other: its risk class is not read", protection.protection(_TOOL, risk="external")
    )
    yield line("any MCP tool", protection.protection(mcp))
    yield line("an MCP tool listed as read-only", protection.protection(mcp, read_only=True))
    yield line("any other tool", protection.protection(_TOOL))


def pages(found: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield what `examine` found, for people."""
    package, ledger, host = found["package"], found["ledger"], found["host"]
    yield facts(
        [
            ("package", f"openworker-durable {package['version']}"),
            ("knows", f"schema {package['schema_version']}, protocol "
                      f"{package['protocol_version']}"),
            ("runs on", f"Python {found['python']}, SQLite {found['sqlite']}"),
            ("host", _host_words(host)),
            ("record", ledger["path"]),
            ("in it", _versions_words(ledger)),
            ("written", _written_words(ledger)),
            ("attempts", _states_words(ledger)),
            ("open", ledger["open"]),
            ("file mode", ledger["file_mode"]),
            ("server", _server_words(ledger["server_running"])),
        ]
    )  # fmt: skip
    yield Text()
    if not host["openworker_importable"]:
        yield Text(
            "OpenWorker is not importable here (run this with its Python to check it); "
            "these are the seams of the reference host."
        )
    yield table(
        {f"seam of {host['name']}": {}, "use": {"no_wrap": True}, "for": {}, "found": {}},
        ((s["name"], s["use"], s["why"], s["problem"] or "fits") for s in host["seams"]),
    )
    yield Text()
    yield table(
        {"tool": {}, "recorded": {"no_wrap": True}, "reaches": {"no_wrap": True}, "why": {}},
        (
            (t["what"], "yes" if t["protected"] else "no",
             _reach(t) if t["protected"] else "", t["why"])
            for t in found["tools"]
        ),
    )  # fmt: skip
    yield Text()
    for problem in found["problems"]:
        yield Text("Wrong: ").append_text(safe(problem))
    if found["ok"]:
        yield Text("Nothing is wrong.")


def _reach(tool: dict[str, Any]) -> str:
    return "beyond" if tool["beyond_this_machine"] else "this machine"


def _host_words(host: dict[str, Any]) -> str:
    commit = f", commit {host['commit']}" if host["commit"] else ""
    told = f"{host['name']} {host['version']}{commit}".strip()
    if host["blocked"]:
        return f"{told}, NOT attached, its protected tools blocked in this process"
    return told + (", attached in this process" if host["attached"] else "")


def _versions_words(ledger: dict[str, Any]) -> str:
    if ledger["schema_version"] is None:
        return "nothing that can be read"
    return f"schema {ledger['schema_version']}, protocol {ledger['protocol_version']}"


def _written_words(ledger: dict[str, Any]) -> str:
    if ledger["synchronous"] is None:
        return ""
    return f"journal mode {ledger['journal_mode']}, synchronous {ledger['synchronous']}"


def _states_words(ledger: dict[str, Any]) -> str:
    return ", ".join(f"{n} {state}" for state, n in (ledger["states"] or {}).items())


def _server_words(running: bool | None) -> str:
    if running is None:
        return "whether a server process holds the folder cannot be told here"
    return f"{'a' if running else 'no'} server process holds the folder"
