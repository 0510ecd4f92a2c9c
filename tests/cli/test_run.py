"""`run` and `wrapper` at the command line: what follows `run` is not ours to read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from openworker_durable import cli, launch
from tests import needs
from tests.cli.records import call, run

FORMS = [
    ["--", "openworker-server", "--port", "8765"],
    ["openworker-server", "--state", "x", "--json", "--help"],
    ["openworker-server", "--", "--port", "1"],
    ["--", "openworker-server", "--", "run", "--version", "*", "~", "$HOME", ""],
    ["-m", "coworker.cli", "--help"],
    ["--", "-m", "coworker.cli", "-m", "x"],
]


def _received(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    got: list[list[str]] = []
    monkeypatch.setattr(launch, "run", lambda command: got.append(list(command)))
    return got


@pytest.mark.parametrize("words", FORMS)
def test_arguments_pass_untouched(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    got = _received(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["openworker-durable", "run", *words])
    cli.main()
    assert got == [words]


@pytest.mark.parametrize("words", FORMS)
def test_also_through_the_parser(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    got = _received(monkeypatch)
    assert run("run", *words).exit_code == 0
    assert got == [words[1:] if words[0] == "--" else words]


def test_run_alone_says_what_to_write() -> None:
    done = call("run")
    assert done.returncode == 2
    assert b"run -- openworker-server" in done.stderr
    assert call("run", "-m").returncode == 2


def test_help_is_ours_before_the_command() -> None:
    done = call("run", "--help")
    assert done.returncode == 0
    assert b"COMMAND" in done.stdout


def test_a_command_that_is_not_there_names_the_remedy() -> None:
    done = call("run", "--", "openworker-servr-x", "--port", "1")
    assert done.returncode == 127
    assert b"openworker-servr-x" in done.stderr
    assert b"Install it there" in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_wrapper_writes_a_program_and_says_how_to_use_it(tmp_path: Path) -> None:
    path = tmp_path / "a b" / "serve"
    result = run("wrapper", path)
    assert result.exit_code == 0
    written = Path(result.stdout.strip().removeprefix("COWORKER_SERVER_BIN="))
    assert written.parent == path.parent
    assert sys.executable in written.read_text(encoding="utf-8").replace("'", "")


def test_a_wrapper_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("wrapper", tmp_path / "file" / "serve")
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


def test_a_wrapper_is_written_over_and_nothing_else_is(tmp_path: Path) -> None:
    ours, other = tmp_path / "serve", tmp_path / "notes.txt"
    assert run("wrapper", ours).exit_code == run("wrapper", ours).exit_code == 0
    other.write_text("precious")
    assert run("wrapper", other).exit_code == 1
    assert other.read_text() == "precious"


@needs.sh
def test_the_wrapper_passes_every_argument_and_the_status(tmp_path: Path) -> None:
    seen = tmp_path / 'it\'s "here" $HOME'
    seen.mkdir()
    python = seen / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 7\n')
    python.chmod(0o755)
    path = launch.write_wrapper(tmp_path / "serve it", python=str(python))
    odd = ["--port", "1", "a b", "", "$HOME", "'\"`\\", "*"]
    done = subprocess.run([str(path), *odd], capture_output=True, text=True, check=False)
    assert done.returncode == 7
    before = ["-m", "openworker_durable.cli", "run", "--", "openworker-server"]
    assert done.stdout.splitlines() == [*before, *odd]


def test_the_wrapper_becomes_the_server_itself() -> None:
    last = launch.posix_text("/usr/bin/python3").splitlines()[-1]
    assert last.startswith("exec /usr/bin/python3 ")
    assert last.endswith(' openworker-server "$@"')


def test_the_wrapper_for_windows(tmp_path: Path) -> None:
    path = launch.write_wrapper(tmp_path / "serve", python=r"C:\a b\100%\python.exe", windows=True)
    assert path == tmp_path / "serve.cmd"
    text = path.read_bytes()
    assert text.count(b"\n") == text.count(b"\r\n")
    lines = text.decode().splitlines()
    assert lines[0] == "@echo off"
    assert lines[-2].startswith(r'"C:\a b\100%%\python.exe" -m openworker_durable.cli run -- ')
    assert lines[-2].endswith(" openworker-server %*")
    assert lines[-1] == "exit /b %ERRORLEVEL%"
    assert "chcp" not in text.decode()
    assert "chcp 65001" in launch.windows_text("C:\\Zoë\\python.exe")
