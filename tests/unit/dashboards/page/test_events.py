"""Server-sent events: what changed and where, once each, bounded, and no listener holds anybody up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.page_world import NOW_S, incident, overview_of, proposed
from trainwarden.dashboards.page import events
from trainwarden.dashboards.page.events import Listeners, News


async def served(listeners: Listeners, send: Callable[[bytes], Awaitable[None]], meanwhile: Callable[[], None]) -> None:
    news = listeners.join()
    assert news is not None
    task = asyncio.ensure_future(listeners.serve(news, send))
    await asyncio.sleep(0)
    meanwhile()
    await task


@pytest.mark.thorough
def test_news_of_one_record_is_told_once_and_named() -> None:
    overview, sent = overview_of([]), []
    listeners = Listeners(overview, ping_s=0.25, slow_s=0.01)
    one = incident("i1", "j", NOW_S)

    async def send(body: bytes) -> None:
        sent.append(body)
        if len(sent) == 3:
            await asyncio.Event().wait()  # and is let go for that

    def meanwhile() -> None:
        for record in (one, one, proposed("a1", one, NOW_S)):
            for listener in overview._listeners:
                listener(record)

    asyncio.run(served(listeners, send, meanwhile))
    assert sent[0] == b"retry: 3000\n\n"
    assert sent[1] == (
        b'data: {"what":"incident","job":"j","id":"i1"}\n\ndata: {"what":"action","job":"j","id":"a1"}\n\n'
    )
    assert sent[2] == b": ping\n\n"
    assert (listeners._open, overview._listeners) == (set(), [])


def test_who_has_missed_too_much_is_told_to_look_at_everything() -> None:
    async def flooded() -> list[dict[str, str]]:
        news = News(asyncio.get_running_loop())
        for number in range(events.MOST_NEWS + 2):
            news.publish(incident(f"i{number}", "j", NOW_S))
        return await news.pop_new(1.0)

    assert asyncio.run(flooded()) == [{"what": "everything", "job": "", "id": ""}]


def test_there_is_room_for_so_many_listeners_and_no_more_at_once() -> None:
    listeners, begun = Listeners(overview_of([])), []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        await asyncio.sleep(0)  # others come meanwhile
        if message["type"] == "http.response.start":
            begun.append(message["status"])

    async def run() -> None:
        streams = [listeners.stream() for _ in range(events.MOST_LISTENERS + 3)]
        asked = [asyncio.ensure_future(stream({"type": "http"}, receive, send)) for stream in streams]
        while len(begun) < len(streams):
            await asyncio.sleep(0)
        listeners.close()
        await asyncio.gather(*asked)

    asyncio.run(run())
    assert (begun.count(200), begun.count(503)) == (events.MOST_LISTENERS, 3)
    assert listeners._open == set()


def test_everybody_is_let_go_when_the_server_ends() -> None:
    listeners = Listeners(overview_of([]))

    async def send(_body: bytes) -> None:
        listeners.close()

    asyncio.run(asyncio.wait_for(served(listeners, send, lambda: None), 5.0))


def test_a_loop_that_has_ended_breaks_nothing() -> None:
    loop = asyncio.new_event_loop()
    news = News(loop)
    loop.close()
    news.publish(incident("i", "j", NOW_S))
