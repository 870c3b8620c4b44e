"""Owns the process of `txlog serve`: it serves an open store at its listeners, and closes it.

    open      starts the listeners, and reports their URLs once all listen. HTTP comes last:
              a thread loads its libraries, while clients of Pulsar are served already
    serve     until SIGTERM, SIGINT or `stop`
    reload    SIGHUP: reads rules, keys and certificates again; a file that cannot be read changes
              nothing. Then the server checks every open connection as if it were new
    stop      accepts no new connections, answers the commands that have begun (`drain`), then ends
              the connections and closes the store. A second signal ends the wait for answers
    give up   stop_timeout_ms after the signal the process ends, even if a store call still runs
    killed    loses nothing: every answer is durable, and clients repeat the other commands

A listener is one protocol at one address, and does not know the other listeners.
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
from txlog.serve.auth import AccessControl
from txlog.serve.core.service import BrokerService, Listener, ServerOptions
from txlog.serve.http import listener as http  # runs when it is used
from txlog.serve.limits.limits import fit_limits, raise_descriptor_limit
from txlog.serve.pulsar.listener import PulsarListener

# Parts of stop_timeout_ms: for the answers to commands that have begun, for the end of connections,
# and until the process gives up.
DRAIN_PART, CLOSE_PART, GIVE_UP_PART = 0.6, 0.2, 0.95
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Server:
    """A store and the listeners that offer it, in one event loop."""

    def __init__(
        self, store: Client, options: ServerOptions, authority: AccessControl | None = None
    ) -> None:
        self.service = BrokerService(store, options, authority or AccessControl())
        uuid = store.store.identity.uuid
        trust(place_of(address, uuid) for address in options.places.values())
        self.listeners: list[Listener] = []
        self._ended, self._hurried = asyncio.Event(), asyncio.Event()
        if authority is not None and authority.guard is not None:
            authority.guard.on_change(lambda: self.service.in_loop(self._recheck_access))

    def stop(self) -> None:
        """Begin to stop; a second call ends the wait for running commands."""
        if self._ended.is_set():
            self._hurried.set()
        self._ended.set()

    def reload(self) -> None:
        """Read rules and certificates again; a file that cannot be read changes nothing."""
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
        self._recheck_access()

    def _recheck_access(self) -> None:
        for listener in self.listeners:
            listener.recheck_access()

    async def start(self) -> list[str]:
        """Listen; returns the URL of each listener. Raises NoResources: it cannot listen; Usage."""
        options = self.service.options
        places = []
        try:
            if options.pulsar is not None:
                places.append(await self._begun(PulsarListener(self.service, options.pulsar)))
            if options.http is not None:
                listener_class = await asyncio.to_thread(lambda: http.HttpListener)
                places.append(await self._begun(listener_class(self.service, options.http)))
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
        """Wait for a call of `stop`."""
        await self._ended.wait()

    async def close(self) -> None:
        """Drain and end the connections, both with a time limit; then close the store."""
        seconds = self.service.limits.stop_timeout_ms / 1_000
        waits: list[asyncio.Future[Any]] = [
            asyncio.gather(*(item.drain() for item in self.listeners)),
            asyncio.create_task(self._hurried.wait()),
        ]
        await asyncio.wait(waits, timeout=DRAIN_PART * seconds, return_when=asyncio.FIRST_COMPLETED)
        for item in waits:
            item.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        closing = [asyncio.create_task(item.close()) for item in self.listeners]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_PART * seconds)
        await self.service.close()


def serve(
    store: Client,
    options: ServerOptions,
    on_ready: Callable[[list[str]], None],
    authority: AccessControl | None = None,
    give_up: Callable[[], object] | None = None,
) -> int:
    """Serve a store until a signal comes, then close it; returns the number of the signal.

    on_ready: gets the URLs once all listeners listen
    give_up:  ends the process; a separate thread calls it if the process still runs stop_timeout_ms
              after the signal
    raises:   NoResources; Usage: a socket must not be exposed; the errors of closing a store
    """
    limits = fit_limits(options.limits, raise_descriptor_limit(), options.tell)
    return asyncio.run(_serve(store, options._replace(limits=limits), on_ready, authority, give_up))


def _begin_to_end(seconds: float, give_up: Callable[[], object]) -> None:
    """Make sure that the process ends in time.

    A call of the store runs in a thread, and nothing can stop it. If it holds the interpreter's
    lock as well, no thread can give up, and the kernel's alarm ends the process.
    """
    timer = threading.Timer(GIVE_UP_PART * seconds, give_up)
    timer.daemon = True
    timer.start()
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _crashed(server: Server, context: dict[str, Any]) -> None:
    """Report a task or callback that failed, as asyncio describes it, without its data."""
    error = context.get("exception")
    if isinstance(error, asyncio.CancelledError):  # a connection that the server gave up at the end
        return
    name = type(error).__name__ if error is not None else ""
    server.service.tell("failed", {"class": name, "reason": str(context.get("message"))[:200]})


async def _serve(
    store: Client,
    options: ServerOptions,
    on_ready: Callable[[list[str]], None],
    authority: AccessControl | None,
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

    loop.set_exception_handler(lambda _, context: _crashed(server, context))
    places = await server.start()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    on_ready(places)
    try:
        await server.wait()
    finally:
        await server.close()
    return came[0] if came else 0
