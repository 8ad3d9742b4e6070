"""Server-sent events: that something has changed, and where; whoever looks asks for it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from trainwarden.dashboards.overview.overview import Overview
from trainwarden.records import Record

MOST_LISTENERS: Final = 64
MOST_NEWS: Final = 100  # that wait for one listener; above that it is told to look at everything again
GATHER_S: Final = 0.25
PING_S: Final = 15.0
SLOW_S: Final = 20.0  # a listener that takes no byte for so long is let go
EVERYTHING: Final = {"what": "everything", "job": "", "id": ""}


class News:
    """Changes that one listener has not been sent yet, each once; filled by any thread, taken by one task."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._news: dict[tuple[str, str, str], None] = {}
        self._came = asyncio.Event()
        self.ended = False

    def publish(self, record: Record) -> None:
        """Note `record`; from any thread."""
        what = str(record.__struct_config__.tag)
        named = (what, str(getattr(record, "job", "")), str(getattr(record, "id", "")) if what != "verdict" else "")
        with suppress(RuntimeError):  # the loop has ended, and its listeners with it
            self._loop.call_soon_threadsafe(self._add, named)

    def _add(self, named: tuple[str, str, str]) -> None:
        if len(self._news) > MOST_NEWS:
            named = ("everything", "", "")
            self._news.clear()
        self._news[named] = None
        self._came.set()

    def end(self) -> None:
        """Let the listener go; from any thread."""
        self.ended = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._came.set)

    async def pop_new(self, wait_s: float) -> list[dict[str, str]]:
        """What has changed since the last call; nothing within `wait_s` is an empty list."""
        try:
            async with asyncio.timeout(wait_s):
                await self._came.wait()
        except TimeoutError:
            return []
        await asyncio.sleep(GATHER_S)
        taken = [{"what": what, "job": job, "id": name} for what, job, name in self._news]
        self._news.clear()
        self._came.clear()
        return taken


class Listeners:
    """Who listens now, and no more than there is room for."""

    def __init__(self, overview: Overview, *, ping_s: float = PING_S, slow_s: float = SLOW_S) -> None:
        self._overview = overview
        self._ping_s = ping_s
        self._slow_s = slow_s
        self._open: set[News] = set()

    def close(self) -> None:
        """Let everybody go who listens; from any thread."""
        for news in tuple(self._open):
            news.end()

    def stream(self) -> Response:
        """An answer that goes on for as long as somebody listens; a 503 where there is no room for another."""
        return _Stream(self)

    def join(self) -> News | None:
        """A place for one more, to be served at once; None where there is no room."""
        if len(self._open) >= MOST_LISTENERS:
            return None
        news = News(asyncio.get_running_loop())
        self._open.add(news)
        return news

    async def serve(self, news: News, send: Callable[[bytes], Any]) -> bool:
        """Send what changes until the server ends; False if the listener was too slow before that."""
        leave = self._overview.listen(news.publish)
        try:
            text = b"retry: 3000\n\n"
            while not news.ended:
                async with asyncio.timeout(self._slow_s):
                    await send(text)
                taken = await news.pop_new(self._ping_s)
                text = b"".join(b"data: " + msgspec.json.encode(one) + b"\n\n" for one in taken) or b": ping\n\n"
        except TimeoutError:
            return False
        finally:
            self._open.discard(news)
            leave()
        return True


class _Stream(Response):
    """``text/event-stream`` until the listener goes."""

    media_type = "text/event-stream"

    def __init__(self, listeners: Listeners) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._listeners = listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        news, begun = self._listeners.join(), False
        if news is None:
            await PlainTextResponse("too many are listening already", 503, {"retry-after": "30"})(scope, receive, send)
            return

        async def send_more(body: bytes) -> None:
            nonlocal begun
            if not begun:
                begun = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": body, "more_body": True})

        telling = asyncio.ensure_future(self._listeners.serve(news, send_more))
        going = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((telling, going), return_when=asyncio.FIRST_COMPLETED)
            if not going.done() and telling.result():
                await send({"type": "http.response.body", "body": b""})
        finally:
            for task in (telling, going):
                task.cancel()
            await asyncio.gather(telling, going, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
