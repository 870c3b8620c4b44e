"""Owns the job `audit`: whether the stored rows agree with the store's own records.

An engine without txlog's code reads the stored rows and determines visibility from them alone: data
rows of a partition are visible, and rows of its sidecar with a marker there. Then it checks:

    bytes         files equal the manifest, byte for byte; Spark checks pages as it reads
    files         the number of rows in each, and the bounds of entries and LSNs
    entries       a ledger has 0 to n - 1, each once
    markers       one for each transaction and partition, the same ones that the sidecar has
    transactions  a marker has as many rows as it claims, with the indexes 1 to n
    places        clean files name the marker that made a row visible
    messages      there are as many as the topic counts
    ids           no two messages have the same id
    sequences     sequences of a producer rise, outside transactions and within each one
    large         chunks are complete
    acks          they point at entries that exist, or at messages of a marker
    digest        never fails: a number to compare engines, copies and points in time
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from txlog.base.ids import TopicName
from txlog.base.startup import compute as pc
from txlog.client.client import Client
from txlog.engine.door.relation import FileSource, StoredRows, stored
from txlog.errors import CommandFailed, Corruption, TopicNotFound
from txlog.lake.jobs.engine import BLOCK, LARGE_CHUNKS, STORED, Ask, Engine, Tell, silent

if TYPE_CHECKING:
    from txlog.base.rows.jobs import Audit, AuditCheck


_TXN: Final = "partition, txn_most, txn_least"
_NUMBERS: Final = ("entry", "txn_index", "number")
# To check that rows are unique, DuckDB keeps a bit per row, for about BLOCKS_AT_ONCE blocks at a
# time. To count repeated rows, it holds about ROWS_AT_ONCE rows.
BLOCKS_AT_ONCE = 200_000
ROWS_AT_ONCE = 4_000_000
# Committed messages, from stored rows alone. Only large messages come from a fold: their rows are
# in no file.
_COMMITTED: Final = f"""
marks AS (SELECT partition, ledger, entry, txn_most, txn_least,
          coalesce({STORED}.count, 0) AS messages FROM {STORED} WHERE role = 'p' AND kind = 1),
held AS (SELECT partition, ledger, txn_most, txn_least, txn_index, producer, sequence_id, value
         FROM {STORED} WHERE role = 's' AND kind = 0
         UNION ALL SELECT partition, ledger, txn_most, txn_least, txn_index, producer, sequence_id,
         NULL FROM large),
committed AS (
  SELECT partition, ledger, entry, NULL AS txn_index, value
  FROM {STORED} WHERE role = 'p' AND kind = 0
  UNION ALL
  SELECT h.partition, m.ledger, m.entry, h.txn_index, h.value
  FROM held AS h JOIN marks AS m
  ON h.partition = m.partition AND h.txn_most = m.txn_most AND h.txn_least = m.txn_least)
