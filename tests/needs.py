"""What some tests need of the machine they run on; without it they are skipped with that reason.

Every skip of the tests is made here, with why it may be.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys

import pytest

HOST = "needs the real OpenWorker: `coworker` cannot be imported here"

# The real host is no dependency and is never installed by this project: CI has none. Whatever
# these tests show is also shown on the reference host, which has the same seams.
host = pytest.mark.skipif(importlib.util.find_spec("coworker") is None, reason=HOST)

# A kill that a process cannot see coming is SIGKILL; the code under test is the same on Windows.
sigkill = pytest.mark.skipif(sys.platform == "win32", reason="kills a process with SIGKILL")

# Asking a process to end, which Windows does another way.
sigterm = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to send")

# A process that sleeps like a closed laptop.
sigstop = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops a process by SIGSTOP")

# Windows has no owner, group and others in a file's mode.
file_modes = pytest.mark.skipif(os.name != "posix", reason="needs the file modes of POSIX")

# A folder that one may list and not write is made with modes.
posix_folders = pytest.mark.skipif(sys.platform == "win32", reason="needs the folders of POSIX")

# A script of `sh` cannot be started on Windows; the batch file has a test of its own.
sh = pytest.mark.skipif(sys.platform == "win32", reason="runs a script of sh")

# The administrator's process may write to a file that nobody may write to.
no_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write to everything"
)


def need(there: object, reason: str) -> None:
    """Skip the running test unless `there` holds; `reason` says what is missing."""
    if not there:
        pytest.skip(reason)


def need_package(package: str) -> None:
    """Skip the running test, or module, where a package that only some machines have is missing."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the package {package}", allow_module_level=True)


def need_host(package: str) -> None:
    """Skip the running test where it is about a host that cannot be imported."""
    need(importlib.util.find_spec(package) is not None, HOST)


# Repositories are looked at with the `git` program, which a person may not have.
git = pytest.mark.skipif(shutil.which("git") is None, reason="needs the program git")
