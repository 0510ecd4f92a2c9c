"""Starting a host's own command with the record attached, in this very process.

Arguments, signals and the exit status are the command's own: its entry point is called here
as its script would call it. Also writes the wrapper that the desktop app can start.
"""

from __future__ import annotations

import difflib
import errno
import importlib.metadata
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .hosts.names import HostNames
from .hosts.openworker import OPENWORKER
from .install import Report, Status, install

REFUSED = 3
"""Exit status when the host was not started, because nothing could be recorded or blocked."""

USAGE = 2
NOT_PYTHON = 126
NOT_FOUND = 127

SAYS = "openworker-durable: "
_SERVER = "openworker-server"


def run(command: Sequence[str], names: HostNames = OPENWORKER) -> None:
    """Attach, then run a command of this environment; returns when the command does.

    Args:
        command: a console script, `-m` and a module, or a Python script's path; then its
            arguments, which nothing here looks at. One `--` before it is dropped.
        names: the host's names.

    Raises:
        SystemExit: the command's own; 2 without a command, 3 when the host would run neither
            recorded nor blocked, 126 for a file that is no Python script, 127 for a command
            that is not there.
        whatever else the command raises.
    """
    words = list(command[1:] if command[:1] == ["--"] else command)
    if not words or (words[0] == "-m" and len(words) < 2):
        _end(USAGE, "name a command, as in `openworker-durable run -- openworker-server`.")
    if words[0] == "-m":
        _require_module(words[1])
        _attach(names)
        _run_module(words[1], words[2:])
        return
    script = _entry_point(words[0])
    if script is None and not Path(words[0]).is_file():
        _end(NOT_FOUND, _unknown(words[0]))
    if script is None and not _is_python(Path(words[0])):
        _end(NOT_PYTHON, f"{words[0]} is not a Python script; it cannot run in this process.")
    _attach(names)
    if script is None:
        _run_file(words[0], words[1:])
    else:
        _run_entry_point(script, words)


def _end(status: int, sentence: str) -> NoReturn:
    print(f"{SAYS}{sentence}", file=sys.stderr)
    raise SystemExit(status)


# -- attaching
def _attach(names: HostNames) -> None:
    report = install(names=names)
    if report.status is Status.ATTACHED:
        _say(report.line)
    else:
        _say(f"{report}\n{SAYS}{report.line}." if report.blocked else f"{report.line}.")
    if not report.safe:
        _end(REFUSED, _remedy(report))


def _say(text: str) -> None:
    """Print to stderr, where there is one: a window program may have none."""
    if sys.stderr is not None:
        print(f"{SAYS}{text}", file=sys.stderr, flush=True)


def _remedy(report: Report) -> str:
    if report.status is Status.ABSENT:
        return (
            f"{report.host} was not started; install openworker-durable into the environment "
            "that OpenWorker runs in, and run it from there."
        )
    some = "; ".join(report.problems[:3])
    return (
        f"{report.host} was not started ({some}). Upgrade openworker-durable, or start the host "
        "without it; nothing is recorded then."
    )


# -- finding the command
def _entry_point(word: str) -> importlib.metadata.EntryPoint | None:
    """Return the console script a command names, by name or by the path of its script."""
    name = re.sub(r"(-script\.pyw?|\.exe)$", "", Path(word).name)
    if Path(word).name != word and Path(word).absolute().parent not in _script_folders():
        return None
    found = importlib.metadata.entry_points(group="console_scripts", name=name)
    return next(iter(found), None)


def _script_folders() -> list[Path]:
    own = Path(sys.argv[0]).absolute().parent if sys.argv else Path()
    return [Path(sysconfig.get_path("scripts")).absolute(), Path(sys.executable).parent, own]


