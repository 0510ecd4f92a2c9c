"""A scripted OpenAI-compatible model on loopback, as strict about tool calls as real ones.

What it replies depends on the messages alone, never on a counter, so restarts do no harm.
"""

from __future__ import annotations

import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Message = dict[str, Any]
_SHELL = re.compile(r"please append ([\w-]+) to (\S+?)\.(?=[\s\"\\])")
_ORDER = re.compile(r"please send (\d+) letters named ([\w-]+)")


def fault_of(messages: list[Message]) -> str:
    """Return why a real endpoint would refuse these messages; empty when it would not."""
    seen: set[str] = set()
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                return f"tool message without a call: {message.get('tool_call_id')}"
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            return f"calls without a result: {waiting}"
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        if len(set(waiting)) < len(waiting) or seen & set(waiting):
            return f"call ids used twice: {waiting}"
        seen |= set(waiting)
    return f"calls without a result: {waiting}" if waiting else ""


def next_reply(messages: list[Message]) -> Message:
    """Return the assistant message that follows: the ordered calls once, then plain text."""
    for message in reversed(messages):
        if message["role"] == "assistant":
            break
        said = json.dumps(message.get("content"))
        order, shell = _ORDER.search(said), _SHELL.search(said)
        if message["role"] == "user" and shell:
            return {"role": "assistant", "content": None, "tool_calls": [_append(*shell.groups())]}
        if message["role"] == "user" and order:
            calls = [_call(order[2], i) for i in range(int(order[1]))]
            return {"role": "assistant", "content": None, "tool_calls": calls}
    return {"role": "assistant", "content": "All right."}


def _call(name: str, index: int) -> dict[str, Any]:
    said = json.dumps({"to": "ann", "text": f"{name}.{index}"})
    function = {"name": "mcp__mail__send", "arguments": said}
    return {"id": f"c_{name}_{index}", "type": "function", "function": function}


def _append(name: str, path: str) -> dict[str, Any]:
    line = json.dumps({"to": "ann", "text": f"{name}.0"})
    said = json.dumps({"command": f"sleep 0.1; echo '{line}' >> {path}; sleep 0.1"})
    function = {"name": "run_shell", "arguments": said}
    return {"id": f"c_{name}_0", "type": "function", "function": function}


class Model(ThreadingHTTPServer):
    """The endpoint; `refused` holds the reason of every request answered with HTTP 400."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refused: list[str] = []
        self.asked = 0
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The base address to configure."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Model

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked += 1
        fault = fault_of(body["messages"])
        if fault:
            self.server.refused.append(fault)
            self._send(400, "application/json", json.dumps({"error": {"message": fault}}))
            return
        # A request without tools only wants a title.
        reply = next_reply(body["messages"]) if body.get("tools") else {"content": "Letters"}
        reply = {"role": "assistant", **reply}
        if body.get("stream"):
            self._send(200, "text/event-stream", _streamed(reply))
        else:
            self._send(200, "application/json", json.dumps(_whole(reply)))

    def _send(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # the server was killed while it asked


def _end(reply: Message) -> str:
    return "tool_calls" if reply.get("tool_calls") else "stop"


def _whole(reply: Message) -> dict[str, Any]:
    choice = {"index": 0, "message": reply, "finish_reason": _end(reply)}
    return {"id": "r", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def _streamed(reply: Message) -> str:
    delta = dict(reply)
    if reply.get("tool_calls"):
        delta["tool_calls"] = [{"index": i, **c} for i, c in enumerate(reply["tool_calls"])]
    head = {"id": "r", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    parts = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _end(reply)}]},
    ]
    return "".join(f"data: {json.dumps(part)}\n\n" for part in parts) + "data: [DONE]\n\n"
