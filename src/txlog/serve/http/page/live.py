"""Owns Live: it looks at the store while somebody watches, and tells all who do.

One look serves all viewers. Looks are at least a second apart, and further where one takes long; a
store in which nothing happens is looked at now and then, as ages grow. Nobody watches: no looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextvars import Context
from typing import Any, Final

from txlog.api.client import Client
from txlog.errors import InternalError, TxlogError
from txlog.serve.core.tasks import nothing
from txlog.serve.http.core.answers import dumped, error_of
from txlog.serve.http.core.gate import Serving
from txlog.serve.http.core.rates import Rates
from txlog.serve.http.data.events import event
from txlog.serve.http.page import sections
from txlog.serve.http.page.sections import HISTORY, Pace

PAUSE_SECONDS: Final = 1.0  # between two looks, at least
SHARE: Final = 5  # looks take at most one part in so many of the time
QUIET_MS: Final = 5000  # nothing happens: look all the same
VIEWERS_MAX: Final = 100
Sections = dict[str, str]


class Live:
    """The looks at a store, for all who watch."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._rates = Rates()
        self._paces: list[Pace] = []
        self._shown: Sections = {}
        self._head: dict[str, str] = {}
        self._failure: dict[str, object] | None = None
        self._looks = 0
        self._news = asyncio.Condition()
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether nobody else may watch."""
        return self._viewers >= VIEWERS_MAX

    async def watch(self) -> AsyncGenerator[bytes, None]:
        """Events for a viewer: everything at first, then what has changed."""
        self._viewers += 1
        if self._task is None or self._task.done():
            # It looks for all, so it acts for none of them.
            self._task = self._serving.tasks.begin(self._look_on(), nothing, context=Context())
        sent: Sections = {}
        seen = 0
        try:
            while True:
                async with self._news:
                    await self._news.wait_for(lambda seen=seen: self._looks > seen)  # type: ignore[misc]
                    seen = self._looks
                if self._failure is not None:
                    yield event(dumped(self._failure), name="failure")
                    continue
                new = {name: text for name, text in self._shown.items() if sent.get(name) != text}
                sent = self._shown
                yield event(dumped({"head": self._head, "sections": new}), name="look")
        finally:
            self._viewers -= 1
            if not self._viewers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _look_on(self) -> None:
        client = self._serving.client
        lsn = 0
        while True:
            begun = time.monotonic()
            try:
                if self._looks and self._failure is None:
                    await client.wait_for_change(lsn, QUIET_MS)
                    begun = time.monotonic()
                found = await self._serving.look(_figures)
                lsn = found["lsn"]
                self._take(found)
            except TxlogError as error:
                self._failure = error_of(error)
            except Exception as error:  # a bug must not leave all who watch with an old look
                self._serving.failed(error)
                self._failure = error_of(InternalError(f"a bug: {type(error).__name__}"))
            async with self._news:
                self._looks += 1
                self._news.notify_all()
            took = time.monotonic() - begun
            await asyncio.sleep(max(PAUSE_SECONDS, took * SHARE))

    def _take(self, found: dict[str, Any]) -> None:
        now_ms = found["time"]
        by_topic = {
            row["topic"]: self._rates.of(row["topic"], row["messages"], now_ms)
            for row in found["topic_list"]
        }
        self._rates.forget({*by_topic})
        pace = Pace(now_ms, sum(by_topic.values()), by_topic)
        self._paces = [*self._paces, pace][-HISTORY:]
        self._shown = sections.drawn(found, self._paces)
        self._head = sections.head(found)
        self._failure = None


def _figures(client: Client) -> dict[str, Any]:
    """All that the page shows, as of one moment but for keys and what hangs."""
    hanging = client.admin.find_hanging()
    keys = client.admin.transaction_keys()
    return {**client.overview(), "hanging_list": hanging, "key_list": keys}
