"""The built-in reconcilers beside OpenWorker's own file tools: what is foretold is what they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.models import ToolIdentity
from openworker_durable.reconciler import Call, Probe, Verdict, VerdictKind
from openworker_durable.reconcilers.files import RECONCILERS
from tests import needs

pytestmark = needs.host

PATCH = (
    "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n-two\n+2\n*** Add File: sub/b.txt\n+bee\n"
    "*** Delete File: c.txt\n*** End Patch\n"
)
MOVE = (
    "*** Begin Patch\n*** Update File: a.txt\n*** Move to: d.txt\n@@\n one\n-two\n+2\n"
    "*** End Patch\n"
)
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "write": ("write_file", {"path": "new/é.txt", "content": "a\r\nb\n"}),
    "overwrite": ("write_file", {"path": "a.txt", "content": ""}),
    "replace": ("replace_in_file", {"path": "a.txt", "old": "two", "new": "deux"}),
    "replace in crlf": ("replace_in_file", {"path": "crlf.txt", "old": "x\ny", "new": "z"}),
    "patch": ("apply_patch", {"patch": PATCH}),
    "move": ("apply_patch", {"patch": MOVE}),
}


def tools(folder: Path) -> dict[str, Callable[..., Any]]:
    from aisuite.toolkits import files

    return {t.__name__: t for t in files(root=str(folder), allow_write=True)}


def looked(made: Call, noted: str) -> Verdict:
    probe = Probe("x", 1, made.tool, made.arguments, made.workspace, prepared=noted)
    answer = RECONCILERS[made.tool.name].look(probe)
    assert isinstance(answer, Verdict)
    return answer


@pytest.mark.parametrize("name", CALLS)
def test_what_is_foretold_is_what_the_tool_does_and_returns(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"zero\none\ntwo\nthree\n")
    (tmp_path / "c.txt").write_bytes(b"sea\n")
    (tmp_path / "crlf.txt").write_bytes(b"x\r\ny\r\n")
    tool, arguments = CALLS[name]
    made = Call("x", 1, ToolIdentity(name=tool), arguments, tmp_path)
    prepare = RECONCILERS[tool].prepare
    assert prepare is not None
    noted = prepare(made)
    assert looked(made, noted).kind is VerdictKind.DID_NOT_HAPPEN
    returned = tools(tmp_path)[tool](**arguments)
    verdict = looked(made, noted)
    assert verdict.kind is VerdictKind.HAPPENED
    assert verdict.result == returned
