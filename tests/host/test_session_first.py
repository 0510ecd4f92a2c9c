"""One call, killed at each of the six places, with a prompt and with a session grant."""

from __future__ import annotations

import pytest

from tests.host.harness import SESSION, Lab, call, reply

PLACES = {
    "before the dispatch": ("commit.before:dispatch", 0, 1),
    "inside, before the effect": ("effect.before", 0, None),
    "inside, after the effect": ("effect.after", 1, None),
    "returned": ("commit.after:finish", 1, 1),
    "in the thread": ("message.appended", 1, 1),
    "saved": ("thread.after", 1, 1),
}


@pytest.mark.parametrize("granted", [False, True], ids=["prompt", "grant"])
@pytest.mark.parametrize("where", PLACES)
async def test_killed_at_each_place(lab: Lab, where: str, granted: bool) -> None:
    place, before, after = PLACES[where]
    world = lab.world(reply(call("send", "k1", what="a")))
    if granted:
        world.manager.get_engine(SESSION).permissions.allow_tool_for_session("send")
    copies = lab.copies_at(world, place)
    await world.say("go", *([] if granted else ["send"]))
    lab.hook = None
    assert lab.outside.count("send") == 1
    lab.outside.effects[:] = lab.outside.effects[:before]
    again = world.reopen(copies[-1])
    await again.restart()
    if again.rows() == [] and not granted:
        await again.allow("send")
        await again.quiet()
    elif again.rows() == []:
        await again.resume()
    if after is None:
        assert again.states() == ["unknown"]
        assert lab.outside.count("send") == before
        assert "may have happened" in again.answer("k1")
        assert len(again.items()) == 1
        assert await again.decide("send", "happened")
        assert lab.outside.count("send") == before
        assert len(again.follow_ups()) == 1
    else:
        assert lab.outside.count("send") == after
        await again.resume()
        assert again.states() == ["succeeded"]
        assert lab.outside.count("send") == after
        assert again.answer("k1") == world.answer("k1")
    again.valid()
    assert again.messages()[-1]["content"] == "done"
