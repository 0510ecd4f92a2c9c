"""Which version of a host is importable here: its distribution's, and its commit where told."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname


def version_of(package: str) -> str:
    """Return the installed version of a package's distribution, empty when it has none."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""


def commit_of(package: str) -> str:
    """Return the commit a package was installed or is run from, empty when nothing tells.

    The installer's own record comes first (PEP 610), then the checkout the package lies in; no
    program is run.
    """
    told = _direct_url(package)
    commit = str((told.get("vcs_info") or {}).get("commit_id") or "")
    if commit:
        return commit
    for folder in _checkouts(package, str(told.get("url") or "")):
        with contextlib.suppress(OSError, ValueError):
            return _head(folder / ".git")
    return ""


def _direct_url(package: str) -> dict[str, Any]:
    with contextlib.suppress(metadata.PackageNotFoundError, ValueError):
        text = metadata.distribution(package).read_text("direct_url.json")
        value = json.loads(text) if text else {}
        return value if isinstance(value, dict) else {}
    return {}


def _checkouts(package: str, url: str) -> list[Path]:
    """Return the folders that may be the package's checkout."""
    found = []
    if url.startswith("file:"):
        found.append(Path(url2pathname(urlparse(url).path)))
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin:
            found.append(Path(spec.origin).resolve().parent.parent)
    return [folder for folder in found if (folder / ".git").exists()]


def _head(git: Path) -> str:
    """Return the commit that a checkout's HEAD names.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    if git.is_file():  # a worktree or a submodule: a line that names the real folder
        git = (git.parent / git.read_text(encoding="utf-8").partition(":")[2].strip()).resolve()
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return head
    ref = head.partition(":")[2].strip()
    common = git / "commondir"
    roots = [git]
    if common.is_file():
        roots.append((git / common.read_text(encoding="utf-8").strip()).resolve())
    for root in roots:
        loose = root / ref
        if loose.is_file():
            return loose.read_text(encoding="utf-8").strip()
        packed = root / "packed-refs"
        if packed.is_file():
            for line in packed.read_text(encoding="utf-8").splitlines():
                commit, _, name = line.partition(" ")
                if name == ref:
                    return commit
    raise ValueError("the branch has no commit")
