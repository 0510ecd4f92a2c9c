"""Running a host's own tests with the record attached.

    pytest -p openworker_durable.pytest_plugin

With `--durable-bind-all` every engine that a test builds outside any session gets a session
and a record of its own in a temporary folder. The last line counts the rows of all records.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .failpoints import no_failpoint
from .hosts.attach import Attachment
from .hosts.manager_hooks import bind
from .hosts.names import HostNames
from .hosts.openworker import OPENWORKER
from .hosts.patching import Patches
from .hosts.runtime import Runtime, runtime_for
from .hosts.terminal import OneSession
from .install import Report, install, uninstall

NAME = "openworker-durable"
HOST = OPENWORKER
"""The host whose tests run; the tests of this module put the reference host here."""

_ROWS = "durable_rows"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our option."""
    parser.getgroup(NAME).addoption(
        "--durable-bind-all",
        action="store_true",
        help="give every engine built outside any session a record of its own",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Attach to the host, before its tests are collected."""
    report = install(names=HOST)
    config.pluginmanager.register(Run(config, report), f"{NAME}-run")


class Run:
    """One run of the tests: counts rows, and closes what each test left open.

    Args:
        config: pytest's.
        report: what `install` said.
    """

    def __init__(self, config: pytest.Config, report: Report) -> None:
        self.config, self.report = config, report
        self.rows = 0
        self.patches = Patches()
        self.patches.wrap(Runtime, "_close_now", self._counting)
        self.folders: list[Path] = []
        if report.attachment is not None and config.getoption("durable_bind_all"):
            BindAll(report.names, report.attachment, self.folders).attach(self.patches)

    def _counting(self, host: Callable[..., None]) -> Callable[..., None]:
        def _close_now(runtime: Runtime) -> None:
            self.rows += _count(runtime.ledger.path)
            host(runtime)

        return _close_now

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        """Close the records that a test and its fixtures opened and left open."""
        attachment = self.report.attachment
        before = list(attachment.runtimes) if attachment else []
        result = yield
        if attachment is not None:
            for runtime in [r for r in attachment.runtimes if r not in before]:
                attachment.runtimes.remove(runtime)
                if not runtime._closed:
                    runtime.close()
        while self.folders:
            shutil.rmtree(self.folders.pop(), ignore_errors=True)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        """Hand the count on, or print it below everything else."""
        for runtime in list(self.report.attachment.runtimes) if self.report.attachment else []:
            runtime.close()
        output = getattr(self.config, "workeroutput", None)
        if output is not None:  # a worker of pytest-xdist sends this within its own wrapper
            output[_ROWS] = self.rows
        result = yield
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and output is None:
            terminal.write_line(f"{NAME}: {self.report.line.partition('; record')[0]}")
            terminal.write_line(f"durable: {self.rows} ledger rows")
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a worker of pytest-xdist counted."""
        self.rows += int(getattr(node, "workeroutput", {}).get(_ROWS, 0))

    def pytest_unconfigure(self) -> None:
        """Put everything back."""
        self.patches.restore()
        uninstall(names=self.report.names)


class BindAll:
    """Gives every engine built outside any session a session and a record of its own.

    Args:
        names: the host's names.
        attachment: keeps the runtimes made.
        folders: where the temporary folders are noted, for whoever removes them.
    """

    def __init__(self, names: HostNames, attachment: Attachment, folders: list[Path]) -> None:
        self.names, self.attachment, self.folders = names, attachment, folders
        self._inside = 0

    def attach(self, patches: Patches) -> None:
        """Wrap the engine's constructor, and what builds engines for sessions."""
        patches.wrap(self.names.load("engine"), "__init__", self.init)
        for method in ("get_engine", "_build_task_engine"):
            patches.wrap(self.names.load("manager"), method, self.building)

    def building(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """An engine that a manager builds has its session already."""

        def build(manager: Any, *args: Any, **kwargs: Any) -> Any:
            self._inside += 1
            try:
                return host(manager, *args, **kwargs)
            finally:
                self._inside -= 1

        return build

    def init(self, host: Callable[..., None]) -> Callable[..., None]:
        """Bind the new engine."""

        def __init__(engine: Any, *args: Any, **kwargs: Any) -> None:
            host(engine, *args, **kwargs)
            if not self._inside:
                self.bind(engine)

        return __init__

    def bind(self, engine: Any) -> None:
        """Give one engine a session, in a temporary state folder of its own."""
        folder = Path(tempfile.mkdtemp(prefix="durable-"))
        self.folders.append(folder)
        runtime = runtime_for(folder, self.names, no_failpoint)
        self.attachment.runtimes.append(runtime)
        store = self.names.load("conversations")(folder)
        inbox = self.names.load("inbox")(folder / "inbox.json")
        session = OneSession(runtime, store, inbox, "lone", engine)
        runtime.manager = session
        bind(runtime, session, engine, "lone")


def _count(path: Path) -> int:
    """Return how many rows a record has, 0 when it is gone or was never made."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as conn:
            return int(conn.execute("SELECT COUNT(*) FROM tool_executions").fetchone()[0])
    except sqlite3.Error:
        return 0
