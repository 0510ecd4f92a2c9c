"""C04 with the host's own HTTP code for connectors, which returns every error as a text."""

from __future__ import annotations

from typing import Any

import pytest

from openworker_durable.testing import EffectService
from openworker_durable.testing.effects import SEND, Behaviour
from tests.real.nursery import Real

pytestmark = pytest.mark.crash


async def _turn(life: Any, url: str) -> Any:
    from coworker.connectors.integration_tools import _request

    from tests.real.script import call, reply

    life.open(reply(call("send", "call_0", to="a")))
    answers: list[Any] = []

    def post(name: str, to: str) -> Any:
        answers.append(_request("POST", url, json={"key": "k"}))
        return answers[-1]

    life.result = post
    await life.attended_and_allowed("go")
    (answer,) = [m for m in life.messages() if m.get("tool_call_id") == "call_0"]
    return {"answers": answers, "told": answer["content"], "items": len(life.items())}


@pytest.mark.parametrize(
    ("how", "unknown", "done"),
    [
        (Behaviour(), False, 1),
        (Behaviour(drop_reply=True), True, 1),
        (Behaviour(status=409, effect=False), False, 0),
        (None, False, 0),
    ],
    ids=["accepted", "dropped", "refused", "nobody there"],
)
def test_c04_a_connectors_swallowed_error_is_no_answer(
    real: Real, how: Behaviour | None, unknown: bool, done: int
) -> None:
    with EffectService(how) as service:
        url = service.url + SEND if how else "http://127.0.0.1:9/"
        seen = real.run(_turn, url=url)
        assert service.count("k") == done
    assert len(seen["answers"]) == 1
    assert ("error" in seen["answers"][0]) is (how is None or unknown or how.status != 200)
    assert (seen["items"], "may have happened" in seen["told"]) == (int(unknown), unknown)
