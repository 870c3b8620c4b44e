"""Errors of SQL name topics, relations and columns of the store, and nothing internal."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
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
        ("SELECT zz FROM orders", 'no column "zz"', "write: SELECT (value->>'zz') FROM orders"),
        ("SELECT zz AS zz FROM orders", 'no column "zz"', "(value->>'zz') AS zz FROM orders"),
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


@pytest.mark.parametrize(
    ("column", "hint"),
    [
        ("amount", "did you mean record.amount?"),
        ("amonut", "did you mean record.amount?"),
        ("kye", "did you mean key?"),
        ("zz", "there are record.id, record.amount"),
    ],
)
def test_a_field_is_suggested_as_a_member_of_the_record(
    client: txlog.Client, column: str, hint: str
) -> None:
    client.create_topic("sales", schema=pa.schema([("id", pa.int64()), ("amount", pa.float64())]))
    with (
        client,
        pytest.raises(SqlError) as caught,
        Query(client, f"SELECT {column} FROM sales") as q,
    ):
        q.rows()
    assert (caught.value.message, caught.value.hint) == (f'no column "{column}"', hint)


def test_candidates_have_one_order() -> None:
    text = 'Binder Error: Referenced column "x" not found! Candidate bindings: {}'
    hints = {explained(text.format(names)).hint for names in ('"k", "a"', '"a", "k"')}
    assert hints == {"there are a, k"}


@pytest.mark.parametrize(("right", "kind"), [("3", "int"), ("3.5", "double")])
def test_a_text_compared_with_a_number_is_told_how_to_convert(
    client: txlog.Client, right: str, kind: str
) -> None:
    client.producer("orders").send(b'{"n":5}')
    sql = "SELECT count(*) AS n FROM orders WHERE {} > " + right
    with pytest.raises(SqlError) as caught, Query(client, sql.format("value->>'n'")) as query:
        query.rows()
    written = f"(value->>'n')::{kind}"
    assert caught.value.hint == f"a member of JSON is text; write: {sql.format(written)}"
    with Query(client, sql.format(written)) as query:
        assert query.rows().read_all().num_rows == 1


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
