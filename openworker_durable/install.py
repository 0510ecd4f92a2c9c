"""One call that attaches to OpenWorker, one that puts everything back, and what came of it.

A host that does not fit is left alone but for one thing: its protected tools are blocked with
a message that says why. Never half-protected.
"""

from __future__ import annotations

import importlib.util
import io
import logging
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from .errors import SeamsDoNotFit
from .hosts import blocking, version
from .hosts.attach import Attachment, attach, attached
from .hosts.names import HostNames
from .hosts.openworker import OPENWORKER
from .hosts.patching import Patches
from .hosts.seams import Finding
from .hosts.terminal import check_all
from .ledger import DATABASE
from .retention import KEEP, Retention
from .states import PROTOCOL_VERSION, SCHEMA_VERSION

log = logging.getLogger("openworker_durable")

NOTHING_BLOCKED = "NOTHING IS BLOCKED AND NOTHING IS RECORDED"


class Status(str, Enum):
    """What `install` did with a host."""

    ATTACHED = "attached"
    BLOCKED = "blocked"
    ABSENT = "absent"
    REMOVED = "removed"


@dataclass
class Report:
    """What `install` found and did; `str()` of it is what `openworker-durable doctor` prints.

    Args:
        status: attached; blocked (nothing attached, protected tools refused); absent (no host
            here); removed (by `uninstall`).
        names: the host's names.
        findings: every seam, with its problem where it does not fit.
        blocked: what was wrapped to refuse protected tools, as `module:Class.method`.
        version, commit: the host's, empty when they cannot be told.
        again: True when `install` was called once more and did nothing.
    """

    status: Status
    names: HostNames
    findings: list[Finding] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    version: str = ""
    commit: str = ""
    again: bool = False
    protocol_version: int = PROTOCOL_VERSION
    schema_version: int = SCHEMA_VERSION
    attachment: Attachment | None = field(default=None, repr=False)
    patches: Patches = field(default_factory=Patches, repr=False)

    @property
    def host(self) -> str:
        """Return the host's name for people."""
        return self.names.host

    @property
    def safe(self) -> bool:
        """Say whether no protected call can go unrecorded: attached, or blocked for certain."""
        return self.status is Status.ATTACHED or bool(self.blocked)

    @property
    def problems(self) -> list[str]:
        """Return one line for each seam that does not fit."""
        return [f"{f.seam.name}: {f.problem}" for f in self.findings if f.problem]

    @property
    def package_version(self) -> str:
        """Return this package's version."""
        from . import __version__

        return __version__

    @property
    def ledgers(self) -> list[Path]:
        """Return the records: those in use, or the one of the usual state folder."""
        from .cli_read import default_state_dir

        runtimes = self.attachment.runtimes if self.attachment else []
        return [r.ledger.path for r in runtimes] or [default_state_dir() / DATABASE]

    @property
    def journal_mode(self) -> str:
        """Return the first record's journal mode, empty while there is none."""
        from .cli_read import journal_mode

        try:
            return journal_mode(self.ledgers[0])
        except OSError:
            return ""

    def examine(self) -> dict[str, Any]:
        """Return what `doctor --json` prints, for the record in use."""
        from .cli_doctor import examine

        return examine(self.ledgers[0].parent, self)

    @property
    def line(self) -> str:
        """Return one line for a terminal or a log."""
        what = f"{self.host} {self.version}".strip()
        at = f" (commit {self.commit[:12]})" if self.commit else ""
        if self.status is Status.ATTACHED:
            was = "already attached" if self.again else "attached"
            return f"{was} to {what}{at}; record: {self.ledgers[0]}"
        if self.status is Status.ABSENT:
            return f"{self.host} cannot be imported by this Python; {NOTHING_BLOCKED}"
        if self.status is Status.REMOVED:
            return f"removed from {what}{at}"
        end = "its protected tools are blocked" if self.blocked else NOTHING_BLOCKED
        return f"does not fit {what}{at}; nothing was attached, {end}"

    def __str__(self) -> str:
        from rich.console import Console

        from .cli_doctor import pages

        text = io.StringIO()
        out = Console(file=text, width=80, highlight=False, markup=False, emoji=False)
        for page in pages(self.examine()):
            out.print(page)
        return text.getvalue()


_installed: dict[str, Report] = {}


def install(*, retention: Retention = KEEP, names: HostNames = OPENWORKER) -> Report:
    """Attach to the host in this process, before or after its modules were imported.

    Managers that exist already get no record: call it before the session manager is made.

    Args:
        retention: how long settled rows and their results are kept.
        names: how the host's classes are found; the reference host's in tests.

    Returns:
        the report; the same one, with `again` set, when it was called before. Raises nothing
        about a host that does not fit: see `Report.status`.
    """
    there = installed(names)
    if there is not None:
        there.again = True
        log.info("%s", there.line)
        return there
    report = _install(names, retention)
    if report.status is not Status.ABSENT:
        _installed[names.package] = report
    level = logging.INFO if report.status is Status.ATTACHED else logging.ERROR
    log.log(level, "%s", "; ".join([report.line, *report.problems]))
    return report


def installed(names: HostNames = OPENWORKER) -> Report | None:
    """Return the report of the installation in force, or None."""
    report = _installed.get(names.package)
    if report is None or report.status is Status.BLOCKED:
        return report
    return report if attached(names) is report.attachment else None


def _install(names: HostNames, retention: Retention) -> Report:
    if not is_importable(names):
        return Report(Status.ABSENT, names)
    report = Report(
        Status.BLOCKED, names,
        version=version.version_of(names.package), commit=version.commit_of(names.package),
    )  # fmt: skip
    try:
        report.attachment = attach(names, retention=retention)
    except SeamsDoNotFit as exc:
        report.findings = check_all(names).findings
        why = blocking.reason(report.problems or [str(exc)])
        report.blocked = blocking.block(names, report.patches, why)
        return report
    report.status, report.findings = Status.ATTACHED, report.attachment.report.findings
    return report


def uninstall(*, names: HostNames = OPENWORKER) -> None:
    """Put every method of the host back and close the records; twice is once."""
    report = _installed.pop(names.package, None)
    if report is not None:
        report.patches.restore()
        report.status, report.blocked, report.again = Status.REMOVED, [], False
    there = attached(names)
    if there is not None:
        there.detach()


def is_importable(names: HostNames) -> bool:
    """Say whether the host's package is there; imports nothing of it."""
    try:
        return importlib.util.find_spec(names.package) is not None
    except (ImportError, ValueError):
        return False


def plugin(*_args: object, **_kwargs: object) -> Report:
    """Attach; what a host that loads the entry points `openworker.plugins` calls."""
    return install()
