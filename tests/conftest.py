"""What every test shares: the check of which package is under test, and hypothesis' profile."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import hypothesis
import pytest

import openworker_durable

# Commits to disk vary too much for a deadline for each example; the test's own timeout holds.
hypothesis.settings.register_profile("openworker-durable", deadline=None, print_blob=True)
hypothesis.settings.load_profile("openworker-durable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expect-installed",
        action="store_true",
        help="fail unless openworker_durable is imported from site-packages",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--expect-installed"):
        return
    site_packages = Path(sysconfig.get_path("purelib")).resolve()
    if site_packages not in _package_file().parents:
        raise pytest.UsageError(f"{_package_file()} does not lie in {site_packages}")


def pytest_report_header() -> str:
    return f"openworker_durable: {_package_file()}"


def _package_file() -> Path:
    return Path(openworker_durable.__file__).resolve()
