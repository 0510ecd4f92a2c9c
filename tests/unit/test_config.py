"""The person's configuration file: what it means, and that every mistake in it says its remedy."""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openworker_durable.config import (
    FILE,
    MAX_ATTEMPTS,
    MAX_KEY_VALID,
    Problem,
    Settings,
    check,
    read_settings,
    settings_from,
    settings_path,
)
from openworker_durable.declare import Declaration
from openworker_durable.errors import PolicyError
from openworker_durable.policy import (
    MANUAL,
    PolicyKind,
    RecoveryPolicy,
    idempotent,
    manual,
    reconcile,
)
from openworker_durable.reconciler import Reconciler, cannot_tell
from tests import needs

LOOK = Reconciler(lambda _: cannot_tell())


def read(text: str) -> Settings:
    return settings_from(text.encode("utf-8"))


def fault(text: str) -> str:
    with pytest.raises(PolicyError) as caught:
        read(text)
    return str(caught.value)


def tried(content: bytes) -> Settings | str:
    """Return the settings that a file stands for, or the message that refuses it."""
    try:
        return settings_from(content)
    except PolicyError as exc:
        return str(exc)


# -- what it means
@pytest.mark.parametrize(
    ("lines", "policy"),
    [
        ('policy = "manual"', MANUAL),
        ('policy = "manual"\nrepeatable = true\nattempts = 1', manual(repeatable=True)),
        ('policy = "idempotent"\nkey_valid = 90', idempotent(key_valid=90)),
        ('policy = "idempotent"\nkey_valid = 0.5', idempotent(key_valid=0.5)),
        ('policy = "idempotent"\nkey_valid = "1.5h"\nattempts = 2',
         idempotent(key_valid=5400, attempts=2)),
        ('policy = "reconcile"', reconcile()),
        ('policy = "reconcile"\nthen = "manual"\nattempts = 4', reconcile(attempts=4)),
        ('policy = "reconcile"\nthen = "idempotent"\nkey_valid = "7 d"',
         reconcile(then=idempotent(key_valid=7 * 86400))),
    ],
)  # fmt: skip
def test_a_policy_is_read(lines: str, policy: RecoveryPolicy) -> None:
    assert read(f"[tools.pay]\n{lines}").policies == {"pay": policy}


def test_names_are_exact_and_as_recovery_compares_them() -> None:
    settings = read('[tools."mcp:git.hub/create.issue"]\npolicy = "manual"')
    assert list(settings.policies) == ["mcp:git.hub/create_issue"]


def test_no_file_is_an_empty_one(tmp_path: Path) -> None:
    assert read_settings(settings_path(tmp_path)) == Settings()
    (tmp_path / FILE).touch()
    assert read_settings(tmp_path / FILE) == Settings(file=str(tmp_path / FILE))


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_a_file_of_a_windows_editor_is_read(tmp_path: Path, start: bytes) -> None:
    path = settings_path(tmp_path)
    path.write_bytes(start + b'[tools.pay]\r\npolicy = "reconcile"\r\n')
    assert read_settings(path).policies == {"pay": reconcile()}


def test_the_right_to_give_evidence_is_exact() -> None:
    settings = read('[sources.ops]\ntools = ["pay"]\n[sources."mail.desk"]\ntools = ["send"]')
    allowed = {(s, t) for s in ("ops", "mail.desk", "other", "") for t in ("pay", "send", "pa")
               if settings.may_give(s, t)}  # fmt: skip
    assert allowed == {("ops", "pay"), ("mail.desk", "send")}


def test_a_schema_alone_changes_no_policy() -> None:
    settings = read('[tools.pay]\noutput = { type = "object" }')
    assert (settings.policies, settings.outputs) == ({}, {"pay": {"type": "object"}})


