"""Errors of SQL name topics, relations and columns of the store, and nothing internal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import txlog
from txlog.errors import SqlError
from txlog.lake.sql.client_query import Query
from txlog.lake.sql.faults import explained

INTERNAL = re.compile(r"txlog_|duckdb_|pragma_|EXPLAIN|LINE \d")


@pytest.fixture
def client(tmp_path: Path, quick_disk: None) -> txlog.Client:
    path = str(tmp_path / "s")
    txlog.init(path)
    client = txlog.open(path)
    for topic in ("orders", "payments", "tail_of_things"):
        client.create_topic(topic)
    return client


@pytest.mark.parametrize(
    ("sql", "message", "hint"),
    [
        ("FROM ordrs", 'no topic or relation "ordrs"', "did you mean orders?"),
        ("FROM tails_of_thing", 'no topic or relation "tails_of_thing"', "tail_of_things"),
        ("FROM tail", 'no topic or relation "tail"', "txlog topic list"),
        ("FROM pragmata", 'no topic or relation "pragmata"', "txlog topic list"),
        ("FROM orders JOIN paymnts USING (key)", 'relation "paymnts"', "did you mean payments?"),
        ("FROM mesages", 'no topic or relation "mesages"', "did you mean messages?"),
        ("SELECT valu FROM orders", 'no column "valu"', "did you mean value?"),
        ("SELECT zz FROM orders", 'no column "zz"', "there are "),
        ("SELECT o.key FROM orders x", 'no table "o" in this FROM', "there are x"),
        ("SELECT cuont(*) FROM orders", 'no function "cuont"', "did you mean count?"),
    ],
)
def test_an_unknown_name_has_a_hint_of_this_store(
    client: txlog.Client, sql: str, message: str, hint: str
) -> None:
    with client, pytest.raises(SqlError) as caught, Query(client, sql) as query:
        query.rows()
    assert message in caught.value.message
    assert hint in str(caught.value.hint)
    assert not INTERNAL.search(f"{caught.value.message} {caught.value.hint}")


def test_names_of_ours_are_left_out_of_candidates() -> None:
    error = explained(
        'Binder Error: Referenced table "x" not found! Candidate tables: "txlog_tail", "orders"'
    )
    assert error.hint == "there are orders"
    error = explained(
        'Catalog Error: Scalar Function with name f does not exist! Did you mean "pragma_f"?'
    )
    assert error.hint is None
    text = "Parser Error: syntax error LINE 1: EXPLAIN (FORMAT json) select ^"
    assert explained(text).message == "Parser Error: syntax error"