def _unknown(word: str) -> str:
    every = sorted({e.name for e in importlib.metadata.entry_points(group="console_scripts")})
    near = difflib.get_close_matches(word, every, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return (
        f"no command {word!r} in {sys.prefix}, and no such file.{meant} Install it there, or run "
        "the openworker-durable of the environment that OpenWorker is installed in."
    )


def _require_module(name: str) -> None:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        found = None
    if found is None and not Path(*name.split(".")).exists() and not Path(f"{name}.py").exists():
        _end(NOT_FOUND, f"no module {name!r} in {sys.prefix}. Install it there.")


def _is_python(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(200)
    if first.startswith(b"#!"):
        return b"python" in first or (b"/sh" in first and b"python" in path.read_bytes()[:600])
    return path.suffix in (".py", ".pyw", ".pyz", "") and b"\0" not in first


# -- running it
def _first_on_path(folder: str) -> None:
    """Replace the folder that the interpreter put first for us by the one it puts for them."""
    if not getattr(sys.flags, "safe_path", False) and sys.path:
        sys.path[0] = folder


def _run_module(name: str, arguments: list[str]) -> None:
    _first_on_path(os.getcwd())
    sys.argv = ["-m", *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_file(path: str, arguments: list[str]) -> None:
    _first_on_path(str(Path(path).absolute().parent))
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


def _run_entry_point(script: importlib.metadata.EntryPoint, words: list[str]) -> None:
    """Do what the script of an entry point does: call it, and end with what it returns."""
    there = shutil.which(words[0], path=os.pathsep.join(map(str, _script_folders())))
    path = words[0] if Path(words[0]).name != words[0] else there or words[0]
    _first_on_path(str(Path(path).absolute().parent))
    sys.argv = [re.sub(r"\.exe$", "", path, flags=re.IGNORECASE), *words[1:]]
    sys.exit(script.load()())


def server() -> None:
    """Start the server with the record attached: the console script `openworker-durable-server`."""
    run([_SERVER, *sys.argv[1:]])


# -- the desktop app's wrapper
WRITTEN_BY = "Written by `openworker-durable wrapper`"
"""How a wrapper of ours is told from any other file."""


def write_wrapper(path: Path, *, python: str = sys.executable, windows: bool | None = None) -> Path:
    """Write a program that starts the server with the record attached, for the desktop app.

    Args:
        path: where; on Windows the name gets `.cmd` when it has no such ending.
        python: the Python of the environment that both are installed in, absolute.
        windows: which kind; this machine's when not given.

    Returns:
        the file written.

    Raises:
        OSError: it could not be written; the old one still stands. A file that is no wrapper of
            ours is not written over.
    """
    windows = sys.platform == "win32" if windows is None else windows
    if windows and path.suffix.lower() not in (".cmd", ".bat"):
        path = path.with_name(path.name + ".cmd")
    text = windows_text(python) if windows else posix_text(python)
    path = path.absolute()
    if path.exists() and (path.is_dir() or WRITTEN_BY.encode() not in path.read_bytes()):
        raise FileExistsError(errno.EEXIST, "something else is there", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    beside.write_bytes(text.encode("utf-8", "surrogateescape"))
    beside.chmod(0o755)
    beside.replace(path)
    return path


def posix_text(python: str) -> str:
    """Return the wrapper for macOS and Linux; `exec` makes its process the server's."""
    return (
        "#!/bin/sh\n"
        "# Starts OpenWorker's server with openworker-durable attached.\n"
        "# Written by `openworker-durable wrapper`; write it anew when the environment moves.\n"
        f'exec {shlex.quote(python)} -m openworker_durable.cli run -- {_SERVER} "$@"\n'
    )


def windows_text(python: str) -> str:
    """Return the wrapper for Windows; a batch file ends with its last command's status."""
    told = python.replace("%", "%%")
    encoding = "" if told.isascii() else "chcp 65001 >nul\r\n"
    return (
        "@echo off\r\n"
        "setlocal DisableDelayedExpansion\r\n"
        "rem Starts OpenWorker's server with openworker-durable attached.\r\n"
        "rem Written by `openworker-durable wrapper`; write it anew when the environment moves.\r\n"
        f"{encoding}"
        f'"{told}" -m openworker_durable.cli run -- {_SERVER} %*\r\n'
        "exit /b %ERRORLEVEL%\r\n"
    )
