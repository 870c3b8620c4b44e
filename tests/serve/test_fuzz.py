"""Malformed input does not hurt a server, nor the data of its other clients. See fuzz.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve import fuzz
from tests.serve.siege import Served, serving
from txlog.serve.limits.limits import Limits
from txlog.serve.pulsar.connection import TURN

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.deep]
ROUNDS = 25
WORK_MAX = 10 * TURN  # of one turn of the loop: some 50 ms
SEED = 7


def test_server_survives_any_input_and_serves_its_other_clients(tmp_path: Path) -> None:
    """Kills: input that ends the server, hangs, leaks memory, or causes an internal error."""

    async def program(served: Served) -> None:
        rows = await fuzz.besieged(served, SEED, ROUNDS, witness_each=ROUNDS)
        assert [row for row in rows if "hung" in row[3]] == []
        assert [facts for event, facts in served.told if event == "failed"] == []
        assert served.service.connection_limit.count == 1  # the honest client

    limits = Limits(connect_timeout_ms=2_000, frame_timeout_ms=2_000)
    with fuzz.Longest() as longest:
        serving(tmp_path, program, limits=limits, seconds=300)
    assert longest.work <= WORK_MAX, longest