"""


def audit(client: Client, topics: Sequence[str], engine: Engine, tell: Tell = silent) -> Audit:
    """Check the stored rows of the topics, or of all topics, against the store's own records.

    topics:  their names; empty: all topics
    returns: {failed, check_list: [{name, topic, partition, expected, found, ok}]}; failed: how many
             checks; partition is None for a check of the whole topic
    raises:  TopicNotFound, PartitionUnavailable; Corruption of a part or a frame
    """
    names = [TopicName.parse(topic) for topic in topics]
    checks: list[AuditCheck] = []
    with ExitStack() as held_open:
        holdings = stored_of(client, [name.full for name in names] if names else None)
        for rows_stored in holdings:
            held_open.callback(rows_stored.frames.close)
        for name in names:
            if all(rows_stored.name != name.full for rows_stored in holdings):
                raise TopicNotFound(f"there is no topic {name.short}", topic=name.short)
        files = [
            source
            for rows_stored in holdings
            for source in (*rows_stored.files, *rows_stored.large_files, *rows_stored.parts)
        ]
        if (pinned := client._pin(files)) is not None:  # they are read several times
            held_open.callback(pinned.close)
        for rows_stored in holdings:
            for check in _checks(client, rows_stored, engine):
                checks.append(check)
                tell(f"{rows_stored.topic}: {check['name']}")
    return {"failed": sum(not check["ok"] for check in checks), "check_list": checks}


def stored_of(client: Client, names: Sequence[str] | None) -> list[StoredRows]:
    """The stored rows of the topics with these full names; None: of all. Frames stay open."""
    return client.store.ask(lambda view: stored(view, names))


def _checks(client: Client, rows_stored: StoredRows, engine: Engine) -> Iterator[AuditCheck]:
    files = [*rows_stored.files, *rows_stored.large_files]
    expected = f"files {len(files)}, all whole"
    if engine.name == "duckdb":
        damage = _damage(client, files)
        yield _check("bytes", rows_stored, None, expected, damage or expected)
        if damage:
            return  # further checks would report the same damage again
    try:
        with engine.stored(client, rows_stored) as ask:
            yield from _asked(rows_stored, ask, engine)
    except CommandFailed:
        damage = _damage(client, files)
        if not damage:
            raise
        yield _check("bytes", rows_stored, None, expected, damage)


def _damage(client: Client, files: Sequence[FileSource]) -> str | None:
    """The message of the first damage in the bytes of files; None without any."""
    try:
        client.check_files(files)
    except Corruption as error:
        return str(error)
    return None


def _asked(rows_stored: StoredRows, ask: Ask, engine: Engine) -> Iterator[AuditCheck]:
    is_shared = engine.name == "duckdb"
    shares = 1 + _blocks(rows_stored) // BLOCKS_AT_ONCE if is_shared else 1
    yield from _files(rows_stored, ask)
    for name, sql in _SUMS.items():
        yield from _compared(name, rows_stored, _summed(ask, sql, shares, engine))
    yield from _messages(rows_stored, ask)
    for name, (unit, sql) in _FAULTS.items():
        rows = _summed(ask, sql, shares, engine)
        if name == "ids" and rows:  # count the repeated ids
            row_shares = 1 + _rows(rows_stored) // ROWS_AT_ONCE if is_shared else 1
            rows = _summed(ask, _REPEATED, row_shares, engine)
        yield from _faults(name, unit, rows_stored, rows)
    yield _digest(rows_stored, ask, engine)


def _rows(rows_stored: StoredRows) -> int:
    """About how many rows there are: entries of all ledgers, plus the messages of markers."""
    counted = (rows_stored.ledgers["entries"], rows_stored.markers["messages"])
    return sum(int(pc.sum(column).as_py() or 0) for column in counted)


def _blocks(rows_stored: StoredRows) -> int:
    """About how many blocks of rows: each ledger and each transaction has at least one."""
    return (
        int(rows_stored.ledgers.num_rows + rows_stored.markers.num_rows)
        + _rows(rows_stored) // BLOCK
    )


def _summed(ask: Ask, sql: str, shares: int, engine: Engine) -> list[dict[str, Any]]:
    """Run a query share by share; returns its rows, summed by partition."""
    if "%(" not in sql:
        rows: list[dict[str, Any]] = ask(sql).to_pylist()
        return rows
    sums: dict[int, dict[str, Any]] = {}
    of_block = {f"distinct_{name}": engine.distinct(f"{name} & {BLOCK - 1}") for name in _NUMBERS}
    for share in range(shares):
        of = {name: _share(name, share, shares) for name in ("ledger", "txn_least")} | of_block
        for row in ask(sql % of).to_pylist():
            total = sums.setdefault(row["partition"], dict.fromkeys(row, 0))
            total |= {name: total[name] + (row[name] or 0) for name in row}
            total["partition"] = row["partition"]
    return [sums[partition] for partition in sorted(sums)]


def _share(column: str, share: int, shares: int) -> str:
    """SQL for the rows of one share; every value of the column belongs to exactly one."""
    if shares == 1:
        return "true"
    return f"mod(mod({column}, {shares}) + {shares}, {shares}) = {share}"


def _block(number: str) -> str:
    """SQL for the block of a number."""
    return f"floor({number} / {BLOCK})"


# Each query returns (partition, expected, found) for the partitions that have any.
_SUMS: Final = {
    "entries": f"""
        WITH blocks AS (
          SELECT ledger, count(*) AS n, %(distinct_entry)s AS d, min(entry) AS low,
          max(entry) AS high FROM {STORED} WHERE %(ledger)s GROUP BY ledger, {_block("entry")}),
        found AS (SELECT ledger, sum(n) AS n, sum(d) AS d, min(low) AS low, max(high) AS high
                  FROM blocks GROUP BY ledger)
        SELECT partition, sum(entries) AS expected,
        sum(CASE WHEN n = entries AND d = entries AND low = 0 AND high = entries - 1
            THEN entries ELSE 0 END) AS found
        FROM ledgers LEFT JOIN found USING (ledger) WHERE whole AND entries > 0
        AND %(ledger)s
        GROUP BY partition ORDER BY partition""",
    "transactions": f"""
        WITH {_COMMITTED}, blocks AS (
          SELECT {_TXN}, count(*) AS n, %(distinct_txn_index)s AS d, min(txn_index) AS low,
          max(txn_index) AS high FROM held WHERE %(txn_least)s
          GROUP BY {_TXN}, {_block("txn_index")}),
        of_txn AS (SELECT {_TXN}, sum(n) AS n, sum(d) AS d, min(low) AS low, max(high) AS high
                   FROM blocks GROUP BY {_TXN})
        SELECT partition, sum(messages) AS expected,
        sum(CASE WHEN n = messages AND d = messages AND low = 1 AND high = messages
            THEN messages ELSE 0 END) AS found
        FROM marks LEFT JOIN of_txn USING ({_TXN}) WHERE messages > 0 AND %(txn_least)s
        GROUP BY partition ORDER BY partition""",
    "large": f"""
        WITH found AS (SELECT ledger, count(*) AS n, count(DISTINCT entry) AS d,
                       max(entry) AS high, sum(octet_length(value)) AS size
                       FROM {LARGE_CHUNKS} WHERE kind = 6 GROUP BY ledger)
        SELECT partition, sum(value_bytes) AS expected,
        sum(CASE WHEN n = chunks AND d = n AND high = n - 1 THEN size ELSE 0 END) AS found
        FROM large LEFT JOIN found USING (ledger) GROUP BY partition ORDER BY partition""",
    "acks": f"""
        WITH there AS (SELECT ledger, entry,
                       CASE WHEN kind = 1 THEN coalesce({STORED}.count, 0) END AS most
                       FROM {STORED} WHERE role = 'p')
        SELECT a.partition, sum(a.entries) AS expected, sum(a.found) AS found FROM (
          SELECT acks.subscription, acks.partition, acks.ledger, acks.first, acks.index_last,
          max(acks.last) - acks.first + 1 AS entries,
          count(DISTINCT CASE WHEN index_last = 0 OR index_last <= t.most THEN t.entry END) AS found
          FROM acks LEFT JOIN there AS t
          ON t.ledger = acks.ledger AND t.entry BETWEEN acks.first AND acks.last
          GROUP BY acks.subscription, acks.partition, acks.ledger, acks.first, acks.index_last
          ) AS a
        GROUP BY a.partition ORDER BY a.partition""",
}  # fmt: skip

# Each query returns (partition, faults): there should be none.
_FAULTS: Final = {
    "markers": ("differ", f"""
        WITH {_COMMITTED}, said AS (
          SELECT partition, ledger, entry, txn_most, txn_least, messages FROM markers)
        SELECT partition, count(*) AS faults FROM (
          SELECT partition, txn_most FROM (SELECT * FROM marks EXCEPT SELECT * FROM said) AS a
          UNION ALL
          SELECT partition, txn_most FROM (SELECT * FROM said EXCEPT SELECT * FROM marks) AS b
          UNION ALL
          SELECT partition, txn_most FROM marks GROUP BY {_TXN} HAVING count(*) > 1) AS c
        GROUP BY partition ORDER BY partition"""),
    "places": ("misplaced", f"""
        WITH {_COMMITTED}, trims AS (
          SELECT partition, min(ledger) AS first FROM ledgers WHERE role = 'p' GROUP BY partition)
        SELECT s.partition, count(*) AS faults FROM {STORED} AS s JOIN trims AS t
        ON s.partition = t.partition LEFT JOIN marks AS m
        ON m.partition = s.partition AND m.txn_most = s.txn_most AND m.txn_least = s.txn_least
        AND m.ledger = s.marker_ledger AND m.entry = s.marker_entry
        WHERE s.marker_ledger >= t.first AND m.entry IS NULL
        GROUP BY s.partition ORDER BY s.partition"""),
    "ids": ("repeated", f"""
        WITH {_COMMITTED}, numbered AS (
          SELECT partition, ledger, CASE WHEN txn_index IS NOT NULL THEN entry END AS marker,
          coalesce(txn_index, entry) AS number FROM committed WHERE %(ledger)s)
        SELECT partition, count(*) AS faults FROM (
          SELECT partition FROM numbered GROUP BY partition, ledger, marker, {_block("number")}
          HAVING count(*) <> %(distinct_number)s) AS a GROUP BY partition ORDER BY partition"""),
    "sequences": ("fall or repeat", f"""
        WITH {_COMMITTED}, sent AS (
          SELECT partition, producer, NULL AS txn_most, NULL AS txn_least, ledger AS a, entry AS b,
          sequence_id FROM {STORED}
          WHERE role = 'p' AND kind = 0 AND producer IS NOT NULL
          UNION ALL SELECT partition, producer, txn_most, txn_least, 0, txn_index, sequence_id
          FROM held WHERE producer IS NOT NULL),
        following AS (SELECT partition, sequence_id, lag(sequence_id) OVER (
          PARTITION BY partition, producer, txn_most, txn_least ORDER BY a, b) AS before FROM sent)
        SELECT partition, count(*) AS faults FROM following WHERE sequence_id <= before
        GROUP BY partition ORDER BY partition"""),
}  # fmt: skip

# The ids that several rows have.
_REPEATED: Final = f"""
    WITH {_COMMITTED}
    SELECT partition, count(*) AS faults FROM (
      SELECT partition FROM committed WHERE %(ledger)s
      GROUP BY partition, ledger, entry, txn_index
      HAVING count(*) > 1) AS a GROUP BY partition ORDER BY partition"""


def _files(rows_stored: StoredRows, ask: Ask) -> Iterator[AuditCheck]:
    """Compare each file with the manifest, one check per partition."""
    sql = (
        "SELECT ledger, file, count(*) AS n, min(entry) AS first, max(entry) AS last,"
        f" coalesce(min(lsn), 0) AS lsn_first, coalesce(max(lsn), 0) AS lsn_last FROM {STORED}"
        " GROUP BY ledger, file"
    )
    names = ("n", "first", "last", "lsn_first", "lsn_last")
    actual = {
        (row["ledger"], row["file"]): tuple(row[name] for name in names)
        for row in ask(sql).to_pylist()
    }
    for partition in range(len(rows_stored.counts)):
        claims = [(file, ref) for index, file, ref in rows_stored.claims if index == partition]
        if not claims:
            continue
        expected = f"files {len(claims)}, rows {sum(ref.rows for _, ref in claims)}"
        problem = expected
        for file, ref in claims:
            lsns = (0, 0) if ref.form == "adopted" else (ref.lsn_first, ref.lsn_last)
            claim = (ref.rows, ref.first, ref.last, *lsns)
            stands = actual.get((ref.ledger, file), (0, 0, -1, 0, 0))
            if stands[0] != claim[0] or (ref.rows and stands != claim):
                problem = f"{ref.path} has (rows, entries, LSNs) {stands}, not {claim}"
                break
        yield _check("files", rows_stored, partition, expected, problem)


def _compared(
    name: str, rows_stored: StoredRows, rows: Sequence[dict[str, Any]]
) -> Iterator[AuditCheck]:
    for row in rows:
        yield _check(
            name,
            rows_stored,
            row["partition"],
            str(int(row["expected"])),
            str(int(row["found"] or 0)),
        )


def _messages(rows_stored: StoredRows, ask: Ask) -> Iterator[AuditCheck]:
    sql = f"WITH {_COMMITTED} SELECT partition, count(*) AS n FROM committed GROUP BY partition"
    counts = {row["partition"]: row["n"] for row in ask(sql).to_pylist()}
    for partition, count in enumerate(rows_stored.counts):
        yield _check("messages", rows_stored, partition, str(count), str(counts.get(partition, 0)))


def _faults(
    name: str, unit: str, rows_stored: StoredRows, rows: Sequence[dict[str, Any]]
) -> Iterator[AuditCheck]:
    for row in rows:
        yield _check(name, rows_stored, row["partition"], f"0 {unit}", f"{row['faults']} {unit}")
    if not rows:
        yield _check(name, rows_stored, None, f"0 {unit}", f"0 {unit}")


def _digest(rows_stored: StoredRows, ask: Ask, engine: Engine) -> AuditCheck:
    """Σ of 48 bits of the values' md5: it does not depend on order or on the position of rows."""
    sql = (
        f"WITH {_COMMITTED} SELECT count(value) AS n,"
        f" CAST(coalesce(sum({engine.digest('value')}), 0) AS VARCHAR(40)) AS total FROM committed"
    )
    [row] = ask(sql).to_pylist()
    return {
        "name": "digest",
        "topic": rows_stored.topic,
        "partition": None,
        "expected": "",
        "found": f"{row['n']} values, {row['total']}",
        "ok": True,
    }


def _check(
    name: str, rows_stored: StoredRows, partition: int | None, expected: str, actual: str
) -> AuditCheck:
    return {
        "name": name,
        "topic": rows_stored.topic,
        "partition": partition,
        "expected": expected,
        "found": actual,
        "ok": expected == actual,
    }