# -- mistakes
@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("[tool.pay]", "tool", "unknown"),
        ("tools = 3", "tools", "found a whole number; write tables [tools.NAME]"),
        ("[tools]\npay = true", "[tools], pay", "write it below [tools.pay]"),
        ("[tools.pay]", "[tools.pay]", "it says nothing; add policy"),
        ('[tools."pay*"]\npolicy = "manual"', '[tools."pay*"]', "patterns are not taken"),
        ('[tools."mcp:x/*"]\npolicy = "manual"', '[tools."mcp:x/*"]', "patterns are not taken"),
        ('[tools."mcp:g/a_b"]\npolicy="manual"\n[tools."mcp:g/a.b"]\npolicy="manual"',
         '[tools."mcp:g/a.b"]', "has another table already; keep one"),
        ('[tools.pay]\npolicy = "manual"\nattemps = 3', "[tools.pay], attemps", "is unknown"),
        ('[tools.my.tool]\npolicy = "manual"', "[tools.my], tool", "has to be in quotes"),
        ('[tools.pay]\npolicy = "retry"', "[tools.pay], policy", 'write "manual", "idempotent"'),
        ('[tools.pay]\npolicy = ["manual"]', "[tools.pay], policy", "found a list"),
        ("[tools.pay]\nattempts = 3", "[tools.pay], attempts", "add policy"),
        ('[tools.pay]\nthen = "manual"', "[tools.pay], then", "add policy"),
        ('[tools.pay]\npolicy = "manual"\nthen = "manual"', "[tools.pay], then", "remove it"),
        ('[tools.pay]\npolicy = "reconcile"\nthen = "reconcile"', "[tools.pay], then",
         'write "manual" or "idempotent"'),
        ('[tools.pay]\npolicy = "reconcile"\nthen = 1', "[tools.pay], then", "whole number"),
        ('[tools.pay]\npolicy = "idempotent"', "[tools.pay], key_valid", "it is missing"),
        ('[tools.pay]\npolicy = "reconcile"\nthen = "idempotent"', "[tools.pay], key_valid",
         "it is missing"),
        ('[tools.pay]\npolicy = "manual"\nkey_valid = 60', "[tools.pay], key_valid", "remove it"),
        ('[tools.pay]\npolicy = "reconcile"\nkey_valid = 60', "[tools.pay], key_valid",
         "remove it"),
        ('[tools.pay]\npolicy = "manual"\nattempts = 2', "[tools.pay], attempts", "1 and 1"),
        ('[tools.pay]\npolicy = "idempotent"\nkey_valid = 60\nattempts = 1',
         "[tools.pay], attempts", "between 2 and"),
        ('[tools.pay]\npolicy = "reconcile"\nattempts = true', "[tools.pay], attempts",
         "found true or false; write a whole number"),
        ('[tools.pay]\npolicy = "reconcile"\nattempts = 2.0', "[tools.pay], attempts",
         "found a number"),
        ('[tools.pay]\npolicy = "manual"\nrepeatable = 1', "[tools.pay], repeatable",
         "write true or false"),
        ('[tools.pay]\noutput = "object"', "[tools.pay], output", "found a text"),
        ('[tools.pay]\noutput = { const = 1979-05-27 }', "[tools.pay], output", "type date"),
        ('[tools.pay]\noutput = { maximum = nan }', "[tools.pay], output", "JSON does not have"),
        ('[tools.pay]\noutput = { type = "objct" }', "[tools.pay], output", "invalid at $.type"),
        ('[tools.pay]\noutput = { "$ref" = "https://example.org/x" }', "[tools.pay], output",
         "never fetched"),
        ("[sources]\nops = 1", "[sources], ops", "write it below [sources.ops]"),
        ("[sources.ops]", "[sources.ops], tools", "at least one"),
        ("[sources.ops]\ntools = []", "[sources.ops], tools", "at least one"),
        ('[sources.ops]\ntools = "pay"', "[sources.ops], tools", 'write tools = ["name"'),
        ("[sources.ops]\ntools = [1]", "[sources.ops], tools", "whole number in the list"),
        ('[sources.ops]\ntools = ["*"]', "[sources.ops], tools", "patterns are not taken"),
        ('[sources.ops]\ntools = ["pay", "pay"]', "[sources.ops], tools", "twice; keep one"),
        ('[sources.ops]\ntools = ["pay"]\ndecide = true', "[sources.ops], decide", "unknown"),
        ('[sources."a b"]\ntools = ["pay"]', '[sources."a b"]', "rename it"),
        ('[sources."a\\nb"]\ntools = ["pay"]', '[sources."a?b"]', "rename it"),
        ('[sources.""]\ntools = ["pay"]', '[sources.""]', "rename it"),
    ],
)  # fmt: skip
def test_a_mistake_says_where_it_stands_and_what_to_do(text: str, place: str, said: str) -> None:
    message = fault(text)
    assert message.startswith(f"{FILE}, {place}:"), message
    assert said in message
    assert "; " in message, "the remedy"


