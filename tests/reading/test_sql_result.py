"""`client.sql`: the rows of a SELECT as Arrow, polars, tuples, a drawing and HTML."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from txlog.client.client import Client
from txlog.errors import AlreadyClosed, MissingExtra, SqlError


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    txlog.init(str(tmp_path / "s"))
    with txlog.open(str(tmp_path / "s")) as opened:
        opened.create_topic("orders")
        opened.create_topic("users")
        producer = opened.producer("orders")
        for number in range(1, 13):
            producer.send(b'{"id":%d,"who":"<b>ana</b>"}' % number)
        opened.producer("users").send(b'{"id":7,"name":"eve"}')
        yield opened


def test_a_result_is_arrow_polars_and_tuples(client: Client) -> None:
    result = client.sql("SELECT value->>'id' AS id FROM orders ORDER BY entry LIMIT 2")
    assert result.columns == ["id"]
    assert result.arrow().equals(pa.table({"id": ["1", "2"]}))
    assert result.pl().to_dicts() == [{"id": "1"}, {"id": "2"}]
    assert list(result) == [("1",), ("2",)] and len(result) == 2
    assert result.fetchone() == ("1",)


def test_pandas_is_asked_for_only_when_it_is_wanted(client: Client) -> None:
    result = client.sql("SELECT 1 AS x")
    try:
        importlib.import_module("pandas")
    except ImportError:
        with pytest.raises(MissingExtra, match="pandas"):
            result.df()
    else:
        assert result.df()["x"].tolist() == [1]


def test_pandas_keeps_integers_nulls_and_instants(client: Client) -> None:
    """Tried with pandas 2.3 and 3.1, which differ only in the type of texts: object, and str.

    Instants are datetime64 with UTC up to the year 9999; bytes, decimals, dates and lists objects.
    """
    pytest.importorskip("pandas", reason="the extra `spark` has pandas")
    big = 2**53 + 1
    sql = f"""SELECT * FROM (VALUES ({big}::BIGINT, 1::UTINYINT,
        TIMESTAMPTZ '9999-12-31 23:59:59+00',
        '\\xff'::BLOB, 'é', 12.30::DECIMAL(9, 2)), (NULL, NULL, NULL, NULL, NULL, NULL))
        AS v(i, small, moment, bytes, text, price)"""
    frame = client.sql(sql).df()
    kinds = [str(kind) for kind in frame.dtypes]
    assert kinds[:4] == ["Int64", "UInt8", "datetime64[us, UTC]", "object"]
    assert frame["i"][0] == big and frame["small"].isna().tolist() == [False, True]
    assert (frame["moment"][0].year, frame["bytes"][0], frame["text"][0]) == (9999, b"\xff", "é")
    assert str(frame["price"][0]) == "12.30"
    twice = client.sql("SELECT 1 AS x, NULL::INT AS x").df()
    assert [str(kind) for kind in twice.dtypes] == ["int32", "Int32"]
    messages = client.sql("FROM orders").df()
    assert len(messages) == 12 and str(messages["publish_time"].dtype) == "datetime64[us, UTC]"


def test_a_result_is_as_of_the_call(client: Client) -> None:
    result = client.sql("SELECT count(*) AS n FROM orders")
    client.producer("orders").send(b"{}")
    assert result.fetchone() == (12,)


def test_drawings_are_bounded_and_escaped(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    result = client.sql("SELECT value->>'who' AS \"<i>\", repeat('x', 100) AS long FROM orders")
    assert "the first 10 rows; there are more" in repr(result)
    assert max(map(len, repr(result).splitlines())) < 100
    page = result._repr_html_()
    assert "<b>" not in page and "<i>" not in page and "&lt;b&gt;ana" in page
    assert page.count("<tr>") == 11
    result.show(1)
    assert "the first 1 row; there are more" in capsys.readouterr().out
    assert len(result) == 12  # the drawing took no row away


def test_parameters_have_their_types(client: Client) -> None:
    rows = client.sql("SELECT $a + 1 AS x, $b AS y", {"a": 41, "b": b"\xff"})
    assert list(rows) == [(42, b"\xff")]


def test_errors_come_with_the_call_and_a_closed_result_says_so(client: Client) -> None:
    with pytest.raises(SqlError, match="nope"):
        client.sql("SELECT nope FROM orders")
    with pytest.raises(SqlError, match="only a SELECT"):
        client.sql("DELETE FROM orders")
    result = client.sql("FROM orders")
    assert sum(batch.num_rows for batch in result.batches()) == 12
    with pytest.raises(AlreadyClosed):
        result.arrow()
    assert "closed" in repr(result)


def test_closing_the_client_closes_its_results(tmp_path: Path) -> None:
    txlog.init(str(tmp_path / "s"))
    with txlog.open(str(tmp_path / "s")) as client:
        client.create_topic("t")
        left, kept = client.sql("FROM t"), client.sql("SELECT 1 AS x")
        assert kept.arrow().num_rows == 1
    assert "closed" in repr(left)
    assert list(kept) == [(1,)]


@pytest.mark.parametrize(
    "extract",
    ["o.value->>'id'", "json_extract_string(o.value, 'id')", "value->>'id'", "o.value->'$.id'"],
)
def test_json_is_extracted_from_bytes(client: Client, extract: str) -> None:
    """DuckDB alone gives NULL: it casts bytes to text with escapes."""
    assert client.sql(f"SELECT {extract} AS id FROM orders AS o LIMIT 1").fetchone() == ("1",)


def test_a_column_named_value_that_is_text_or_json_works_too(client: Client) -> None:
    for form in ("text(value)", "json(value)", "value"):
        rows = client.sql(
            f"WITH w AS (SELECT {form} AS value FROM users) SELECT value->>'name' FROM w"
        )
        assert list(rows) == [("eve",)]


@pytest.mark.parametrize("bad", [b"not json", b"\xff\xfe"])
def test_a_join_names_the_message_that_is_not_json(client: Client, bad: bytes) -> None:
    message_id = client.producer("users").send(bad).message_id
    join = "SELECT name FROM orders o JOIN (SELECT value->>'name' AS name, {0}->>'id' AS id"
    join += " FROM users) u ON o.value->>'id' = u.id"
    with pytest.raises(SqlError, match=f"users/0: the value of message {message_id} is not") as e:
        client.sql(join.format("value")).arrow()
    assert "try_json(value)" in str(e.value.hint)
    skipped = join.format("try_json(value)").replace("value->>'name'", "try_json(value)->>'name'")
    assert list(client.sql(skipped)) == [("eve",)]
