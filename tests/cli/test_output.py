"""What the record holds reaches a terminal as text and nothing else; and the page about it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from openworker_durable.cli import app
from openworker_durable.cli_read import EXITS
from openworker_durable.cli_words import safe
from tests.cli.records import call, every_kind, record, run, run_json

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
HOSTILE = "x[bold red]y[/bold red][/]\x1b[31m\x1b]0;title\x07\r\u202ez\x85\u200b:smile:\nend"


def hostile(state: Path) -> Path:
    with record(state) as r:
        r.dispatch("a1", tool=HOSTILE, session=HOSTILE, ref=HOSTILE, to=HOSTILE, subject="ü 工具")
        r.dispatch("a2", ref="", tool="half \ud800 character".encode("utf-8", "replace").decode())
    return state


def test_text_is_shown_as_it_is_without_markup_or_control_characters(tmp_path: Path) -> None:
    hostile(tmp_path)
    for args in (["list"], ["show", "xa1"], ["history", "xa1"], ["list", "--tool", HOSTILE]):
        result = run(*args, "--state", tmp_path)
        assert result.exit_code == 0, result.exception
        assert not set(result.output) & set("\x1b\x07\r\x85\u202e\u200b")
    text = "".join(run("show", "xa1", "--state", tmp_path).output.split())
    assert "x[boldred]y[/boldred][/][31m]0;titlez:smile:end" in text


def test_errors_are_shown_the_same_way(tmp_path: Path) -> None:
    every_kind(tmp_path)
    result = run("show", "\x1b[31m[bold]", "--state", tmp_path)
    assert result.exit_code == 8
    assert "\x1b" not in result.stderr
    assert "[bold]" in result.stderr


def test_safe_keeps_what_is_harmless() -> None:
    assert safe("a\tb\nc").plain == "a b c"
    assert safe("naïve 工具 🙂 [x]").plain == "naïve 工具 🙂 [x]"
    assert safe("\x00\x1b\x9b\u2066").plain == ""


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "C.UTF-8", "NO_COLOR": "1"},
        {"LC_ALL": "C.UTF-8", "TERM": "dumb"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
    ids=["ascii", "no color", "dumb", "latin"],
)
def test_a_pipe_of_any_encoding(tmp_path: Path, env: dict[str, str]) -> None:
    hostile(tmp_path)
    for args in (["list"], ["show", "xa1"], ["history", "xa1"], ["doctor"], ["show", "工具"]):
        done = call(*args, "--state", tmp_path, **env)
        assert done.returncode == (8 if args[-1] == "工具" else 0), done.stderr
        assert b"\x1b" not in done.stdout + done.stderr
        assert b"Traceback" not in done.stderr
        encoding = env.get("PYTHONIOENCODING", "utf-8")
        lines = done.stdout.decode(encoding).splitlines()
        assert all(len(line) <= 80 for line in lines)
    assert call("--help", **env).returncode == 0
    assert call("list", "--help", **env).returncode == 0


def test_json_is_ascii_and_complete(tmp_path: Path) -> None:
    hostile(tmp_path)
    done = call("list", "--json", "--state", tmp_path, LC_ALL="C", PYTHONIOENCODING="ascii")
    tools = [e["tool"]["name"] for e in json.loads(done.stdout.decode("ascii"))["executions"]]
    assert HOSTILE in tools


# -- docs/cli.md


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_every_command_and_option_is_documented() -> None:
    group: Any = get_command(app)
    commands = group.commands
    sections = dict(re.findall(r"^## `(\w+).*?`\n(.*?)(?=^## |\Z)", page(), re.S | re.M))
    assert set(sections) == set(commands)
    for name, command in commands.items():
        for param in command.params:
            for option in [*param.opts, *param.secondary_opts]:
                if option.startswith("--") and option != "--help":
                    assert f"`{option}" in sections[name], (name, option)
    assert "openworker-durable --version`" in page()


def test_every_exit_status_is_documented() -> None:
    lines = re.findall(r"^\| (\d) \| (?:`(\w+)`)? *\| (.*?) \|$", page(), re.M)
    assert lines[0][:2] == ("0", "")
    assert {code: (int(number), what) for number, code, what in lines[1:]} == EXITS


def test_every_json_key_is_documented(tmp_path: Path) -> None:
    state = every_kind(tmp_path / "state")

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value).union(*(keys(v) for v in value.values()))
        return set().union(*(keys(v) for v in value)) if isinstance(value, list) else set()

    printed = [
        run_json("list", "--state", state), run_json("show", "xb4", "--state", state),
        run_json("history", "xb4", "--state", state), run_json("doctor", "--state", state),
        run_json("list", "--state", tmp_path / "none", code=3),
    ]  # fmt: skip
    named = set(re.findall(r"`(\w+)`", page()))
    assert keys(printed) - named == set()
