"""`python -m bench guarantees` finds what a system loses or doubles."""

from __future__ import annotations

import os
import signal
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest

guarantees: Any = import_module("bench.guarantees")
peer: Any = import_module("bench.guarantees.peer")
rounds: Any = import_module("bench.guarantees.rounds")
sql: Any = import_module("bench.guarantees.sql")
MESSAGES = 60
TWO_OUTPUTS_OF_TEN = 20
DIES_AT = 3


class WriteFirst(sql.SQLite):  # type: ignore[misc]
    """SQLite with a client that acknowledges apart from its writes, and dies between the two."""

    is_first_acknowledged: ClassVar[bool] = False
    _count = 0

    def move(self, connection: Any) -> int:
        rows = connection.execute(sql.OLDEST, [peer.BATCH]).fetchall()
        inserts = [sql.INSERT.format(topic) for topic in peer.OUTPUTS]
        writes = [(insert, [(value,) for _, value in rows]) for insert in inserts]
        halves = [writes, [(sql.DELETE, [(row,) for row, _ in rows])]]
        if self.is_first_acknowledged:
            halves.reverse()
        self._count += 1
        for half in halves:
            for statement in half:
                connection.executemany(*statement)
            if self._count == DIES_AT:
                os.kill(os.getpid(), signal.SIGKILL)
        return len(rows)


class AckFirst(WriteFirst):
    """The same, and it acknowledges first."""

    is_first_acknowledged = True


@pytest.mark.parametrize(
    ("faulty", "lost", "doubled"),
    [(AckFirst, TWO_OUTPUTS_OF_TEN, 0), (WriteFirst, 0, TWO_OUTPUTS_OF_TEN)],
)
def test_the_count_finds_a_fault(tmp_path: Path, faulty: Any, lost: int, doubled: int) -> None:
    """Kills: a message whose transaction was torn counts as moved once."""
    with rounds.place(faulty, tmp_path) as system:
        system.produce(MESSAGES, 1)
        client = rounds.Client(system, 1)
        client.process.wait()
        client.kill()
        client = rounds.Client(sql.SQLite(system.folder), 1, patience_s=0.3)
        client.figures()
        client.kill()
        counts = rounds.difference(MESSAGES, system.stored())
    assert counts == {"lost": lost, "doubled": doubled}


@pytest.mark.parametrize("name", ["sqlite", "txlog"])
@pytest.mark.parametrize(("messages", "kills"), [(MESSAGES, 0), (2_000, 3)])
def test_killed_clients_lose_and_double_nothing(
    tmp_path: Path, name: str, messages: int, kills: int
) -> None:
    """Kills: a message that a client held when it was killed is never received again."""
    times = {"every_s": 0.3, "patience_s": 0.3}
    counts = rounds.count(guarantees.system(name), messages, kills=kills, folder=tmp_path, **times)
    assert (counts["lost"], counts["doubled"]) == (0, 0), counts


class Late(sql.SQLite):  # type: ignore[misc]
    """SQLite with a client that finds no message at first."""

    _count = 0

    def move(self, connection: Any) -> int:
        self._count += 1
        return 0 if self._count < DIES_AT else int(super().move(connection))


def test_a_timed_client_waits_for_its_first_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: on a busy machine every thread ends before its first message, and the client hangs."""
    monkeypatch.setattr(rounds, "LONGEST_S", 20)
    with rounds.place(Late, tmp_path) as system:
        system.produce(2_000, 1)
        client = rounds.Client(system, 1, 1e-9, 0.1)
        assert client.figures()["moved"]
        client.kill()


def test_a_service_that_ends_is_an_error_with_the_reason_from_its_log(tmp_path: Path) -> None:
    """Kills: the scenario waits for minutes for a service that has ended."""

    class Broken(sql.SQLite):  # type: ignore[misc]
        def command(self) -> list[str]:
            return ["sh", "-c", "echo 'Error: no memory' >&2; echo bye; exit 3"]

        def connect(self) -> None:
            raise ConnectionRefusedError

    with pytest.raises(RuntimeError, match="ended with code 3: Error: no memory"):
        Broken(tmp_path).start()


def test_a_system_that_is_missing_is_a_line_with_the_reason() -> None:
    """Kills: one missing program ends the comparison of the others."""
    row = {
        "name": "redis",
        "title": "Redis",
        "began": "now",
        "missing": "no program redis-server",
    }
    assert guarantees.table({"redis": row})[4] == "| Redis | not had: no program redis-server |"
