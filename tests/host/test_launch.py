"""Launching a host's own command: in this process, as its script would, with the record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

MAIN = """
import sys
from openworker_durable import launch
from openworker_durable.hosts.names import REFERENCE
{before}
launch.run(sys.argv[1:], REFERENCE)
"""

HOST = """
import json, os, sys

def main():
    from openworker_durable.hosts.attach import attached
    from openworker_durable.hosts.names import REFERENCE
    told = {"argv": sys.argv, "attached": attached(REFERENCE) is not None, "path": sys.path[0],
            "pid": os.getpid()}
    print(json.dumps(told), flush=True)
    return end(sys.argv[1:])

def end(words):
    if words[:1] == ["exit"]:
        raise SystemExit(int(words[1]))
    if words[:1] == ["return"]:
        return int(words[1])
    if words[:1] == ["say"]:
        raise SystemExit(words[1])
    if words[:1] == ["fail"]:
        raise ValueError("of the host")
    if words[:1] == ["interrupt"]:
        raise KeyboardInterrupt
    if words[:1] == ["wait"]:
        import threading
        threading.Event().wait()
    return None

if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment with a host's distribution: a module and two console scripts."""
    site = tmp_path / "site"
    info = site / "some_host-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-host\nVersion: 1.0\n")
    scripts = "[console_scripts]\nsome-server = some_host_main:main\nlost = some_host_main:gone\n"
    (info / "entry_points.txt").write_text(scripts)
    (site / "some_host_main.py").write_text(HOST)
    path = os.pathsep.join([str(site), str(Path(__file__).parents[2])])
    return {**os.environ, "PYTHONPATH": path, "COWORKER_STATE_DIR": str(tmp_path / "state")}


def start(
    env: dict[str, str], *words: object, before: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN.format(before=before), *map(str, words)],
        env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_console_script_runs_attached_with_its_own_arguments(env: dict[str, str]) -> None:
    odd = ["--port", "1", "--help", "--", "run", "-m", "a b", "", "*"]
    done = start(env, "--", "some-server", *odd)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["argv"][1:] == odd
    assert Path(told["argv"][0]).name == "some-server"
    assert told["attached"] is True
    said = [x for x in done.stderr.splitlines() if x.startswith("openworker-durable: ")]
    assert len(said) == 1
    assert "attached to the reference host" in said[0]


def test_also_without_the_two_dashes(env: dict[str, str]) -> None:
    done = start(env, "some-server", "--", "--x")
    assert json.loads(done.stdout)["argv"][1:] == ["--", "--x"]


@pytest.mark.parametrize(
    ("words", "status", "stderr"),
    [
        (["exit", 5], 5, ""),
        (["exit", 0], 0, ""),
        (["return", 6], 6, ""),
        ([], 0, ""),
        (["say", "no such model"], 1, "no such model"),
        (["fail"], 1, "ValueError: of the host"),
    ],
)
@pytest.mark.parametrize("way", [["some-server"], ["-m", "some_host_main"]])
def test_the_exit_status_is_the_commands_own(
    env: dict[str, str], way: list[str], words: list[object], status: int, stderr: str
) -> None:
    done = start(env, "--", *way, *words)
    assert done.returncode == status
    assert stderr in done.stderr


def test_an_interrupt_ends_it_as_it_would_end_the_command(env: dict[str, str]) -> None:
    alone = subprocess.run(
        [sys.executable, "-m", "some_host_main", "interrupt"],
        env=env, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    done = start(env, "some-server", "interrupt")
    assert done.returncode == alone.returncode != 0


@needs.sigterm
def test_signals_reach_the_command(env: dict[str, str]) -> None:
    command = [sys.executable, "-c", MAIN.format(before=""), "some-server", "wait"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["pid"] == child.pid
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == -signal.SIGTERM


def test_a_module_and_a_package(env: dict[str, str], tmp_path: Path) -> None:
    done = start(env, "-m", "some_host_main", "return", 3, cwd=tmp_path)
    told = json.loads(done.stdout)
    assert Path(told["argv"][0]).name == "some_host_main.py"
    assert told["argv"][1:] == ["return", "3"]
    assert Path(told["path"]).resolve() == tmp_path.resolve()
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "__main__.py").write_text("import some_host_main as h; h.main()\n")
    there = start(env, "-m", "pkg", "a", cwd=tmp_path)
    assert json.loads(there.stdout)["argv"][1:] == ["a"]


def test_a_scripts_path(env: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "my host.py"
    script.write_text(HOST)
    done = start(env, "--", script, "exit", 4)
    told = json.loads(done.stdout)
    assert done.returncode == 4
    assert told["argv"] == [str(script), "exit", "4"]
    assert (told["path"], told["attached"]) == (str(tmp_path), True)


def test_a_file_that_is_no_python_script(env: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "serve"
    script.write_text("#!/bin/bash\necho no\n")
    done = start(env, script)
    assert done.returncode == 126
    assert "not a Python script" in done.stderr
    assert "attached" not in done.stderr


def test_what_is_not_there_says_so_before_anything_starts(env: dict[str, str]) -> None:
    done = start(env, "some-servr", "--port", "1")
    assert done.returncode == 127
    assert "Did you mean some-server?" in done.stderr
    assert "attached" not in done.stderr
    module = start(env, "-m", "no_such_module_here")
    assert module.returncode == 127
    assert "no_such_module_here" in module.stderr
    assert start(env).returncode == start(env, "--").returncode == start(env, "-m").returncode == 2


MISFIT = "from openworker_durable.hosts.reference.engine import TurnEngine; TurnEngine.retry = None"
NO_TOOLS = (
    "from openworker_durable.hosts.reference.tools import ToolRegistry; del ToolRegistry.execute"
)


def test_a_host_that_does_not_fit_starts_blocked_with_the_report(env: dict[str, str]) -> None:
    done = start(env, "some-server", "exit", 5, before=MISFIT)
    assert done.returncode == 5
    assert json.loads(done.stdout)["attached"] is False
    told = " ".join(done.stderr.split())
    assert "engine.retry wrapped" in told
    assert "its protected tools are blocked" in told


def test_a_host_that_cannot_even_be_blocked_is_not_started(env: dict[str, str]) -> None:
    done = start(env, "some-server", before=NO_TOOLS)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "NOTHING IS BLOCKED" in done.stderr
    assert "Upgrade openworker-durable" in done.stderr


def test_without_the_host_nothing_is_started(env: dict[str, str]) -> None:
    absent = "import dataclasses; REFERENCE = dataclasses.replace(REFERENCE, package='nowhere_x')"
    done = start(env, "some-server", before=absent)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "into the environment that OpenWorker runs in" in " ".join(done.stderr.split())
