"""Which tools are protected, and what a tool's identity is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from openworker_durable.protection import (
    GATES,
    LASTING_EFFECTS,
    LOCAL_TOOLS,
    protection,
    tool_identity,
)


@dataclass
class Metadata:
    category: str = "mcp"
    risk_level: str = "medium"
    requires_approval: bool = False
    capabilities: list[str] = field(default_factory=list)


@dataclass
class Spec:
    name: str
    metadata: Any = None
    schema: Any = None
    func: Any = print


def _source(name: str, *servers: str) -> str:
    return tool_identity(Spec(name, Metadata(capabilities=list(servers)))).source


def test_an_mcp_tools_identity_includes_its_server() -> None:
    assert _source("mcp__mail__send", "mail") == "mcp:mail"
    assert _source("mcp__mail__send") == "mcp:mail", "the name says it when the metadata does not"
    assert tool_identity(Spec("send")).source == "host"


def test_two_servers_whose_tools_share_a_name_are_two_identities() -> None:
    one, other = (
        Spec("mcp__a__b__x", Metadata(capabilities=["a"])),
        Spec("mcp__a__b__x", Metadata(capabilities=["a__b"])),
    )
    assert tool_identity(one) != tool_identity(other)


@pytest.mark.parametrize("hint", ["idempotentHint", "readOnlyHint"])
def test_a_servers_own_hint_changes_nothing(hint: str) -> None:
    """Only the person's list makes an MCP tool read-only; a server may say anything of itself."""
    metadata = Metadata(capabilities=["mail"])
    setattr(metadata, hint, True)
    found = protection("mcp__mail__send", metadata)
    assert found.protected
    assert found.external


def test_the_persons_list_makes_an_mcp_tool_read_only() -> None:
    """The host calls every MCP tool a medium risk, so that alone must not protect it again."""
    listed = protection("mcp__mail__find", Metadata(), risk="read", read_only=True)
    assert not listed.protected


def test_every_gate_is_protected_and_touches_this_machine_only() -> None:
    assert set(LASTING_EFFECTS) >= GATES
    assert GATES <= LOCAL_TOOLS
    assert all(protection(name).protected for name in GATES)
