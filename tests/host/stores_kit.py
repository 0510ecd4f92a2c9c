"""The stores of both hosts, the reference and the real one, behind one face for their tests."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.hosts.names import HostNames
from openworker_durable.hosts.openworker import OPENWORKER

SESSION = "s"


class Stores:
    """One host's session manager and stores over a folder, with the plugin attached."""

    def __init__(self, names: HostNames, folder: Path) -> None:
        self.names, self.folder = names, folder
        self.project = folder.with_name("project")
        self.project.mkdir(exist_ok=True)
        self.manager = self._real() if names is OPENWORKER else self._reference()
        self.db = Path(self.manager.session_store.db_path)

    def _reference(self) -> Any:
        from openworker_durable.hosts.reference.manager import SessionManager
        from openworker_durable.hosts.reference.providers import AssistantTurn, ScriptedProvider

        said = [AssistantTurn(text="well")]
        return SessionManager(data_dir=self.folder, provider=ScriptedProvider.by_progress(said))

    def _real(self) -> Any:
        from coworker.server.manager import SessionManager

        from tests.bench.host_child import scripted

        provider = scripted(0, each=0)
        return SessionManager(workspace=self.project, data_dir=self.folder, provider=provider)

    @property
    def runtime(self) -> Any:
        return self.manager._durable_runtime

    def open_ledger(self) -> None:
        """Make the tables and set the file's mode, as the first write of the ledger does."""
        from openworker_durable import verbs

        self.runtime.ledger.run(verbs.open_session, "other", "fresh")

    def inbox(self) -> Any:
        """Return another inbox store over the same file, as the next start makes it."""
        return self.names.load("inbox")(self.folder / "inbox.json")

    def record(self, *texts: str, **more: Any) -> Any:
        module = self.names.load("conversations").__module__.rpartition(".")[0]
        make = importlib.import_module(f"{module}.sessions").SessionRecord
        messages = [{"role": "user", "content": text} for text in texts]
        return make(SESSION, str(self.project), "m", "interactive", messages=messages, **more)

    def save(self, *texts: str, **more: Any) -> None:
        self.manager.session_store.save(self.record(*texts, **more))

    @property
    def thread(self) -> Path:
        path: Path = self.manager.session_store._file(SESSION)
        return path

    def texts(self) -> list[str]:
        lines = self.thread.read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["content"] for line in lines]

    def index(self) -> int | None:
        """Return how many messages the host's index names, None without a row."""
        found = {r.session_id: r.message_count for r in self.manager.session_store.list()}
        return found.get(SESSION)


def asides(folder: Path) -> list[Path]:
    """Return the files with bytes kept aside."""
    return sorted(folder.glob("*.unreadable-*"))


@pytest.fixture
def stores(host: HostNames, tmp_path: Path) -> Stores:
    """Return the stores of each host, with the plugin attached."""
    return Stores(host, tmp_path / "state")
