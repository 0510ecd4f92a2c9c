"""Installing, once and again, on a host that fits, one that does not, and none."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from openworker_durable import Report, Status, __version__, install, uninstall, verbs
from openworker_durable.cli_doctor import pages
from openworker_durable.hosts import version
from openworker_durable.hosts.attach import attached
from openworker_durable.hosts.gates import WAYS
from openworker_durable.hosts.names import REFERENCE
from openworker_durable.hosts.reference.engine import TurnEngine
from openworker_durable.hosts.reference.manager import SessionManager
from openworker_durable.hosts.reference.providers import ScriptedProvider
from openworker_durable.hosts.reference.tools import ToolRegistry
from openworker_durable.hosts.seams import SEAMS
from openworker_durable.install import NOTHING_BLOCKED, installed, plugin
from openworker_durable.states import PROTOCOL_VERSION, SCHEMA_VERSION

NOWHERE = replace(REFERENCE, host="Nowhere", package="no_such_host")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COWORKER_STATE_DIR", str(tmp_path / "state"))
    yield
    uninstall(names=REFERENCE)


def test_it_attaches_and_says_what_it_found(tmp_path: Path) -> None:
    report = install(names=REFERENCE)
    assert report.status is Status.ATTACHED
    assert report.safe
    assert {f.seam.name for f in report.findings} == {s.name for s in SEAMS}
    assert report.problems == []
    assert (report.package_version, report.protocol_version, report.schema_version) == (
        __version__, PROTOCOL_VERSION, SCHEMA_VERSION,
    )  # fmt: skip
    assert report.ledgers == [tmp_path / "state" / "coworker.db"]
    assert report.journal_mode == ""


def test_once_more_is_the_same_report_and_says_so() -> None:
    first = install(names=REFERENCE)
    wrapped = TurnEngine.run
    assert first.again is False
    assert install(names=REFERENCE) is first
    assert first.again is True
    assert "already attached" in first.line
    assert TurnEngine.run is wrapped


def test_uninstalling_puts_everything_back_and_twice_is_once() -> None:
    before = dict(vars(TurnEngine)), dict(vars(ToolRegistry)), dict(vars(SessionManager))
    report = install(names=REFERENCE)
    assert dict(vars(TurnEngine)) != before[0]
    uninstall(names=REFERENCE)
    uninstall(names=REFERENCE)
    after = dict(vars(TurnEngine)), dict(vars(ToolRegistry)), dict(vars(SessionManager))
    assert after == before
    assert report.status is Status.REMOVED
    assert attached(REFERENCE) is None
    assert installed(REFERENCE) is None


def test_after_uninstalling_it_attaches_afresh() -> None:
    first = install(names=REFERENCE)
    uninstall(names=REFERENCE)
    second = install(names=REFERENCE)
    assert second is not first
    assert (second.status, second.again) == (Status.ATTACHED, False)


def test_an_attachment_that_was_detached_by_hand_is_made_again() -> None:
    first = install(names=REFERENCE)
    assert first.attachment is not None
    first.attachment.detach()
    assert install(names=REFERENCE) is not first
    assert attached(REFERENCE) is not None


def test_the_report_names_the_record_in_use(tmp_path: Path) -> None:
    report = install(names=REFERENCE)
    manager = SessionManager(
        data_dir=tmp_path / "elsewhere", provider=ScriptedProvider([]), tools=[]
    )
    assert report.attachment is not None
    report.attachment.runtimes[0].ledger.run(verbs.open_session, "s1", "nonce")
    assert report.ledgers == [(tmp_path / "elsewhere" / "coworker.db").resolve()]
    assert report.journal_mode == "wal"
    assert report.examine()["ledger"]["path"] == str(report.ledgers[0])
    assert manager.inbox.list() == []


def test_the_report_prints_what_doctor_prints() -> None:
    report = install(names=REFERENCE)
    text = str(report)
    assert "attached in this process" in text
    for seam in SEAMS:
        assert seam.name in text
    assert len(list(pages(report.examine()))) >= 5


def test_a_host_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    report = install(names=NOWHERE)
    assert report.status is Status.ABSENT
    assert not report.safe
    assert NOTHING_BLOCKED in report.line
    assert NOTHING_BLOCKED in caplog.text
    assert installed(NOWHERE) is None
    uninstall(names=NOWHERE)


def _misfit(monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr(TurnEngine, "_record_result", None)
    return install(names=REFERENCE)


def test_a_host_that_does_not_fit_is_left_alone_but_blocked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = dict(vars(SessionManager))
    report = _misfit(monkeypatch)
    assert report.status is Status.BLOCKED
    assert report.problems == ["engine._record_result: not found"]
    assert report.blocked == [f"{ToolRegistry.__module__}:ToolRegistry.execute"]
    assert report.safe
    assert attached(REFERENCE) is None
    after = vars(SessionManager)
    blocked = {name for name in after if after[name] is not before.get(name)}
    assert blocked == {way.effect for way in WAYS.values() if way.refused is not None}
    assert blocked == {"create_team", "board_create_items", "promote_workspace"}
    assert [r.levelno for r in caplog.records] == [logging.ERROR]
    assert "engine._record_result: not found" in caplog.text


def test_a_blocked_host_prints_so(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(str(_misfit(monkeypatch)).split())
    assert "NOT attached" in text
    assert "not found" in text
    assert "Its protected tools are blocked" in text
    assert "Nothing is wrong" not in text


def test_blocked_twice_is_once_and_uninstalling_unblocks(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = ToolRegistry.execute
    report = _misfit(monkeypatch)
    blocked = ToolRegistry.execute
    assert blocked is not alone
    assert install(names=REFERENCE) is report
    assert ToolRegistry.execute is blocked
    uninstall(names=REFERENCE)
    assert ToolRegistry.execute is alone


def test_when_nothing_can_be_blocked_it_says_so_in_capitals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(ToolRegistry, "execute")
    report = install(names=REFERENCE)
    assert report.status is Status.BLOCKED
    assert report.blocked == []
    assert not report.safe
    assert NOTHING_BLOCKED in report.line
    assert NOTHING_BLOCKED in " ".join(str(report).split())


def test_the_entry_point_takes_whatever_a_host_hands_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Report(Status.ABSENT, NOWHERE)
    monkeypatch.setattr(sys.modules["openworker_durable.install"], "install", lambda: made)
    assert plugin(object(), name="durable") is made


# -- which version of the host
def _checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "some_host_pkg").mkdir(parents=True)
    (folder / "some_host_pkg" / "__init__.py").write_text("")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    monkeypatch.syspath_prepend(folder)
    return folder / ".git"


def test_the_commit_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = _checkout(tmp_path / "a", monkeypatch)
    (git / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/main\n^{'1' * 40}\n")
    assert version.commit_of("some_host_pkg") == COMMIT
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text("f" * 40 + "\n")
    assert version.commit_of("some_host_pkg") == "f" * 40
    (git / "HEAD").write_text("e" * 40 + "\n")
    assert version.commit_of("some_host_pkg") == "e" * 40


def test_the_commit_of_a_worktree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = _checkout(tmp_path / "tree", monkeypatch)
    real = tmp_path / "main.git" / "worktrees" / "tree"
    real.mkdir(parents=True)
    (real / "HEAD").write_text("ref: refs/heads/side\n")
    (real / "commondir").write_text("../..\n")
    (tmp_path / "main.git" / "packed-refs").write_text(f"{COMMIT} refs/heads/side\n")
    (git / "HEAD").unlink()
    git.rmdir()
    git.write_text(f"gitdir: {real}\n")
    assert version.commit_of("some_host_pkg") == COMMIT


def test_the_commit_that_the_installer_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "some_host_pkg-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some_host_pkg\nVersion: 1.2\n")
    told = {"url": "https://h/x.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}
    (info / "direct_url.json").write_text(json.dumps(told))
    monkeypatch.syspath_prepend(tmp_path)
    assert version.version_of("some_host_pkg") == "1.2"
    assert version.commit_of("some_host_pkg") == COMMIT


def test_no_version_and_no_commit_where_nothing_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = _checkout(tmp_path, monkeypatch)
    (git / "HEAD").write_text("ref: refs/heads/gone\n")
    assert (version.version_of("some_host_pkg"), version.commit_of("some_host_pkg")) == ("", "")
    assert version.commit_of("no_such_host") == ""
