"""Calls of the host's file tools, and what their reconcilers note and say."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from openworker_durable.models import ToolIdentity
from openworker_durable.reconciler import Call, Probe, Verdict
from openworker_durable.reconcilers.files import RECONCILERS


def call_of(folder: Path | None, name: str, arguments: dict[str, Any]) -> Call:
    return Call("x1", 1, ToolIdentity(name=name), arguments, folder)


def looked(call: Call, prepared: str) -> Verdict:
    known = {f.name: getattr(call, f.name) for f in fields(call)}
    answer = RECONCILERS[call.tool.name].look(Probe(**known, prepared=prepared))
    assert isinstance(answer, Verdict)
    return answer


def prepared(call: Call) -> str:
    prepare = RECONCILERS[call.tool.name].prepare
    assert prepare is not None
    return prepare(call)


def patch_of(*lines: str) -> dict[str, Any]:
    return {"patch": "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""])}
