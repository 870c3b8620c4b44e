"""Tests of txlog.lake.sql.duck: the abilities of a DuckDB session, and the limits of its SQL."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from txlog.errors import SqlError
from txlog.lake.sql import duck
from txlog.lake.sql.duck import Rows, Session


@pytest.fixture
def parquet(tmp_path: Path) -> str:
    """Return the path of a Parquet file with the numbers 7, 8, 9."""
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"number": [7, 8, 9]}), path)
    return str(path)


@pytest.fixture
def session(parquet: str) -> Iterator[Session]:
    """Return a session that may read the numbers."""
    with Session({"numbers": parquet}) as opened:
        yield opened


def test_named_parquet_file_is_a_view_with_row_numbers(session: Session) -> None:
    """Kills: a view without file order, by which the demo orders invoices."""
    rows = session.arrow("SELECT number, file_row_number FROM numbers ORDER BY number DESC")
    assert rows.to_pylist() == [
        {"number": 9, "file_row_number": 2},
        {"number": 8, "file_row_number": 1},
        {"number": 7, "file_row_number": 0},
    ]


def test_registered_table_is_a_view_and_is_replaced(session: Session) -> None:
    """Kills: a second batch that is not seen because the first one is still there."""
    session.register("rows", pa.table({"x": [1, 2]}))
    session.register("rows", pa.table({"x": [5]}))
    assert session.row("SELECT sum(x)::BIGINT AS total FROM rows") == {"total": 5}


def test_decimals_stay_exact(session: Session) -> None:
    """Guards the demo's money: 0.1 + 0.2 is 0.3, which it is not in floats."""
    text = session.row("SELECT ('0.1'::DECIMAL(18,3) + '0.2'::DECIMAL(18,3))::VARCHAR AS sum")
    assert text == {"sum": "0.300"}


def test_instants_are_in_utc(session: Session) -> None:
    """Guards: a session does not take the time zone of the machine."""
    assert session.row("SELECT current_setting('TimeZone') AS zone") == {"zone": "UTC"}


def test_nothing_is_drawn_on_standard_output(session: Session) -> None:
    """Kills: DuckDB's progress bar, which it draws among the output after two seconds."""
    setting = session.row("SELECT current_setting('enable_progress_bar') AS bar")
    assert setting == {"bar": False}


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO '{path}.csv'",
        "CREATE TABLE copied AS FROM read_csv('/etc/passwd')",
        "CREATE TABLE other AS FROM '{path}.other.parquet'",
        "ATTACH '{path}.duckdb'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET autoinstall_known_extensions = true",
        "SET TimeZone = 'America/New_York'",
    ],
)
def test_session_touches_no_other_files_or_settings(
    session: Session, parquet: str, statement: str
) -> None:
    """Guards the settings: other files, extensions and the settings themselves are out of reach."""
    with pytest.raises(SqlError):
        session.execute(statement.format(path=parquet))
    assert list(Path(parquet).parent.iterdir()) == [Path(parquet)]


def test_variables_of_the_caller_are_not_tables(session: Session) -> None:
    """Kills: python_enable_replacements left on, so that SQL sees the caller's names."""
    secret = pa.table({"x": [1]})
    with pytest.raises(SqlError, match="secret"):
        session.arrow("SELECT * FROM secret")
    assert secret.num_rows == 1


def test_broken_sql_is_our_error_on_one_line(session: Session) -> None:
    """Guards: DuckDB's own exceptions, of several lines, do not leave the module."""
    with pytest.raises(SqlError) as caught:
        session.arrow("SELECT FROM WHERE")
    assert "\n" not in str(caught.value)
    with pytest.raises(SqlError):
        session.execute("SELECT nothing")


def test_row_wants_exactly_one_row(session: Session) -> None:
    """Kills: the first row taken for the only one."""
    with pytest.raises(SqlError, match="3 rows"):
        session.row("SELECT * FROM numbers")


def test_absent_parquet_file_is_an_error(tmp_path: Path) -> None:
    """Guards: a session that cannot see its files is not opened."""
    with pytest.raises(SqlError, match="absent"):
        Session({"numbers": str(tmp_path / "absent.parquet")})


class Stop(BaseException):
    """The exception of a signal handler."""


@pytest.mark.parametrize("call", ["stream", "arrow", "execute"])
def test_a_signal_ends_a_statement_at_once_by_the_handlers_exception(
    session: Session, call: str
) -> None:
    """DuckDB alone raises RuntimeError, and for a stream so late that the test would not end."""

    def stop(number: int, frame: object) -> None:
        raise Stop

    endless = "SELECT count(*) FROM range(100000000000000) t"
    old_handler = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Stop):
            if call == "stream":
                session.stream(endless).read_all()
            else:
                getattr(session, call)(endless)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)
    assert session.row("SELECT 1 AS one") == {"one": 1}  # the session can go on


