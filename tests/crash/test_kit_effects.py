"""The crash kit's outside world: it counts what was done, and can be told how to behave."""

from __future__ import annotations

import threading
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from openworker_durable.testing import Behaviour, EffectService, post


@pytest.fixture
def service() -> Iterator[EffectService]:
    with EffectService() as service:
        yield service


def send(service: EffectService, key: str, **more: Any) -> dict[str, Any]:
    return post(f"{service.url}/send", {"key": key, **more})


def test_counts_each_effect_by_key_in_order(service: EffectService) -> None:
    assert send(service, "a") == {"ok": True, "key": "a"}
    send(service, "b", execution_id="x1", attempt=2)
    send(service, "a")
    assert (service.count("a"), service.count("b"), service.total()) == (2, 1, 3)
    assert [e.key for e in service.effects()] == ["a", "b", "a"]
    assert (service.effects()[1].execution_id, service.effects()[1].attempt) == ("x1", 2)


def test_reads_are_no_effects(service: EffectService) -> None:
    post(f"{service.url}/read", {"key": "a", "world": "w"})
    assert (service.total(), service.reads()) == (0, 1)
    assert (service.reads("a"), service.reads("b"), service.reads("a", "v")) == (1, 0, 0)


def test_worlds_do_not_mix_and_a_copy_begins_with_the_effects_of_the_first(
    service: EffectService,
) -> None:
    send(service, "a", world="one")
    service.adopt("one", "two")
    send(service, "a", world="two")
    assert (service.count("a", "one"), service.count("a", "two")) == (1, 2)


def test_a_dropped_reply_comes_after_the_effect(service: EffectService) -> None:
    service.behave("a", Behaviour(drop_reply=True))
    with pytest.raises(OSError, match="without response"):
        send(service, "a")
    with pytest.raises(OSError, match="without response"):
        send(service, "b", drop=True)
    assert (service.count("a"), service.count("b")) == (1, 1)


@pytest.mark.parametrize(("effect", "times"), [(True, 1), (False, 0)])
def test_a_status_says_nothing_about_the_effect(
    service: EffectService, effect: bool, times: int
) -> None:
    service.behave("a", Behaviour(effect=effect, status=500))
    with pytest.raises(urllib.error.HTTPError, match="500") as raised:
        send(service, "a")
    raised.value.close()
    assert service.count("a") == times


@pytest.mark.parametrize(("after", "times"), [(False, 0), (True, 1)])
def test_a_held_request_waits_before_or_after_its_effect(
    service: EffectService, after: bool, times: int
) -> None:
    hold = service.hold("a", after=after)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(send, service, "a")
        assert hold.arrived.wait(10)
        assert (service.count("a"), asked.done()) == (times, False)
        hold.release()
        assert asked.result(10)["ok"]
    assert service.count("a") == 1


def test_a_delay_is_before_or_after_the_effect() -> None:
    waited: list[tuple[float, int]] = []
    behaviour = Behaviour(delay_before=0.1, delay_after=0.2)
    with EffectService(behaviour, sleep=lambda s: waited.append((s, mail.total()))) as mail:
        send(mail, "a")
    assert waited == [(0.1, 0), (0.2, 1)]


def test_many_at_once_are_all_counted(service: EffectService) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: send(service, f"k{n % 5}"), range(40)))
    assert [service.count(f"k{n}") for n in range(5)] == [8] * 5


def test_stopping_lets_held_requests_go() -> None:
    with EffectService() as service:
        hold = service.hold("a", after=True)
        asked = threading.Thread(target=send, args=(service, "a"))
        asked.start()
        assert hold.arrived.wait(10)
    asked.join(10)
    assert not asked.is_alive()
