"""Owns the process of the server: the real code of `txlog serve` on a simulated network."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.agent import Agent
from tests.simulation.loop import run_in_loop
from tests.simulation.machine import SharedDisk
from tests.simulation.network import ListeningSocket
from txlog.client.open import open_on
from txlog.clock import SystemClock
from txlog.errors import TxlogError
from txlog.serve.app import Server
from txlog.serve.core.service import ServerOptions
from txlog.serve.core.sockets import Address
from txlog.serve.pulsar.connection import Connection

PORT = 6650
LOOK_S = 0.5  # how often it looks whether somebody may still need it


def _hash_of(connection: Connection) -> int:
    return hash(connection.peer)


_connection_class: Any = Connection
_connection_class.__hash__ = _hash_of  # sets of them have one order


class ServerAgent(Agent):
    """One life of a server: it serves until no other process has anything left to do."""

    def live(self) -> None:
        """Serve until it is not needed any more."""
        run_in_loop(self.process, self._main)

    async def _main(self) -> None:
        store = await self._opened()
        listening = ListeningSocket(self.process, (self.plan.name, PORT))
        options = ServerOptions(
            Address("127.0.0.1", PORT),
            creates_topics=False,
            sockets={"pulsar": [listening]},  # type: ignore[list-item]
            tell=self._tell,
        )
        server = Server(store, options)
        await server.start()
        while self._is_needed():
            await asyncio.sleep(LOOK_S)
        await server.close()

    async def _opened(self) -> Any:
        while True:
            try:
                return open_on(SharedDisk(self.process), SystemClock())
            except TxlogError:
                await asyncio.sleep(0.1)

    def _is_needed(self) -> bool:
        tasks = self.process.world.scheduler.tasks
        return any(
            getattr(task.process, "kind", "") != "server"
            for task in tasks
            if task.process is not self.process
        )

    def _tell(self, event: str, facts: Any) -> None:
        """It may have given messages back: for the history as if a server had died."""
        if event in ("failed", "dropped") and self.process.is_alive:
            self.recorder.event("kill", reason=str(facts))
