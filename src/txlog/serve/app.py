"""Owns the process: it opens the store by `txlog.aio`, listens, and stops.

    open      the listeners; what they serve is told once all of them listen. HTTP comes last: its
              libraries are loaded beside the loop, while clients of Pulsar are served already
    serve     until SIGTERM, SIGINT or `stop`
    reload    SIGHUP: rules, keys and certificates are read again; those that cannot be read stay.
              Then every open connection is judged as if it came anew
    stop      no new connections; what was begun is answered (`drain`); then the connections end,
              and the store is closed. A second signal ends the wait for answers
    give up   stop_timeout_ms after the signal: the process ends, though a call of the store goes on
    killed    nothing is lost: what was answered is durable, and clients repeat the rest

A listener is one protocol at one address, and does not know the others.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any, Final

from txlog.client.client import Client
from txlog.engine.door.disk import place_of, trust
from txlog.errors import InvalidArgument, NoResources, Usage
from txlog.serve.core import descriptors
from txlog.serve.core.authority import Authority
from txlog.serve.core.service import Listener, Options, Service
from txlog.serve.http import listener as http  # runs when it is used
from txlog.serve.pulsar.listener import PulsarListener

# Parts of stop_timeout_ms: until what was begun is answered, until connections have ended, until
# the process gives up.
DRAIN_PART, CLOSE_PART, GIVE_UP_PART = 0.6, 0.2, 0.95
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Server:
    """A store and the listeners that offer it, in one event loop."""

    def __init__(self, store: Client, options: Options, authority: Authority | None = None) -> None:
        self.service = Service(store, options, authority or Authority())
        uuid = store.store.identity.uuid
        trust(place_of(place, uuid) for place in options.places.values())
        self.listeners: list[Listener] = []
        self._ended, self._hurried = asyncio.Event(), asyncio.Event()
        if authority is not None and authority.guard is not None:
            authority.guard.on_change(lambda: self.service.in_loop(self._judge_again))

    def stop(self) -> None:
        """Begin to stop; a second call ends the wait for what was begun."""
        if self._ended.is_set():
            self._hurried.set()
        self._ended.set()

    def reload(self) -> None:
        """Read rules and certificates again; what cannot be read stays as it was."""
        guard, tls = self.service.authority.guard, self.service.options.tls
        for name, read in (
            ("rules", None if guard is None else guard.reload),
            ("certificate", None if tls is None else tls.reload),
        ):
            try:
                if read is not None:
                    read()
                    self.service.tell("reloaded", {"what": name})
            except InvalidArgument as error:
                self.service.tell("failed", {"what": name, "reason": error.message})
        self._judge_again()

    def _judge_again(self) -> None:
        for listener in self.listeners:
            listener.judge_again()

    async def start(self) -> list[str]:
        """Listen; returns the URL of each listener. Raises NoResources (an address is taken)."""
        options = self.service.options
        places = []
        try:
            if options.pulsar is not None:
                places.append(await self._begun(PulsarListener(self.service, options.pulsar)))
            if options.http is not None:
                made = await asyncio.to_thread(lambda: http.HttpListener)
                places.append(await self._begun(made(self.service, options.http)))
        except OSError as error:
            await self.close()
            raise NoResources(f"cannot listen: {error.strerror or error}") from error
        except (Usage, ImportError):
            await self.close()
            raise
        return places

    async def _begun(self, listener: Listener) -> str:
        self.listeners.append(listener)
        return await listener.start()

    async def wait(self) -> None:
        """Wait until it is told to stop."""
        await self._ended.wait()

    async def close(self) -> None:
        """Drain, end the connections, close the store; nothing of it waits for long."""
        seconds = self.service.limits.stop_timeout_ms / 1_000
        waits: list[asyncio.Future[Any]] = [
            asyncio.gather(*(one.drain() for one in self.listeners)),
            asyncio.create_task(self._hurried.wait()),
        ]
        await asyncio.wait(waits, timeout=DRAIN_PART * seconds, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        closing = [asyncio.create_task(one.close()) for one in self.listeners]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_PART * seconds)
        await self.service.close()


def serve(
    store: Client,
    options: Options,
    told: Callable[[list[str]], None],
    authority: Authority | None = None,
    give_up: Callable[[], object] | None = None,
) -> int:
    """Serve a store until a signal comes; returns its number. The store is closed then.

    told:    gets the URLs once all listeners listen
    give_up: ends the process, in a thread of its own, if it is still there stop_timeout_ms after
             the signal
    raises:  NoResources, what closing a store raises
    """
    limits = descriptors.fitted(options.limits, descriptors.raised(), options.tell)
    return asyncio.run(_serve(store, options._replace(limits=limits), told, authority, give_up))


def _begin_to_end(seconds: float, give_up: Callable[[], object]) -> None:
    """See to it that the process ends in time.

    A call of the store runs in a thread, and nothing can stop it. If it holds the interpreter's
    lock as well, no thread can give up, and the kernel's alarm ends the process.
    """
    timer = threading.Timer(GIVE_UP_PART * seconds, give_up)
    timer.daemon = True
    timer.start()
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _crashed(server: Server, what: dict[str, Any]) -> None:
    """What asyncio says of a task or callback that failed, without the data it failed at."""
    error = what.get("exception")
    if isinstance(error, asyncio.CancelledError):  # a connection that was given up at the end
        return
    name = type(error).__name__ if error is not None else ""
    server.service.tell("failed", {"class": name, "reason": str(what.get("message"))[:200]})


async def _serve(
    store: Client,
    options: Options,
    told: Callable[[list[str]], None],
    authority: Authority | None,
    give_up: Callable[[], object] | None,
) -> int:
    server = Server(store, options, authority)
    loop = asyncio.get_running_loop()
    came: list[int] = []

    def on_signal(number: int) -> None:
        if not came and give_up is not None:
            _begin_to_end(server.service.limits.stop_timeout_ms / 1_000, give_up)
        came.append(number)
        server.stop()

    loop.set_exception_handler(lambda _, what: _crashed(server, what))
    places = await server.start()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    told(places)
    try:
        await server.wait()
    finally:
        await server.close()
    return came[0] if came else 0
