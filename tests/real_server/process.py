"""The server process: its own state folder, started, asked over REST, and killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.waiting import until_blocking

TOKEN = "only-for-this-rig"
_MAIL = Path(__file__).with_name("mail_server.py")
_ALONE = ["-m", "coworker.server.run"]
_WITH = ["-m", "openworker_durable.cli", "run", "--", "openworker-server"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One server with everything it owns below `folder`; the folder outlives each start."""

    def __init__(self, folder: Path, model_url: str, *, alone: bool) -> None:
        self.folder, self.alone, self.port = folder, alone, _free_port()
        self.state, self.work, self.effects = folder / "state", folder / "work", folder / "effects"
        for each in (self.state, self.work, folder / "home"):
            each.mkdir(parents=True, exist_ok=True)
        mail = {"command": sys.executable, "args": [str(_MAIL), str(self.effects)]}
        (self.state / "mcp.json").write_text(json.dumps({"mcpServers": {"mail": mail}}), "utf-8")
        self.process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"x-openworker-token": TOKEN},
            timeout=20,
            trust_env=False,
        )
        self.model_url = model_url

    def start(self, bound: float = 60) -> None:
        """Start it and wait for health, which comes after the start-up sweep.

        Raises:
            RuntimeError: it ended.
            AssertionError: it was not healthy within `bound` seconds.
        """
        self.launch()
        until_blocking(lambda: self._healthy() or self._ended(), "the server's health", bound=bound)
        if self._ended():
            raise RuntimeError("the server did not start")

    def _healthy(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return bool(self.http.get("/v1/health").status_code == 200)
        return False

    def _ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def launch(self) -> None:
        """Start the process without waiting for anything."""
        command = [sys.executable, *(_ALONE if self.alone else _WITH), "--cwd", str(self.work)]
        command += ["--port", str(self.port), "--host", "127.0.0.1", "--model", "openai:scripted"]
        changed = {
            "COWORKER_STATE_DIR": str(self.state),
            "COWORKER_API_TOKEN": TOKEN,
            "COWORKER_SCRATCH_BASE": str(self.folder / "scratch"),
            "HOME": str(self.folder / "home"),
            "OPENAI_API_KEY": "none",
        }
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **changed},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, *, children: bool) -> None:
        """Kill it at once; with `children` its MCP server too, which has its own session."""
        process = self.process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.process = None
        if children:
            self.kill_mail()

    def kill_mail(self) -> None:
        """Kill every MCP server this one has started."""
        pids = Path(f"{self.effects}.pids")
        for pid in pids.read_text().split() if pids.exists() else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        pids.unlink(missing_ok=True)

    def close(self) -> None:
        """End everything this server started."""
        self.kill(children=True)
        self.http.close()

    def configure(self) -> None:
        """Set the model's endpoint as the settings page does."""
        fields = {"api_key": "none", "base_url": self.model_url}
        self.post("/v1/providers", {"name": "openai", "fields": fields})

    def get(self, path: str, **query: str) -> Any:
        """Return the JSON of a GET."""
        answer = self.http.get(path, params=query)
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON of a POST."""
        answer = self.http.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    def resolve(self, item: str, word: str) -> bool:
        """Answer an inbox item by a request of its own, which may last a whole turn."""
        path = f"{self.http.base_url}/v1/inbox/{item}/resolve".replace("//v1", "/v1")
        with httpx.Client(headers=self.http.headers, timeout=60, trust_env=False) as http:
            return bool(http.post(path, json={"resolution": word}).json()["ok"])

    def sent(self) -> list[str]:
        """Return the text of every letter in the effects file."""
        lines = self.effects.read_text("utf-8").splitlines() if self.effects.exists() else []
        return [json.loads(line)["text"] for line in lines]
