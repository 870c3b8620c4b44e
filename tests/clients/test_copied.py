"""A copy in transactions by a stock client is exact, though client and server are killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.clients import bed, copied
from tests.clients.answered import Mortal


@pytest.mark.clients
@pytest.mark.needs("go")
def test_a_copy_of_three_partitions_is_exact_while_everything_is_killed(tmp_path: Path) -> None:
    """Kills: a message that is copied twice, or not at all, and a copy that comes to a stop."""
    try:
        command = copied.program("go")
    except bed.Unavailable as error:
        pytest.skip(str(error))
    seed = random.randrange(1 << 30)
    print("seed", seed)
    deaths = copied.Deaths(server=2, client=2, pause=1.0)
    with bed.running(Mortal(tmp_path)) as server:
        outcome = copied.copy(command, copied.PLANS[0], server, 1_500, deaths, seed)
    assert outcome.is_exact, outcome
