"""What each command says of a record, to people and to programs."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import __version__
from openworker_durable.cli_read import COLUMNS
from openworker_durable.cli_words import AUTHORITIES, REASONS, reason_words, state_words
from openworker_durable.owner import Owner, ServerLock
from openworker_durable.states import AuthorityKind, Reason, State
from tests import needs
from tests.cli.records import AT, CANARY, OWNER, every_kind, record, run, run_json, xid


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return every_kind(tmp_path / "state")


def told(output: str) -> str:
    """Return the output with its line breaks and columns taken out."""
    return " ".join(output.split())


def test_list_shows_open_ones_first_newest_first(state: Path) -> None:
    found = run_json("list", "--state", state)
    ids = [e["execution_id"][1:3] for e in found["executions"]]
    assert ids == ["b6", "b5", "b4", "b3", "b2", "b1", "a2", "a1"]
    assert [e["open"] for e in found["executions"]] == [True] * 6 + [False] * 2
    assert found["more"] is False


def test_list_says_the_state_in_plain_words(state: Path) -> None:
    words = {
        e["execution_id"][1:3]: e["state_words"]
        for e in run_json("list", "--state", state)["executions"]
    }
    assert words == {
        "a1": "done",
        "a2": "failed",
        "b1": "cut off; may have happened",
        "b2": "unknown: a person is asked",
        "b3": "cut off; may have happened",
        "b4": "decided: it happened",
        "b5": "done",
        "b6": "unknown: a person is asked",
    }


def test_list_shows_one_line_for_each_execution_with_its_latest_attempt(state: Path) -> None:
    found = run_json("list", "--state", state)["executions"]
    assert {e["execution_id"][1:3]: e["attempt"] for e in found}["b3"] == 2


def test_list_filters(state: Path) -> None:
    def ids(*args: object) -> list[str]:
        found = run_json("list", "--state", state, *args)["executions"]
        return [e["execution_id"][1:3] for e in found]

    assert ids("--open") == ["b6", "b5", "b4", "b3", "b2", "b1"]
    assert ids("--all", "--session", "s2") == ["b2"]
    assert ids("--session", "s") == ids()
    assert ids("--tool", "run_shell") == ["a2"]
    assert ids("--tool", "run_shell", "--open") == []
    assert ids("--tool", "run") == []
    assert ids("--limit", "2") == ["b6", "b5"]
    assert run_json("list", "--state", state, "--limit", "2")["more"] is True
    assert run_json("list", "--state", state, "--limit", "8")["more"] is False


def test_list_for_people_has_both_parts_and_no_line_over_80_columns(tmp_path: Path) -> None:
    state = every_kind(tmp_path / "state")
    with record(state) as r:
        r.dispatch("c1", ref="", tool="mcp__server__" + "long" * 40, session="s-" + "y" * 70)
        r.dispatch("c2", ref="", tool="工具" * 30, session="界" * 40)
    result = run("list", "--state", state)
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    lines = result.stdout.splitlines()
    assert lines.index("Open") < lines.index("Ended")
    for short in ("xa10000000", "xb60000000", "xc10000000"):
        assert short in result.stdout


def test_list_of_nothing_says_so(state: Path) -> None:
    result = run("list", "--state", state, "--tool", "none")
    assert (result.exit_code, result.stdout.strip()) == (0, "No such executions.")


def test_list_says_when_there_are_more(state: Path) -> None:
    assert "--limit 4 shows more" in run("list", "--state", state, "--limit", "2").stdout


def test_running_is_said_only_of_a_living_owner(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    with record(tmp_path) as r:
        r.dispatch("a1", owner=owner.name)
    one = run_json("list", "--state", tmp_path)["executions"][0]
    assert (one["state"], one["state_words"], one["owner_alive"]) == ("dispatched", "running", True)
    owner.close()
    one = run_json("list", "--state", tmp_path)["executions"][0]
    assert (one["state_words"], one["owner_alive"]) == ("cut off; may have happened", False)


def test_a_known_outcome_that_no_thread_carries_is_marked(state: Path) -> None:
    assert "done; not confirmed in thread" in told(run("list", "--state", state).stdout)


def test_show_tells_every_attempt(state: Path) -> None:
    text = told(run("show", "xb3", "--state", state).stdout)
    for part in (
        xid("b3"), "send_email (from host)", "to: a@example.org", "session s1",
        "Attempt 1", "unknown, then run once more", "OpenWorker stopped while the call was running",
        "an approval (item-b3)", "It did not happen: run it once (inbox",
        "Attempt 2", "cut off; may have happened", "a decision (",
    ):  # fmt: skip
        assert part in text
    assert text.index("Attempt 1") < text.index("Attempt 2")


def test_show_tells_of_evidence_that_contradicts_a_decision(state: Path) -> None:
    text = told(run("show", "xb4", "--state", state).stdout)
    assert "note seen in the outbox" in text
    assert "Came later, changed nothing attempt 1" in text
    late = run_json("show", "xb4", "--state", state)["late_evidence"]
    assert [(e["attempt"], e["state"]) for e in late] == [(1, "failed")]


def test_show_does_not_say_that_a_vouched_call_was_started(state: Path) -> None:
    text = told(run("show", "xb6", "--state", state).stdout)
    assert "recorded 20" in text
    assert "started" not in text
    attempt = run_json("show", "xb6", "--state", state)["attempts"][0]
    assert attempt["started_at"] is None
    assert attempt["recorded_at"] == "2025-06-15T15:08:00.250Z"


EXECUTION_KEYS = {
    "execution_id", "session_id", "incarnation", "tool_call_id", "tool", "intent_digest",
    "preview", "occurrence", "linked", "open",
}  # fmt: skip
ATTEMPT_KEYS = {
    "attempt", "state", "state_words", "reason", "reason_words", "detail", "recorded_at",
    "started_at", "ended_at", "authority", "policy", "probes", "probe_at", "found", "owner",
    "owner_alive", "result_digest", "result_lossy", "decision", "superseded", "acknowledged_at",
    "protocol_version",
}  # fmt: skip


def test_json_shapes(state: Path) -> None:
    for one in run_json("list", "--state", state)["executions"]:
        assert set(one) == EXECUTION_KEYS | ATTEMPT_KEYS
    shown = run_json("show", "xb4", "--state", state)
    assert set(shown) == EXECUTION_KEYS | {"attempts", "late_evidence"}
    assert [set(a) for a in shown["attempts"]] == [ATTEMPT_KEYS]
    assert set(shown["tool"]) == {"source", "name", "version", "account", "schema_digest"}
    attempt = shown["attempts"][0]
    assert attempt["authority"] == {"kind": "item", "ref": "item-b4"}
    assert attempt["decision"] == {
        "decision": "happened", "by": "inbox", "at": "2025-06-15T15:06:43.250Z",
        "note": "seen in the outbox",
    }  # fmt: skip
    assert attempt["started_at"] == "2025-06-15T15:07:40.250Z"
    assert set(shown["late_evidence"][0]) == {
        "attempt", "at", "state", "reason", "detail", "result_digest",
    }  # fmt: skip
    assert re.fullmatch(r"[0-9a-f]{64}", shown["late_evidence"][0]["result_digest"])


def test_history_is_in_order(state: Path) -> None:
    found = run_json("history", "xb3", "--state", state)
    assert set(found) == {"execution_id", "events"}
    assert found["execution_id"] == xid("b3")
    told_of = [(e["stage"], e["attempt"], e["recovery_decision"]) for e in found["events"]]
    assert told_of == [
        ("dispatched", 1, None), ("recovery", 1, None), ("decision", 1, "retry"),
        ("dispatched", 2, "retry"),
    ]  # fmt: skip
    assert set(found["events"][0]) == {
        "id", "at", "session_id", "tool", "tool_call_id", "attempt", "stage", "status", "reason",
        "recovery_decision",
    }  # fmt: skip
    assert all(re.fullmatch(r"[\dT:.-]+Z", e["at"]) for e in found["events"])
    text = run("history", "xb3", "--state", state).stdout
    assert text.splitlines()[0] == xid("b3")
    assert "retry; by inbox" in text


def test_history_outlives_the_rows(state: Path) -> None:
    from openworker_durable import Ledger, verbs

    ledger = Ledger(state / "coworker.db")
    assert ledger.run(verbs.expire, AT + 99, AT + 99)[1] == 2
    ledger.close()
    assert run("show", "xa1", "--state", state).exit_code == 8
    assert len(run_json("history", "xa1", "--state", state)["events"]) == 2


@pytest.mark.parametrize("command", ["show", "history"])
def test_ids_by_their_beginning(state: Path, command: str) -> None:
    assert run_json(command, "xb1", "--state", state)["execution_id"] == xid("b1")
    assert run_json(command, xid("b1"), "--state", state)["execution_id"] == xid("b1")
    several = run(command, "xa", "--state", state)
    assert several.exit_code == 9
    assert xid("a1") in several.stderr
    assert xid("a2") in several.stderr
    many = run(command, "x", "--state", state)
    assert many.exit_code == 9
    assert "and more" in many.stderr
    for none in ("y", "", "%", "xb1%", "x" * 99):
        assert run(command, none, "--state", state).exit_code == 8


def test_every_reason_and_authority_has_words() -> None:
    assert set(AUTHORITIES) == {None, *AuthorityKind}
    unknown = {"ambiguous", "owner_died", "evidence_lost", "legacy", "changed", "lost_thread"}
    assert set(REASONS) | unknown == {r.value for r in Reason}
    assert not set(REASONS) & unknown


def test_a_newer_protocols_row_is_named_as_such(tmp_path: Path) -> None:
    import sqlite3

    with record(tmp_path) as r:
        r.dispatch("a1")
    with sqlite3.connect(tmp_path / "coworker.db") as conn:
        conn.execute("UPDATE tool_executions SET protocol_version = 2, state = 'paused'")
    conn.close()
    one = run_json("list", "--state", tmp_path)["executions"][0]
    assert (one["state"], one["state_words"]) == ("paused", "kept by a newer version")
    assert run("show", "xa1", "--state", tmp_path).exit_code == 0
    assert run_json("doctor", "--state", tmp_path)["ledger"]["states"]["paused"] == 1


def test_doctor_on_a_sound_record(state: Path) -> None:
    found = run_json("doctor", "--state", state)
    assert set(found) == {
        "ok", "problems", "package", "python", "sqlite", "ledger", "host", "tools",
    }  # fmt: skip
    assert found["ok"] is True
    assert found["package"]["version"] == __version__
    ledger = found["ledger"]
    assert set(ledger) == {
        "state_dir", "path", "schema_version", "protocol_version", "journal_mode", "synchronous",
        "file_mode", "states", "open", "error", "server_running",
    }  # fmt: skip
    assert (ledger["journal_mode"], ledger["synchronous"]) == ("wal", "full")
    assert ledger["states"] == {"dispatched": 2, "succeeded": 3, "failed": 1, "unknown": 3}
    assert (ledger["open"], ledger["error"], ledger["server_running"]) == (6, None, False)
    text = run("doctor", "--state", state)
    assert text.exit_code == 0
    assert max(len(line) for line in text.stdout.splitlines()) <= 80
    assert "no server process holds the folder" in text.stdout
    assert "Nothing is wrong." in text.stdout


def test_doctor_sees_the_server_process(state: Path) -> None:
    server = ServerLock(state)
    assert server.take()
    assert run_json("doctor", "--state", state)["ledger"]["server_running"] is True
    server.close()
    assert run_json("doctor", "--state", state)["ledger"]["server_running"] is False


def test_doctor_shows_both_sides_of_the_tools(state: Path) -> None:
    from openworker_durable import protection

    tools = {t["what"]: t for t in run_json("doctor", "--state", state)["tools"]}
    named = protection.WRITE_TOOLS | protection.SHELL_TOOLS | protection.LASTING_EFFECTS.keys()
    assert named <= set(tools)
    assert all(tools[name]["protected"] for name in named)
    assert {t["protected"] for t in tools.values()} == {True, False}


def test_doctor_without_openworker_shows_the_reference_hosts_seams(state: Path) -> None:
    needs.need(not sys.modules.get("coworker"), "OpenWorker is importable here")
    host = run_json("doctor", "--state", state)["host"]
    if host["openworker_importable"]:
        assert host["name"] == "OpenWorker"
        return
    assert host["name"] == "the reference host"
    assert host["fits"] is True
    assert "OpenWorker is not importable here" in run("doctor", "--state", state).stdout


def test_doctor_names_seams_that_do_not_fit(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from openworker_durable.hosts.seams import SEAMS, Finding, SeamReport

    broken = SeamReport("OpenWorker", [Finding(SEAMS[0], "not found"), Finding(SEAMS[1])])
    monkeypatch.setattr("openworker_durable.cli_doctor.seams.check", lambda _names: broken)
    result = run("doctor", "--state", state)
    assert result.exit_code == 1
    assert f"Wrong: OpenWorker does not fit, so nothing would be attached: {SEAMS[0].name}" in told(
        result.stdout
    )
    assert run_json("doctor", "--state", state, code=1)["problems"]


def test_doctor_finds_a_host_that_cannot_be_imported(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs.need("coworker" not in sys.modules, "OpenWorker is imported here")
    package = tmp_path / "lib" / "coworker"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('half installed')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    found = run_json("doctor", "--state", state, code=1)
    assert found["host"]["openworker_importable"] is True
    assert found["host"]["fits"] is False


@needs.file_modes
def test_doctor_minds_who_can_read_the_record(state: Path) -> None:
    assert run_json("doctor", "--state", state)["ledger"]["file_mode"] == "0600"
    (state / "coworker.db").chmod(0o644)
    result = run("doctor", "--state", state)
    assert result.exit_code == 1
    assert "chmod 600 it" in told(result.stdout)


def test_demo_hands_its_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[bool, Path | None]] = []

    def run_demo(json_out: bool, keep: Path | None) -> int:
        calls.append((json_out, keep))
        return 1 if json_out else 0

    fake: Any = types.ModuleType("openworker_durable.demo")
    fake.run_demo = run_demo
    monkeypatch.setitem(sys.modules, "openworker_durable.demo", fake)
    monkeypatch.setattr("openworker_durable.demo", fake, raising=False)
    assert run("demo").exit_code == 0
    assert run("demo", "--json", "--keep", tmp_path).exit_code == 1
    assert calls == [(False, None), (True, tmp_path)]


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"openworker-durable {__version__}\n")


def test_a_wrong_command_line_is_2(state: Path) -> None:
    for wrong in (["nothing"], ["list", "--limit", "0"], ["show"], ["list", "--no-such"]):
        assert run(*wrong, *(["--state", state] if wrong[0] != "nothing" else [])).exit_code == 2


@pytest.mark.parametrize(
    "args", [["list"], ["show", "xb3"], ["show", "xb4"], ["history", "xb4"], ["doctor"]]
)
@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_g10_c24_no_command_prints_arguments_or_results(
    state: Path, args: list[str], flag: list[str]
) -> None:
    assert CANARY.encode() in (state / "coworker.db").read_bytes()
    result = run(*args, *flag, "--state", state)
    assert result.exit_code == 0
    assert CANARY not in result.output


def test_g10_c24_results_are_not_even_read() -> None:
    assert not {"snapshot", "display"} & set(COLUMNS.split(", "))


def test_g10_c24_no_error_prints_a_value_of_the_record(tmp_path: Path) -> None:
    import sqlite3

    state = every_kind(tmp_path / "state")
    with sqlite3.connect(state / "coworker.db") as conn:
        conn.execute("PRAGMA ignore_check_constraints = ON")
        conn.execute("UPDATE tool_executions SET state = ?", (CANARY,))
    conn.close()
    for command in (["list"], ["show", "xb3"]):
        result = run(*command, "--state", state)
        assert result.exit_code == 5
        assert CANARY not in result.output


def test_words_need_an_owner_to_say_running(tmp_path: Path) -> None:
    with record(tmp_path) as r:
        r.dispatch("a1", owner=OWNER)
        from openworker_durable import rows

        row = r.ledger.fetch(rows.row(xid("a1"), 1))[0]
    assert [state_words(row, alive) for alive in (True, False, None)] == [
        "running", "cut off; may have happened", "started",
    ]  # fmt: skip
    assert reason_words(row) == "It was started; no outcome is recorded."
    assert row.state is State.DISPATCHED
    assert json.loads(run("show", "xa1", "--json", "--state", tmp_path).stdout)["open"] is True