def test_an_instant_that_duckdb_has_no_room_for_is_endless(session: Session) -> None:
    """The end of a stream is 2^63-1 ms; comparisons hold, and instants in range stay exact."""
    instants = [-(1 << 63), -9_223_372_022_400_000, 253_402_300_800_000, (1 << 63) - 1, None]
    column = pa.array(instants, pa.timestamp("ms", "UTC"))
    session.register("t", pa.table({"due": column}))
    compared = session.arrow(
        "SELECT due = 'infinity' AS endless, due = '-infinity' AS never FROM t"
    )
    assert compared["endless"].to_pylist() == [False, False, False, True, None]
    assert compared["never"].to_pylist() == [True, False, False, False, None]
    finite = session.arrow("SELECT epoch_ms(due) AS ms FROM t WHERE isfinite(due)")
    assert finite["ms"].to_pylist() == instants[1:3]


def test_small_batches_come_together_and_before_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread reads several at once; rows that were read come before the error."""
    monkeypatch.setattr(duck, "_TOGETHER_S", 600)

    class Reader:
        schema = pa.schema([("n", pa.int64())])
        calls = 0

        def read_next_batch(self) -> pa.RecordBatch:
            self.calls += 1
            if self.calls == 4:
                raise OSError("Conversion Error: told by Arrow")
            return pa.record_batch({"n": [self.calls]})

    with Session() as session:
        reader = Reader()
        rows = Rows(reader, session._connection, session)
        numbers: list[int] = []
        with pytest.raises(SqlError, match="told by Arrow"):
            for batch in rows:
                numbers += batch["n"].to_pylist()
                assert reader.calls == 4  # all were read before the first was handed out
        assert numbers == [1, 2, 3]


def test_a_large_batch_comes_alone() -> None:
    """Memory holds one batch of large messages, not as many as are read in a while."""

    class Reader:
        schema = pa.schema([("value", pa.binary())])
        calls = 0

        def read_next_batch(self) -> pa.RecordBatch:
            self.calls += 1
            return pa.record_batch({"value": [bytes(5 << 20)]})

    with Session() as session:
        reader = Reader()
        for _ in islice(Rows(reader, session._connection, session), 2):
            pass
        assert reader.calls == 2


@pytest.mark.parametrize(
    ("sql", "fields"),
    [
        ("SELECT sum(record.a), t.Record.B.c FROM t WHERE record.d > 3 LIMIT $n", "abd"),
        ("SELECT record.a FROM t ORDER BY ALL", "a"),
        ("SELECT o.record.a FROM t AS o JOIN u ON o.lsn = u.lsn, v", "a"),
        ("WITH w AS (SELECT record.a AS f FROM t) SELECT max(f) OVER (ORDER BY f) FROM w", "a"),
        ("SELECT 1 FROM t WHERE 1 IN (SELECT record.a FROM t UNION SELECT record.b FROM t)", "ab"),
        ("SELECT count(*) FROM t", ""),
        ("SELECT * FROM t", None),
        ("FROM t", None),
        ("SELECT record.* FROM t", None),
        ("SELECT columns('rec.*') FROM t", None),
        ("SELECT record.a FROM t ORDER BY columns('rec.*')", None),
        ("SELECT record FROM t", None),
        ("SELECT record.a FROM t ORDER BY record", None),
        ("SELECT record['a'] FROM t", None),
        ("SELECT t FROM t", None),
        ("SELECT o FROM t AS o", None),
        ("SELECT main.t FROM t", None),
        ("SELECT record.a FROM t AS x(record)", None),
        ("SELECT record.a FROM record", None),
        ("SELECT t.record.a FROM t JOIN u USING (lsn)", "a"),
        ("SELECT t.record.a FROM t JOIN u USING (Record)", None),
        ("SELECT t.record.a FROM t NATURAL JOIN u", None),
        ("SELECT record.a FROM t, query_table('t')", None),
        ("SELECT record.a FROM (SUMMARIZE t)", None),
    ],
)  # fmt: skip
def test_fields_that_a_query_names(session: Session, sql: str, fields: str | None) -> None:
    """Kills: a record without a field that a star, a join or a name for the whole row uses."""
    session.tables_of(sql)
    assert session.fields_of([sql], "record") == (None if fields is None else {*fields})
    assert session.fields_of(["SELECT record.z FROM t", sql], "record") == (
        None if fields is None else {*fields, "z"}
    )
