"""Clients that give recorded-style answers of three services to the host's own provider code.

Each checks what goes over the wire as its service does, and gives the reply that is due by
the number of calls it has seen in the request.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from types import SimpleNamespace as Ns
from typing import Any

Calls = Sequence[tuple[str, str]]
"""The calls of one reply: tool and target."""


class Recorded:
    """What the three have in common.

    Args:
        replies: the calls of each reply, in order; then plain text.
        ids: the call id of each call, over all replies, where the service gives one.
    """

    def __init__(self, replies: Sequence[Calls], ids: Sequence[str] = ()) -> None:
        self.replies, self.ids = list(replies), list(ids)
        self.requests: list[Any] = []
        starts = itertools.accumulate((len(r) for r in self.replies), initial=0)
        self.starts = list(starts)

    def due(self, calls_seen: int) -> list[tuple[str, str, str]]:
        """Return tool, target and id of each call of the reply that is due."""
        if calls_seen not in self.starts[:-1]:
            return []
        reply = self.replies[self.starts.index(calls_seen)]
        ids = self.ids or [""] * self.starts[-1]
        return [(n, to, ids[calls_seen + k]) for k, (n, to) in enumerate(reply)]


def _chunk(*parts: Any, finish: str = "STOP") -> Any:
    candidate = Ns(content=Ns(parts=list(parts)), finish_reason=finish)
    return Ns(candidates=[candidate], usage_metadata=None)


class GeminiClient(Recorded):
    """`google.genai.Client` as far as the host uses it; calls have no ids on this wire."""

    @property
    def models(self) -> Any:
        """Return the part of the client that makes requests."""
        return Ns(generate_content_stream=self._stream, generate_content=self._whole)

    def _whole(self, **request: Any) -> Any:
        return next(iter(self._stream(**request)))

    def _stream(self, *, contents: Any, config: Any, **_: Any) -> Iterator[Any]:
        if "tools" not in config:
            return iter([_chunk(Ns(text="a title", thought=False))])
        self.requests.append(contents)
        seen = self._check(contents)
        parts = [
            Ns(
                function_call=Ns(name=name, args={"to": to}), text=None, thought=False,
                thought_signature=f"sign {to}".encode(),
            )
            for name, to, _ in self.due(seen)
        ]  # fmt: skip
        return iter([_chunk(*(parts or [Ns(text="done", thought=False)]))])

    def _check(self, contents: Any) -> int:
        """Each turn with calls is followed by as many results, by name."""
        seen = 0
        for turn, after in itertools.zip_longest(contents, contents[1:]):
            made = [p["function_call"]["name"] for p in turn["parts"] if "function_call" in p]
            seen += len(made)
            results = [
                p["function_response"]["name"]
                for p in (after or {"parts": []})["parts"] if "function_response" in p
            ]  # fmt: skip
            # The host answers a denied call before it runs the others; names pair them here.
            if turn["role"] == "model" and sorted(made) != sorted(results):
                raise ValueError(f"400: calls {made} are followed by results {results}")
        return seen


class ChatClient(Recorded):
    """`openai.OpenAI().chat` of a server whose model writes its calls as text."""

    @property
    def chat(self) -> Any:
        """Return the part of the client that makes requests."""
        return Ns(completions=Ns(create=self._create))

    def _create(self, *, messages: Any, tools: Any = None, stream: bool = False, **_: Any) -> Any:
        from tests.real.script import pairing

        if not tools:
            text = "a title"
        else:
            self.requests.append(messages)
            faults = pairing(messages)
            if faults:
                raise ValueError(f"400: {faults}")
            due = self.due(sum(len(m.get("tool_calls") or []) for m in messages))
            calls = [json.dumps({"name": n, "arguments": {"to": to}}) for n, to, _ in due]
            text = "".join(f"<tool_call>{c}</tool_call>" for c in calls) or "done"
        body = Ns(content=text, tool_calls=None)
        choice = Ns(delta=body, message=body, finish_reason="stop")
        return iter([Ns(choices=[choice], usage=None)]) if stream else Ns(choices=[choice])


class ResponsesClient(Recorded):
    """`openai.OpenAI().responses`, whose calls and results are items paired by `call_id`."""

    @property
    def responses(self) -> Any:
        """Return the part of the client that makes requests."""
        return Ns(create=self._create)

    def _create(self, *, input: Any, tools: Any = None, stream: bool = False, **_: Any) -> Any:
        if not tools:
            output = [_said("a title")]
        else:
            self.requests.append(input)
            due = self.due(self._check(input))
            thought = {"type": "reasoning", "id": "rs", "encrypted_content": "x", "summary": []}
            calls = [
                {
                    "type": "function_call", "id": call_id and f"fc_{to}", "call_id": call_id,
                    "name": name, "arguments": json.dumps({"to": to}),
                }
                for name, to, call_id in due
            ]  # fmt: skip
            output = [thought, *calls] if calls else [_said("done")]
        response = Ns(output=output, incomplete_details=None)
        return iter([Ns(type="response.completed", response=response)]) if stream else response

    def _check(self, items: Any) -> int:
        """Each call has one output, by its id, before the next user line."""
        waiting: list[str] = []
        made = []
        for item in items:
            if item.get("type") == "function_call":
                made.append(item["call_id"])
                waiting.append(item["call_id"])
            elif item.get("type") == "function_call_output":
                waiting.remove(item["call_id"])
            elif waiting and item.get("type") != "reasoning":
                raise ValueError(f"400: no output for {waiting}")
        if waiting or len(set(made)) != len(made) or not all(made):
            raise ValueError(f"400: calls {made}, without output {waiting}")
        return len(made)


def _said(text: str) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text}]}