@pytest.mark.parametrize(
    "text", ["0", "-1", "inf", "nan", "1e300", '"24"', '"1w"', '"-1h"', '"h"', '"٣h"', '"367d"',
             '"24h\\n"', '""', "true", "[1]", "1979-05-27", "9" * 400],
)  # fmt: skip
def test_no_other_time_is_taken(text: str) -> None:
    message = fault(f'[tools.pay]\npolicy = "idempotent"\nkey_valid = {text}')
    assert message.startswith(f"{FILE}, [tools.pay], key_valid: ")


@pytest.mark.parametrize(
    "content", [b"[tools", b"a = 1\na = 2", b"\xff\xfe[\0t\0", b"x = \xe9", b"a = " + b"[" * 9000,
                b"a = " + b"9" * 9000, b"\0", b"[tools.mcp:x/y]"],
)  # fmt: skip
def test_what_is_no_toml_refuses_the_start_with_a_message(tmp_path: Path, content: bytes) -> None:
    path = settings_path(tmp_path)
    path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(PolicyError, match=r"durable\.toml.*; ") as caught:
        read_settings(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_read_refuses_the_start(tmp_path: Path) -> None:
    settings_path(tmp_path).mkdir()
    with pytest.raises(PolicyError, match="cannot be read"):
        read_settings(settings_path(tmp_path))


@needs.posix_folders
def test_a_link_that_leads_nowhere_is_no_missing_file(tmp_path: Path) -> None:
    settings_path(tmp_path).symlink_to(tmp_path / "gone.toml")
    with pytest.raises(PolicyError, match="leads nowhere"):
        read_settings(settings_path(tmp_path))


def test_a_schema_without_its_library_refuses_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    message = fault('[tools.pay]\noutput = { type = "object" }')
    assert "[tools.pay], output" in message
    assert "pip install 'openworker-durable[schema]'" in message


def test_g10_no_value_that_looks_like_a_secret_is_shown() -> None:
    secret = "ghp_abcdefghij0123456789"
    for lines in (f'policy = "{secret}"', f'policy = "reconcile"\nthen = "{secret}"',
                  f'policy = "idempotent"\nkey_valid = "{secret}"'):  # fmt: skip
        assert secret not in fault(f"[tools.pay]\n{lines}")


# -- for every file
names = st.text(string.ascii_letters + string.digits + "_-.", min_size=1, max_size=20)
tools = names | st.builds("mcp:{}/{}".format, names, names)
attempts = st.integers(2, MAX_ATTEMPTS)
times = st.floats(0.001, MAX_KEY_VALID) | st.integers(1, int(MAX_KEY_VALID)).map(float)
keyed = st.builds(idempotent, key_valid=times, attempts=attempts, repeatable=st.booleans())
policies = st.one_of(
    st.builds(manual, repeatable=st.booleans()),
    keyed,
    st.builds(reconcile, attempts=attempts, repeatable=st.booleans()),
    st.builds(reconcile, then=keyed, repeatable=st.booleans()),
)


def lines_of(policy: RecoveryPolicy) -> dict[str, str]:
    """Return the keys and values with which a person would write a policy."""
    lines = {"policy": f'"{policy.kind.value}"', "attempts": str(policy.attempts)}
    if policy.kind is PolicyKind.RECONCILE:
        lines["then"] = f'"{policy.then.value}"'
    if policy.sends_key:
        lines["key_valid"] = repr(policy.key_valid)
    lines["repeatable"] = json.dumps(policy.repeatable)
    return lines


def file_of(name: str, lines: dict[str, str]) -> str:
    body = "\n".join(f"{key} = {value}" for key, value in lines.items())
    return f"[tools.{json.dumps(name)}]\n{body}\n"


@given(tools, policies)
def test_every_policy_that_is_written_is_read_back(name: str, policy: RecoveryPolicy) -> None:
    assert list(read(file_of(name, lines_of(policy))).policies.values()) == [policy]


VALUES = ('"x"', '"manual"', '"idempotent"', '"reconcile"', "-1", "0", "2", "1.5", "nan", "true",
          "[]", "{}", "1979-05-27", '"1h"')  # fmt: skip


@given(policies, st.sampled_from(("policy", "then", "key_valid", "attempts", "repeatable", "odd")),
       st.sampled_from(VALUES))  # fmt: skip
def test_every_change_of_one_line_is_a_policy_or_says_which_line(
    policy: RecoveryPolicy, key: str, value: str
) -> None:
    lines = {**lines_of(policy), key: value}
    found = tried(file_of("pay", lines).encode())
    if isinstance(found, str):
        assert found.startswith(f"{FILE}, [tools.pay], ")
        assert "; " in found
    else:
        read_back = found.policies["pay"]
        if read_back.kind is PolicyKind.RECONCILE:
            lines.setdefault("then", '"manual"')
        assert {**lines_of(read_back), "key_valid": ""} == {**lines, "key_valid": ""}
        assert read_back.sends_key == ("key_valid" in lines)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_content_ends_in_another_error(content: bytes) -> None:
    found = tried(content)
    assert isinstance(found, Settings) or found.startswith(FILE)


# -- with the tools known
def test_reconcile_without_a_reconciler_refuses_the_start() -> None:
    settings = read('[tools.pay]\npolicy = "reconcile"')
    (found,) = check(settings, lambda _: Declaration())
    assert (found.tool, found.fatal) == ("pay", True)
    assert found.text.startswith(f"{FILE}, [tools.pay], policy: ")
    assert check(settings, lambda _: Declaration(reconciler=LOOK)) == []


def test_a_reconciler_under_a_manual_policy_is_fine() -> None:
    settings = read('[tools.pay]\npolicy = "manual"')
    assert check(settings, lambda _: Declaration(reconciler=LOOK)) == []


@pytest.mark.parametrize(
    ("text", "tool", "hint"),
    [
        ('[tools.pai]\npolicy = "reconcile"', "pai", "correct the name"),
        ('[tools.pai]\noutput = { type = "object" }', "pai", "correct the name"),
        ('[sources.ops]\ntools = ["pai"]', "pai", "correct the name"),
        ('[tools.mcp__g__t]\npolicy = "manual"', "mcp__g__t", 'named "mcp:server/tool"'),
    ],
)
def test_a_tool_nobody_offers_is_a_warning(text: str, tool: str, hint: str) -> None:
    (found,) = check(read(text), lambda _: None)
    assert (found.tool, found.fatal) == (tool, False)
    assert hint in found.text


def test_what_a_declaration_cannot_honour_is_told_with_its_place() -> None:
    def known(key: str) -> Declaration:
        raise PolicyError(f"tool {key}: no")

    text = f"{FILE}, [tools.pay]: tool pay: no"
    assert check(read('[tools.pay]\npolicy="manual"'), known) == [Problem("pay", text, True)]


def test_each_tool_is_asked_for_once() -> None:
    asked: list[str] = []
    text = '[tools.a]\npolicy="manual"\noutput={}\n[sources.s]\ntools=["b","a"]'

    def known(key: str) -> Declaration:
        asked.append(key)
        return Declaration()

    check(read(text), known)
    assert asked == ["a", "b"]
