"""A process that is killed between any two steps of a commit together with a database.

`python -m tests.crash.together KIND KILLS` does the same thousands of times.
"""

from __future__ import annotations

import pytest

from tests import databases
from tests.crash.together import KINDS, run
from tests.harness import SEED

KILLS = 12


@pytest.mark.parametrize("kind", KINDS)
def test_never_one_without_the_other(kind: str) -> None:
    if kind == "postgresql" and not databases.has_postgresql():
        pytest.skip("there is no psycopg or no server of PostgreSQL here")
    figures = run(kind, KILLS, SEED)
    assert figures.faults == []
    assert figures.kills == KILLS
