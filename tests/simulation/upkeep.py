"""Owns the operations of upkeep: checkpoints, garbage, offloading, and a table of newest values.

The table is a topic that is compacted by key and keeps nothing else. Each process has keys of its
own there, so it knows which values they may have.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.simulation.bucket import BUCKET
from tests.simulation.machine import Interrupted
from txlog import Client
from txlog.errors import OutcomeUnknown, Refused, TopicNotFound, TxlogError

if TYPE_CHECKING:
    from tests.simulation.machine import SimulatedProcess
    from tests.simulation.memory import Memory

TABLE = "table"
TABLE_PARTITIONS = 2
FIRST_KEY = "first"
AWAY = "-away"  # of a topic that has another name for a while


class WrongTable(Exception):
    """A key of the table has a value that no process put there last."""


class RefusedCheckpoint(Exception):
    """A checkpoint was refused, as if a user had asked for something."""


def make_table(client: Client) -> None:
    """Create the table; it has been compacted, so trimming must leave newer messages.

    The policy comes last: an automatic checkpoint may trim a topic that was never compacted.
    """
    client.create_topic(TABLE, partitions=TABLE_PARTITIONS)
    client.producer(TABLE).send("nothing", key=FIRST_KEY)
    client.admin.compact_topic(TABLE)
    client.admin.set_retention_policies(TABLE, retention_ms=1)


def check_table(client: Client, memory: Memory) -> None:
    """Raise WrongTable unless each key of a process has its newest value, or one with no answer."""
    with client.table_view(TABLE) as table:
        for key, allowed in sorted(memory.table.items()):
            data = table.get(key.encode())
            value = None if data is None else data.decode()
            if value not in allowed:
                raise WrongTable(f"{key} has {value} in the table, and not one of {allowed}")


def come_back(client: Client, topic: str) -> None:
    """Give a topic its own name again, if it has the other one."""
    with suppress(TopicNotFound):
        client.admin.rename_topic(f"{topic}{AWAY}", topic)


class Upkeep:
    """Operations of an agent."""

    client: Client
    memory: Memory
    process: SimulatedProcess

    def _value(self) -> str:
        raise NotImplementedError

    def checkpoint(self, op: dict[str, Any]) -> None:
        """Write a checkpoint; it trims what the policies allow, so none is refused."""
        try:
            self.client.checkpoint(roll_all=op["roll_all"])
        except Refused as error:
            raise RefusedCheckpoint(str(error)) from error

    def compact(self, op: dict[str, Any]) -> None:
        self.client.admin.compact(op["topic"])

    def rename_topic(self, op: dict[str, Any]) -> None:
        """Give a topic another name for a while; first its own, if a process died meanwhile."""
        name = op["topic"]
        come_back(self.client, name)
        self.client.admin.rename_topic(name, f"{name}{AWAY}")
        self.process.world.scheduler.sleep(op["seconds"])
        come_back(self.client, name)

    def compact_topic(self, op: dict[str, Any]) -> None:
        self.client.admin.compact_topic(op["topic"])

    def merge(self, op: dict[str, Any]) -> None:
        self.client.topic(op["topic"]).merge()

    def expire(self, op: dict[str, Any]) -> None:
        self.client.expire()

    def trim_by_policy(self, op: dict[str, Any]) -> None:
        self.client.admin.trim(op["topic"], by_policy=True)

    def gc(self, op: dict[str, Any]) -> None:
        self.client.admin.gc(apply=True, keep_ms=op["keep_ms"])

    def offload(self, op: dict[str, Any]) -> None:
        self.client.admin.offload(op["topic"], BUCKET)

    def put(self, op: dict[str, Any]) -> None:
        """Give a key of this process a new value."""
        key, value = f"{self.process.name}-{op['number']}", self._value()
        allowed = self.memory.table.setdefault(key, [None])
        allowed.append(value)
        try:
            self.client.producer(TABLE).send(value, key=key)
        except (OutcomeUnknown, Interrupted):
            raise
        except TxlogError:
            allowed.remove(value)
            raise
        allowed[:] = [value]
        self.process.world.answered(self.process, "put")

    def compact_table(self, op: dict[str, Any]) -> None:
        self.client.admin.compact_topic(TABLE)

    def trim_table(self, op: dict[str, Any]) -> None:
        self.client.admin.trim(TABLE, by_policy=True)

    def look_up(self, op: dict[str, Any]) -> None:
        check_table(self.client, self.memory)
